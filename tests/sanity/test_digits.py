"""Five broken scripts on a real set of images are told apart by their cause; healthy ones pass."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.optim import Adam, Optimizer

from stages.probes.fingerprint import state_sha256
from stages.sanity import SanityReport, sanity_check

Loader = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Digits:
    """A script that learns 8 x 8 digits: the parts of it that a fault may change."""

    model: nn.Module
    x: torch.Tensor
    y: torch.Tensor
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    task: str
    clears: bool = True


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels float32 [1797, 64] of mean 0 and deviation 1, digits int64 [1797], shuffled."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = torch.tensor(digits.data[order], dtype=torch.float32)
    return (pixels - pixels.mean()) / pixels.std(), torch.tensor(digits.target[order])


def classifier() -> Digits:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Digits(model, *load(), functional.cross_entropy, "classification")


def regressor() -> Digits:
    torch.manual_seed(0)
    x, y = load()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return Digits(model, x, ((y - 4.5) / 2.9)[:, None], functional.mse_loss, "regression")


def shuffle_labels(script: Digits) -> None:
    script.y = script.y[torch.randperm(len(script.y))]


def forget_to_clear(script: Digits) -> None:
    script.clears = False


def softmax_twice(script: Digits) -> None:
    script.loss_fn = lambda z, y: functional.cross_entropy(z.softmax(1), y)


def heat_head(script: Digits) -> None:
    head = script.model[-1]  # type: ignore[index]
    head.weight.data.mul_(50)


def flatten_targets(script: Digits) -> None:
    script.y = script.y[:, 0]


def accuracy(model: nn.Module, loader: Loader) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(float((model(x).argmax(1) == y).sum()) for x, y in loader)
    model.train()
    return right / sum(len(y) for _, y in loader)


def minus_error(model: nn.Module, loader: Loader) -> float:
    model.eval()
    with torch.no_grad():
        error = sum(float((model(x).view(-1) - y.view(-1)).square().sum()) for x, y in loader)
    model.train()
    return -error / sum(len(y) for _, y in loader)


def check(script: Digits) -> tuple[SanityReport, str, str]:
    """(report, digests of all that may change before and after), taken here without the harness."""
    optimizer = Adam(script.model.parameters(), lr=1e-3)

    def train_step(model: nn.Module, batch: Any, optimizer: Optimizer) -> torch.Tensor:
        if script.clears:
            optimizer.zero_grad()
        loss = script.loss_fn(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    def loader(begin: int, end: int) -> Loader:
        return [(script.x[i : i + 50], script.y[i : i + 50]) for i in range(begin, end, 50)]

    train_step(script.model, loader(0, 50)[0], optimizer)  # so that there is state to be kept
    for module in script.model.modules():
        module.training = isinstance(module, nn.Linear)  # no mode that a call would leave

    def digest() -> str:
        return state_sha256(
            {
                "weights": script.model.state_dict(),
                "gradients": [p.grad for p in script.model.parameters()],
                "modes": [m.training for m in script.model.modules()],
                "hooks": [len(m._forward_hooks) for m in script.model.modules()],
                "optimizer": optimizer.state_dict(),
                "torch": torch.get_rng_state(),
                "numpy": np.random.get_state()[1].tolist(),  # type: ignore[index]
                "python": repr(random.getstate()),
            }
        )

    before = digest()
    report = sanity_check(
        script.model,
        loader(0, 1000),
        script.loss_fn,
        optimizer=optimizer,
        train_step=train_step,
        eval_fn=accuracy if script.task == "classification" else minus_error,
        val_loader=loader(1000, 1790),
        num_classes=10 if script.task == "classification" else None,
        task=script.task,
        steps=100,
    )
    return report, before, digest()


@pytest.mark.parametrize("twin", [classifier, regressor], ids=["classifier", "regressor"])
def test_a_healthy_script_passes(twin: Callable[[], Digits]) -> None:
    report, before, after = check(twin())
    assert report.passed, report
    assert report.causes == []
    assert before == after
    assert report.state_before == report.state_after


@pytest.mark.parametrize(
    ("twin", "break_it", "cause"),
    [
        (classifier, shuffle_labels, "labels have nothing to do with their inputs: shuffled"),
        (classifier, forget_to_clear, "zero_grad is missing"),
        (classifier, softmax_twice, "softmax (or sigmoid) before cross-entropy"),
        (classifier, heat_head, "the initial loss is far above ln K: a hot last layer"),
        (regressor, flatten_targets, "outputs are compared with all targets: shapes broadcast"),
    ],
    ids=["labels shuffled", "zero_grad missing", "softmax twice", "head times 50", "broadcast"],
)
def test_a_broken_script_fails_with_its_cause_first(
    twin: Callable[[], Digits], break_it: Callable[[Digits], None], cause: str
) -> None:
    script = twin()
    break_it(script)
    report, before, after = check(script)
    assert not report.passed
    assert report.causes[0].startswith(cause), report
    assert before == after
