"""Gradients of 0 and updates that round away are counted, element by element."""

import torch
from torch import nn

from stages.probes.lost_updates import counting_updates


def test_zeros_and_lost_updates_are_counted_apart() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 1.0, 1.0, 1.0]).bfloat16())
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.tensor([0.0, 1e-5, 1.0, 0.5]).bfloat16()  # 1 - 1e-5 is 1 in bfloat16
    with counting_updates(optimizer) as count:
        optimizer.step()
    assert (count.elements, count.zero_gradient, count.unmoved) == (4, 1, 1)
    assert (count.zero_share, count.unmoved_share) == (1 / 4, 1 / 3)
    optimizer.step()
    assert count.elements == 4  # nothing is counted behind the block


def test_a_step_at_a_rate_of_0_is_no_update() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    weight.grad = torch.ones(2)
    with counting_updates(optimizer) as count:
        optimizer.step()
    assert (count.elements, count.zero_share, count.unmoved_share) == (0, None, None)


def test_a_parameter_without_a_gradient_is_left_out() -> None:
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    weights[0].grad = torch.ones(2)
    with counting_updates(optimizer) as count:
        optimizer.step()
    assert (count.elements, count.unmoved) == (2, 0)
