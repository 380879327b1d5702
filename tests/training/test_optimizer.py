"""AdamW decays matrices, nothing else, and holds what is trainable, nothing else."""

import copy

import pytest
import torch
from torch import nn

from stages.config import UserError
from stages.config.schema import Optim
from stages.probes.fingerprint import optimizer_sha256
from stages.training import optimizer as optimizer_module
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


EIGHT_BIT: tuple[Optim, ...] = ("adamw_bnb_8bit", "paged_adamw_8bit")


@pytest.mark.parametrize("kind", EIGHT_BIT)
def test_without_bitsandbytes_moments_in_8_bits_are_refused(
    kind: Optim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer_module, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        build_optimizer(Bigram(), PARAMS, learning_rate=0.1, weight_decay=0.0, kind=kind)
    assert str(caught.value) == (
        f"params.yaml: 'train.optim' is {kind}, which needs the package bitsandbytes; install it, "
        "or use adamw_torch"
    )


class Wide(nn.Module):
    """Matrices large enough for bitsandbytes to keep their moments in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 128)
        self.head = nn.Linear(128, 64)

    def take_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.head(self.embedding(torch.arange(64))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", EIGHT_BIT)
def test_moments_in_8_bits_train_alike_and_come_back_to_the_bit(kind: Optim) -> None:
    pytest.importorskip("bitsandbytes")

    def build_8bit(model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, PARAMS, learning_rate=0.01, weight_decay=0.1, kind=kind)

    torch.manual_seed(0)
    model = Wide()
    whole, fresh = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = build_8bit(model)
    plain = build_optimizer(whole, PARAMS, learning_rate=0.01, weight_decay=0.1)
    for _ in range(3):
        model.take_step(optimizer)
        whole.take_step(plain)
    state = optimizer.state
    assert state[model.head.weight]["state1"].dtype == torch.uint8
    assert state[model.embedding.weight]["state1"].dtype == torch.float32
    torch.testing.assert_close(model.state_dict(), whole.state_dict(), rtol=0, atol=5e-3)

    fresh.load_state_dict(model.state_dict())
    resumed = build_8bit(fresh)
    resumed.load_state_dict(optimizer.state_dict())
    assert optimizer_sha256(resumed) == optimizer_sha256(optimizer)
    model.take_step(optimizer)
    fresh.take_step(resumed)
    assert all(one.equal(fresh.state_dict()[name]) for name, one in model.state_dict().items())
    assert optimizer_sha256(resumed) == optimizer_sha256(optimizer)
