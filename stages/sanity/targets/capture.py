"""One training step on made-up outputs, and the gradient that reaches them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..batches import Batch, first_tensor, input_of
from ..outputs import OutputKind, replaced_logits
from ..subject import Subject
from ..tasks import Task

CONFIDENCE = 3.0
"""Standard deviation of the made-up logits."""

MakeOutputs = Callable[[torch.Tensor], torch.Tensor]
"""From the model's own outputs to those that take their place."""


@dataclass(frozen=True)
class Captured:
    """One training step: logits as the loss saw them, and their gradient.

    calls: rows of each call of the model; given: what it was given, all calls together, None where
    that has no rows.
    """

    logits: torch.Tensor
    gradient: torch.Tensor
    calls: list[int]
    given: torch.Tensor | None


@dataclass(frozen=True)
class TrialStep:
    """The user's training step, to be taken on other outputs than the model's own.

    site: the module whose outputs are replaced; undone: a context after which all is as before;
    loss_scale: by what a gradient scaler multiplies the loss.
    """

    subject: Subject
    site: nn.Module
    optimizer: Optimizer
    undone: Callable[[], Any]
    loss_scale: Callable[[], float]

    def capture(self, batch: Batch, make: MakeOutputs) -> Captured | None:
        """Take the step and undo it; None where no gradient reaches the outputs."""
        given: list[torch.Tensor] = []

        def saw(module: nn.Module, arguments: Any, named: Any) -> None:
            first = first_tensor(arguments, named)
            if first is not None:
                given.append(first.detach().clone())

        with self.undone():
            handle = self.subject.model.register_forward_pre_hook(saw, with_kwargs=True)
            try:
                with replaced_logits(self.site, make) as (seen, gradients):
                    scale = self.loss_scale()
                    self.subject.step(batch, self.optimizer)
            finally:
                handle.remove()
        if not gradients:
            return None
        used = sorted(gradients)
        if len({tuple(seen[call].shape[1:]) for call in used}) > 1:
            return None
        together = len(given) == len(seen) and len({one.shape[1:] for one in given}) == 1
        return Captured(
            torch.cat([seen[call] for call in used]).double(),
            torch.cat([gradients[call] for call in used]).double() / scale,
            [len(seen[call]) for call in used],
            torch.cat([given[call] for call in used]) if together else None,
        )


def row_order(batch: Batch, given: torch.Tensor | None) -> torch.Tensor | None:
    """Which rows of the batch the model was given, in its order: int64; None where unknown.

    A step may deal rows to its micro-batches in any way; rows that it changes are not found.
    """
    rows = input_of(batch)
    if rows is None or given is None or given.shape[1:] != rows.shape[1:]:
        return None
    known: dict[bytes, int] = {}
    for number, row in enumerate(rows.detach().cpu()):
        known.setdefault(row.contiguous().numpy().tobytes(), number)
    if len(known) < len(rows) or given.dtype != rows.dtype:
        return None
    found = [known.get(row.contiguous().numpy().tobytes()) for row in given.cpu()]
    return None if None in found else torch.tensor(found)


def confident(kind: OutputKind, task: Task, class_axis: int) -> MakeOutputs:
    """Confident outputs of the same kind as the model's own; each call draws others."""
    generator = torch.Generator().manual_seed(0)

    def make(own: torch.Tensor) -> torch.Tensor:
        drawn = CONFIDENCE * torch.randn(own.shape, generator=generator).to(own.device)
        if kind == "probabilities":
            if task in ("binary", "multilabel"):
                return drawn.sigmoid().clamp(0.02, 0.98)
            return drawn.softmax(class_axis)
        return drawn.log_softmax(class_axis) if kind == "log-probabilities" else drawn

    return make


def spread_around(targets: torch.Tensor) -> MakeOutputs:
    """Outputs of a regression, twice as far from the middle of its targets as these are."""
    generator = torch.Generator().manual_seed(0)
    middle = float(targets.float().mean())
    spread = max(float(targets.float().std()) if targets.numel() > 1 else 1.0, 1e-3)

    def make(own: torch.Tensor) -> torch.Tensor:
        return middle + 2 * spread * torch.randn(own.shape, generator=generator).to(own.device)

    return make
