"""What a planted fault is: what it breaks, where it cannot, and which check of a gate must see it.

A fault swaps one of the parts that a training is put together from, or a value of params. It is
planted in what a gate builds for itself, so that nothing of the project changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from ..config.schema import Params
from ..training.loss import count_targets
from ..training.setup import Parts

Kind = Literal["labels", "loss", "step", "model", "optimizer", "params"]
Gate = Literal["overfit_gate", "gradient_probe"]
GATES: tuple[Gate, ...] = ("overfit_gate", "gradient_probe")
Plant = Callable[[Parts, Params], tuple[Parts, Params]]
Applies = Callable[[Params], str | None]
"""The reason why a fault cannot be planted in a run of these params, or None."""


class DoesNotApply(Exception):
    """The model has nothing in which this fault could be planted; the message says what."""


def everywhere(params: Params) -> str | None:
    return None


@dataclass(frozen=True)
class Fault:
    """One way to break a training.

    numbers: in the list of the catalogue, which may be none; checks: rules of `gate`, of which one
    at least must not pass; cause: words of the cause that the gate must then name; missed: why the
    gates are known to let it through.
    """

    name: str
    kind: Kind
    numbers: tuple[int, ...]
    gate: Gate
    checks: tuple[str, ...]
    cause: str
    plant: Plant
    applies: Applies = everywhere
    missed: str = ""


def swap(**changes: Callable[[Any], Any]) -> Plant:
    """A plant that puts `change(part)` in the place of each named part."""

    def plant(parts: Parts, params: Params) -> tuple[Parts, Params]:
        swapped: dict[str, Any] = {
            name: change(getattr(parts, name)) for name, change in changes.items()
        }
        return replace(parts, **swapped), params

    return plant


def train_values(**values: Any) -> Plant:
    """A plant that sets keys of `train`."""

    def plant(parts: Parts, params: Params) -> tuple[Parts, Params]:
        return parts, replace(params, train=replace(params.train, **values))

    return plant


def own_tokens(labels: torch.Tensor) -> int:
    """Supervised tokens of one micro-batch, at least 1."""
    return max(count_targets(labels), 1)
