"""The module and the row at which a number stops being one."""

import pytest
import torch
from torch import nn

from stages.probes.non_finite import Origin, watching_origins


class Faulty(nn.Module):
    """Gives what `operation` makes of its input."""

    def __init__(self, operation: object) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.operation(x)  # type: ignore[operator]
        return made


def spoil_row(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(len(x))[:, None] == 2, torch.nan, x)


def infinite_slope(x: torch.Tensor) -> torch.Tensor:
    return x + (x - x.detach()).abs().sqrt()


def origins_of(module: nn.Module, passes: int = 1) -> list[Origin]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), module, nn.Linear(3, 3))
    with watching_origins(model) as origins:
        for _ in range(passes):
            model(torch.randn(4, 3, requires_grad=True)).sum().backward()
    return origins


def test_finite_numbers_have_no_origin() -> None:
    assert origins_of(nn.Tanh(), passes=2) == []


def test_a_forward_pass_names_module_batch_and_row() -> None:
    first, *rest = origins_of(Faulty(spoil_row))
    assert first == Origin("1", "Faulty", "forward", 0, 2)
    assert {origin.module for origin in rest} <= {"", "1"}
    assert str(first) == "1 (Faulty), forward"


def test_the_pass_is_counted() -> None:
    calls = iter([lambda x: x, spoil_row])
    model = Faulty(lambda x: next(calls)(x))
    assert origins_of(model, passes=2)[0] == Origin("1", "Faulty", "forward", 1, 2)


def test_a_backward_pass_names_the_module_whose_gradient_breaks() -> None:
    first, *rest = origins_of(Faulty(infinite_slope))
    assert first == Origin("1", "Faulty", "backward", 0, 0)
    assert [origin.module for origin in rest] == [""]


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_a_first_dimension_that_is_no_batch_names_no_row(shape: tuple[int, ...]) -> None:
    spoiled = Faulty(lambda x: torch.full(shape, torch.inf))
    with watching_origins(spoiled) as origins:
        spoiled(torch.randn(4, 3))
    assert origins == [Origin("", "Faulty", "forward", 0, None)]
