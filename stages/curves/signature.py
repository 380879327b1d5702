"""What a curve can show, and what the user knows beside the log."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Signature:
    """Something that a curve shows.

    evidence: sentences with steps and values; steps: where a chart marks it.
    is_fault: False for a remark, which healthy runs show too and which changes no exit code.
    """

    id: str
    title: str
    evidence: tuple[str, ...]
    steps: tuple[float, ...] = ()
    is_fault: bool = True


@dataclass(frozen=True)
class NotJudged:
    """A signature that this log cannot show, and what it lacks."""

    id: str
    reason: str


Finding = Signature | NotJudged


@dataclass(frozen=True)
class Known:
    """What no log tells.

    prior: the loss, in nats, of a model that knows only how often each answer is given;
    classes: among how many the model chooses, for the prior ln K of balanced ones.
    """

    classes: int | None = None
    prior: float | None = None
    max_grad_norm: float | None = None

    @property
    def prior_loss(self) -> float | None:
        if self.prior is not None:
            return self.prior
        return math.log(self.classes) if self.classes else None


def show(value: float) -> str:
    """A value as evidence shows it."""
    return f"{value:.4g}"


def at(step: float) -> str:
    """A step as evidence names it."""
    return f"{step:g}" if step % 1 else f"{step:.0f}"
