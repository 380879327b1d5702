"""The gradient at the logits tells kind, weight, smoothing, sign and shift of a loss, exactly."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from stages.sanity.subject import Subject
from stages.sanity.targets.measure import run_target_probe
from stages.sanity.targets.probe import TargetProbe
from stages.sanity.tasks import Task

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


def probe(
    loss_fn: Loss, labels: torch.Tensor, shape: tuple[int, ...], task: Task = "classification"
) -> TargetProbe:
    """Of a linear model from [N, 3] (or [N, T, 3]) to `shape`."""
    torch.manual_seed(0)
    model = nn.Linear(3, shape[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    subject = Subject(model, loss_fn, optimizer, None)
    batch = (torch.randn(*shape[:-1], 3), labels)
    found = run_target_probe(subject, batch, optimizer, task, None, nullcontext, lambda: 1.0)
    assert found is not None
    return found


CLASSES = torch.tensor([0, 3, 1, 2, 4, 0, 2, 3])


@pytest.mark.parametrize(
    ("loss_fn", "kind", "sign", "scale", "smoothing"),
    [
        (nn.CrossEntropyLoss(), "cross-entropy", 1, 1.0, 0.0),
        (nn.CrossEntropyLoss(label_smoothing=0.2), "cross-entropy", 1, 1.0, 0.2),
        (nn.CrossEntropyLoss(reduction="sum"), "cross-entropy", 1, 8.0, 0.0),
        (lambda z, y: -3 * functional.cross_entropy(z, y), "cross-entropy", -1, 3.0, 0.0),
        (
            lambda z, y: functional.cross_entropy(z.softmax(1), y),
            "softmax before cross-entropy",
            1,
            None,
            None,
        ),
        (nn.NLLLoss(), "negative log-likelihood without log_softmax", 1, None, None),
        (
            lambda z, y: functional.mse_loss(z, functional.one_hot(y, 5).float()),
            "mean squared error of logits",
            1,
            None,
            None,
        ),
    ],
    ids=["mean", "smoothed", "sum", "negated", "softmax", "no log", "squared"],
)
def test_a_loss_over_classes_is_recognised(
    loss_fn: Loss, kind: str, sign: int, scale: float | None, smoothing: float | None
) -> None:
    found = probe(loss_fn, CLASSES, (8, 5))
    assert (found.kind, found.sign) == (kind, sign)
    assert found.scale == (None if scale is None else pytest.approx(scale, rel=1e-4))
    assert found.smoothing == (None if smoothing is None else pytest.approx(smoothing, abs=1e-3))


def test_labels_that_are_ignored_or_moved_are_counted() -> None:
    ignored = probe(nn.CrossEntropyLoss(ignore_index=2), CLASSES, (8, 5))
    assert (ignored.missing, ignored.missing_class) == (2, 2)
    rolled = probe(lambda z, y: functional.cross_entropy(z, y.roll(1)), CLASSES, (8, 5))
    assert rolled.aligned is not None and rolled.aligned < 0.5


def test_a_shift_within_rows_is_measured() -> None:
    labels = torch.randint(5, (4, 12), generator=torch.Generator().manual_seed(0))

    def shifting(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(z[:, :-1].flatten(0, 1), y[:, 1:].flatten())

    found = probe(shifting, labels, (4, 12, 5), "tagging")
    assert (found.shift, found.aligned, found.active) == (1, 1.0, 44)


@pytest.mark.parametrize(
    ("loss_fn", "labels", "local", "scale"),
    [
        (nn.MSELoss(), (8, 1), True, 1.0),
        (nn.MSELoss(reduction="sum"), (8, 1), True, 8.0),
        (nn.MSELoss(), (8,), False, None),
    ],
    ids=["mean", "sum", "broadcast"],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_squared_error_is_recognised(
    loss_fn: Loss, labels: tuple[int, ...], local: bool, scale: float | None
) -> None:
    y = torch.randn(labels, generator=torch.Generator().manual_seed(1))
    found = probe(loss_fn, y, (8, 1), "regression")
    assert found.local is local
    if scale is not None:
        assert (found.kind, found.aligned) == ("squared error", 1.0)
        assert found.scale == pytest.approx(scale, rel=1e-4)
