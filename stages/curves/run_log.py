"""The curves of a training run, whoever logged them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One quantity over the steps, in the order in which it was logged.

    steps, values: float64 [N]; values may be NaN or infinite.
    """

    name: str
    steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_finite(self) -> NDArray[np.bool_]:
        return np.isfinite(self.values)

    def finite(self) -> "Series":
        """Without the values that are NaN or infinite."""
        kept = self.is_finite
        return Series(self.name, self.steps[kept], self.values[kept])

    def last_of_each_step(self) -> "Series":
        """In the order of the steps; of several values of a step, the one that was logged last."""
        _, reversed_first = np.unique(self.steps[::-1], return_index=True)
        last = len(self) - 1 - reversed_first
        return Series(self.name, self.steps[last], self.values[last])


@dataclass(frozen=True)
class RunLog:
    """What was read of a run.

    form: what kind of log it is, in words.
    logged_loss: every training loss in the order logged; `loss`: one of each step, in their order.
    x_label: what the steps count ("step", "epoch" or "line").
    max_steps: how many steps were planned, if the log tells.
    remarks: what was left out, merged or put right, counted.
    """

    form: str
    logged_loss: Series | None
    validation: tuple[Series, ...]
    learning_rate: Series | None
    grad_norm: Series | None
    accuracy: Series | None
    validation_accuracy: Series | None
    x_label: str
    max_steps: float | None
    remarks: tuple[str, ...] = ()

    @property
    def loss(self) -> Series | None:
        return None if self.logged_loss is None else self.logged_loss.last_of_each_step()

    @property
    def series(self) -> list[Series]:
        """All that were found."""
        found = (self.loss, *self.validation, self.learning_rate, self.grad_norm)
        return [one for one in (*found, self.accuracy, self.validation_accuracy) if one is not None]
