"""Losses that are not the mean cross-entropy of the next token, though most of them go down."""

from collections.abc import Callable

import torch
from torch.nn import functional

from ..chat.labels import IGNORE_INDEX
from ..chat.token_store import read_meta
from ..training.loss import LossFunction
from .fault import Fault, Gate, own_tokens, swap

Change = Callable[[LossFunction, torch.Tensor, torch.Tensor, int], torch.Tensor]
"""change(loss, logits, labels, num_items), where `loss` is the sound one."""


def _fault(
    name: str,
    numbers: tuple[int, ...],
    checks: tuple[str, ...],
    cause: str,
    change: Change,
    gate: Gate = "gradient_probe",
) -> Fault:
    def changed(loss: LossFunction) -> LossFunction:
        return lambda logits, labels, num_items: change(loss, logits, labels, num_items)

    return Fault(name, "loss", numbers, gate, checks, cause, swap(loss=changed))


def _not_shifted(
    loss: LossFunction, logits: torch.Tensor, labels: torch.Tensor, n: int
) -> torch.Tensor:
    longer = torch.cat([logits, logits[:, -1:]], 1)
    return loss(longer, torch.cat([labels[:, :1], labels], 1), n)


def _stop_ignored(
    loss: LossFunction, logits: torch.Tensor, labels: torch.Tensor, n: int
) -> torch.Tensor:
    return loss(logits, labels.where(labels != read_meta().stop_token_id, IGNORE_INDEX), n)


def _squared(
    loss: LossFunction, logits: torch.Tensor, labels: torch.Tensor, n: int
) -> torch.Tensor:
    targets = labels[:, 1:]
    supervised = targets != IGNORE_INDEX
    likely = logits[:, :-1][supervised].float().softmax(-1)
    chosen = functional.one_hot(targets[supervised], logits.shape[-1])
    return (likely - chosen).square().sum() / n


def _clamped(
    loss: LossFunction, logits: torch.Tensor, labels: torch.Tensor, n: int
) -> torch.Tensor:
    own = own_tokens(labels)
    return loss(logits, labels, own).clamp(max=1.0) * own / n


def _smoothed(
    loss: LossFunction, logits: torch.Tensor, labels: torch.Tensor, n: int
) -> torch.Tensor:
    flat = logits[:, :-1].flatten(0, 1).float()
    total = functional.cross_entropy(
        flat, labels[:, 1:].flatten(), reduction="sum", label_smoothing=0.1
    )
    return total / n


SCALED = "the loss is scaled"
WEIGHT = ("target_weight_error",)

FAULTS = (
    _fault(
        "shifted_twice",
        (25,),
        ("targets_wrong",),
        "labels are shifted twice",
        lambda loss, logits, labels, n: loss(logits[:, :-1], labels[:, 1:], n),
    ),
    _fault("not_shifted", (26,), ("targets_wrong",), "labels are not shifted", _not_shifted),
    _fault(
        "stop_is_ignored",
        (27,),
        ("targets_untrained",),
        "supervised tokens are not trained on",
        _stop_ignored,
    ),
    _fault(
        "softmax_twice",
        (30,),
        ("loss_error",),
        "the loss is not the mean cross-entropy",
        lambda loss, logits, labels, n: loss(logits.softmax(-1), labels, n),
        gate="overfit_gate",
    ),
    _fault(
        "squared_error",
        (31,),
        ("loss_error",),
        "the loss is not the mean cross-entropy",
        _squared,
        gate="overfit_gate",
    ),
    _fault(
        "summed",
        (32, 33),
        WEIGHT,
        SCALED,
        lambda loss, logits, labels, n: loss(logits, labels, n) * n,
    ),
    _fault(
        "wrong_sign",
        (34,),
        ("targets_raised", "targets_wrong"),
        "the loss has the wrong sign",
        lambda loss, logits, labels, n: -loss(logits, labels, n),
    ),
    _fault("clamped", (35,), ("targets_untrained",), "supervised tokens are not", _clamped),
    _fault("smoothed", (36,), WEIGHT, SCALED, _smoothed),
    _fault(
        "scaled_down",
        (37, 38),
        WEIGHT,
        SCALED,
        lambda loss, logits, labels, n: loss(logits, labels, n) * 1e-4,
    ),
    _fault(
        "scaled_up",
        (72,),
        WEIGHT,
        SCALED,
        lambda loss, logits, labels, n: loss(logits, labels, n) * 1e3,
    ),
)
