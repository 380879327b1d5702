"""AdamW decays matrices, nothing else, and holds what is trainable, nothing else."""

import pytest
import torch
from torch import nn

from stages.config import UserError
from stages.training.optimizer import build_optimizer

from ..parts import Bigram
from ..settings import make_params

PARAMS = make_params(
    train__optimizer__adam_beta1=0.8,
    train__optimizer__adam_beta2=0.9,
    train__optimizer__adam_epsilon=1e-6,
).train.optimizer


def build(model: nn.Module, weight_decay: float = 0.5) -> torch.optim.Optimizer:
    return build_optimizer(model, PARAMS, learning_rate=0.1, weight_decay=weight_decay)


def test_the_hyperparameters_arrive() -> None:
    optimizer = build(Bigram())
    assert isinstance(optimizer, torch.optim.AdamW)
    settings = [(g["lr"], g["betas"], g["eps"]) for g in optimizer.param_groups]
    assert settings == [(0.1, (0.8, 0.9), 1e-6)] * 2


def test_weight_decay_is_for_matrices_only() -> None:
    model = Bigram()
    optimizer = build(model)
    decayed = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert {name: decayed[id(p)] for name, p in model.named_parameters()} == {
        "embedding.weight": 0.5,
        "norm.weight": 0.0,
        "norm.bias": 0.0,
        "head.weight": 0.5,
        "head.bias": 0.0,
    }


def test_decay_shrinks_matrices_and_leaves_gains_alone() -> None:
    model = Bigram()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    build(model).step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if parameter.ndim >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_frozen_parameters_stay_outside() -> None:
    model = Bigram()
    model.embedding.weight.requires_grad_(False)
    held = {id(p) for group in build(model).param_groups for p in group["params"]}
    assert id(model.embedding.weight) not in held
    assert len(held) == 4


def test_a_shared_matrix_is_held_once() -> None:
    model = Bigram()
    model.head.weight = model.embedding.weight
    held = [id(p) for group in build(model).param_groups for p in group["params"]]
    assert sorted(held) == sorted({id(p) for p in model.parameters()})


def test_a_model_of_matrices_alone_has_one_group() -> None:
    assert len(build(nn.Linear(2, 2, bias=False)).param_groups) == 1


def test_a_model_without_trainable_parameters_is_refused() -> None:
    model = Bigram().requires_grad_(False)
    with pytest.raises(UserError) as caught:
        build(model)
    assert str(caught.value) == (
        "the model has no trainable parameter; loosen model.frozen, or see that the adapter's "
        "target modules match"
    )
