"""Can the model learn one batch by heart, with the user's own step; and without its input?

If it cannot, something between data and optimizer is broken (Karpathy, "A Recipe for Training
Neural Networks": overfit a single batch; verify that zeroed inputs do worse). Where the user's rate
fails and another does not, it is the rate; where none does, it is the wiring.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer

from ..probes.evaluating import keeping_modes
from ..probes.outputs import logits_of
from .batches import Batch, labels_of, moved_labels, with_input
from .outputs import output_kind
from .subject import Subject
from .tasks import Task, side_by_side
from .watching import applied_rates

LEARNED = 0.2
"""Share of the initial loss above its floor: from then on a batch is learned."""
CHECK_EVERY = 10
ADAM_RATES = (3e-3, 3e-2, 3e-4)
SGD_RATES = (0.1, 0.01, 1.0)
"""Rates of the harness's own, tried in this order."""


@dataclass
class Memorised:
    """The loss of the batch, in training mode and without smoothing, before and along the way.

    rates: learning rates that the optimizer was called with; rate: the harness's own, None for the
    user's; floor: the loss that cannot be undercut.
    """

    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    steps: int = 0
    rate: float | None = None
    floor: float = 0.0

    @property
    def final(self) -> float:
        return self.losses[-1]

    @property
    def learned(self) -> float:
        """Share of the loss above its floor that is gone; NaN where the loss is not finite."""
        start, end = self.losses[0] - self.floor, min(self.losses[-3:]) - self.floor
        if not math.isfinite(self.losses[-1]) or not math.isfinite(start):
            return math.nan
        return 1.0 if start <= 0 else 1 - end / start


def memorise(
    subject: Subject,
    batch: Batch,
    optimizer: Optimizer,
    measure: Callable[[], float],
    steps: int,
    rate: float | None = None,
    floor: float = 0.0,
) -> Memorised:
    """Take steps on one batch until it is learned. The caller puts everything back."""
    run = Memorised(rate=rate, floor=floor)
    run.losses.append(measure())
    with applied_rates(rate, 0.0 if rate is not None else None) as seen:
        while run.steps < steps:
            subject.step(batch, optimizer)
            run.steps += 1
            if run.steps % CHECK_EVERY and run.steps < steps:
                continue
            run.losses.append(measure())
            if not math.isfinite(run.final):
                break
            enough = LEARNED * (run.losses[0] - floor)
            if run.final - floor < max(enough, 1e-4) and run.steps >= 2 * CHECK_EVERY:
                break
    run.rates = seen
    return run


def rates_for(optimizer: Optimizer) -> Sequence[float]:
    return SGD_RATES if isinstance(optimizer, SGD) else ADAM_RATES


def blanked(batch: Batch) -> Batch:
    """The same labels after inputs that say nothing: zeros, or one and the same id."""

    def blank(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x) if x.is_floating_point() else torch.full_like(x, int(x.min()))

    return with_input(batch, blank)


def batch_loss(
    subject: Subject, batch: Batch, task: Task | None, num_classes: int | None, shift: int
) -> Callable[[], float]:
    """A function that measures a batch's loss without touching anything.

    Of classes the mean cross-entropy of the logits, without smoothing and whatever the user's loss
    is; else the user's loss. In evaluation mode, unless there is batch normalisation, whose running
    statistics lag behind.
    """
    running = [m for m in subject.model.modules() if isinstance(m, _BatchNorm)]

    def measure() -> float:
        state = torch.get_rng_state()
        buffers = [(b, b.clone()) for m in running for b in m.buffers()]
        try:
            with keeping_modes(subject.model), torch.no_grad():
                subject.model.train(bool(running))
                outputs = subject.forward(batch)
                found = reference_loss(subject, outputs, batch, task, num_classes, shift)
                if found is None:
                    found = float(subject.loss(outputs, batch).detach().float().mean())
            return found
        finally:
            torch.set_rng_state(state)
            for buffer, content in buffers:
                buffer.copy_(content)

    return measure


def reference_loss(
    subject: Subject,
    outputs: object,
    batch: Batch,
    task: Task | None,
    num_classes: int | None,
    shift: int,
) -> float | None:
    """Mean cross-entropy in float64 of logits; None where the task has no classes."""
    labels = labels_of(subject.to_device(batch))
    if task not in ("classification", "tagging", "lm") or labels is None:
        return None
    side = side_by_side(logits_of(outputs), labels, task, num_classes)
    if side is None:
        return None
    target = side.labels
    if shift > 0 and labels.ndim == 2:
        target = moved_labels(labels, shift).reshape(-1)
    known = (target >= 0) & (target < side.logits.shape[1])
    if not bool(known.any()):
        return None
    z = side.logits[known].double()
    if output_kind(z, task) == "probabilities":
        z = z.clamp_min(1e-12).log()
    return float(torch.nn.functional.cross_entropy(z, target[known]))
