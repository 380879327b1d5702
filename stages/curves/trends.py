"""Numbers that tell a trend from noise. All pure; float64 [N] in the order of the steps."""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .run_log import Floats

FEWEST = 10
"""Losses below which no shape is judged; SageMaker's LossNotDecreasing compares over 10 steps."""
FLOOR = 0.01
"""Of where the loss began: below it, a loss that doubles has changed nothing that matters."""
MAD_TO_SIGMA = 1.4826
FEWEST_FOR_NOISE = 8
MEDIAN_EFFICIENCY = 1.2533
"""sqrt(pi / 2): the standard error of a median over that of a mean, of normal noise."""


def ema(values: Floats, half_life: float) -> Floats:
    """Exponential moving average, corrected for its start; what is not finite is passed over."""
    decay = 0.5 ** (1 / half_life)
    smooth, total, weight = np.empty_like(values), 0.0, 0.0
    for i, value in enumerate(values):
        if np.isfinite(value):
            total = decay * total + (1 - decay) * value
            weight = decay * weight + (1 - decay)
        smooth[i] = total / weight if weight else np.nan
    return smooth


def running_median(values: Floats, width: int) -> Floats:
    """Medians of `width` (odd) values around each; fewer at both ends."""
    half = width // 2
    smooth = np.empty_like(values)
    if len(values) >= width:
        smooth[half : len(values) - half] = np.median(sliding_window_view(values, width), axis=1)
    for i in [*range(min(half, len(values))), *range(max(len(values) - half, 0), len(values))]:
        smooth[i] = np.median(values[max(i - half, 0) : i + half + 1])
    return smooth


def noise_of(values: Floats) -> float:
    """Standard deviation of what differs from value to value, blind to trends and outliers."""
    differences = np.diff(values)
    if not len(differences):
        return 0.0
    deviations = np.abs(differences - np.median(differences))
    return float(MAD_TO_SIGMA * np.median(deviations) / np.sqrt(2))


@dataclass(frozen=True)
class Change:
    """How far the level of the last fifth lies below that of the first, relative to the first.

    error: the standard error of `fall`.
    """

    fall: float
    error: float

    @property
    def least(self) -> float:
        return self.fall - 2 * self.error

    @property
    def most(self) -> float:
        return self.fall + 2 * self.error


def change_of(values: Floats) -> Change:
    """Of at least 10 values, positive on average."""
    fifth = max(len(values) // 5, 3)
    first, last = values[:fifth], values[-fifth:]
    error = np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / fifth)
    return Change(float(1 - last.mean() / first.mean()), float(error / first.mean()))


@dataclass(frozen=True)
class Shape:
    """A loss curve made ready to be judged: finite, and on a logarithmic axis.

    start: the level of the first three; logs: natural logarithms, floored at FLOOR of the start;
    noise: standard deviation of logs from step to step, above the floor; smooth: running medians
    of logs over `width` values.
    """

    steps: Floats
    values: Floats
    logs: Floats
    start: float
    noise: float
    smooth: Floats
    width: int

    def __len__(self) -> int:
        return len(self.values)

    @property
    def smooth_noise(self) -> float:
        """The standard error of `smooth`."""
        return MEDIAN_EFFICIENCY * self.noise / float(np.sqrt(self.width))


def shape_of(steps: Floats, values: Floats) -> Shape:
    """Of finite values, none below 0, and not all 0."""
    start = float(np.median(values[:3])) or float(values.max())
    logs = np.log(np.maximum(values, FLOOR * start))
    width = min(max(len(values) // 20, 2), 25) * 2 + 1
    above = values > FLOOR * start
    counted = logs[above] if above.sum() >= FEWEST_FOR_NOISE else logs
    return Shape(steps, values, logs, start, noise_of(counted), running_median(logs, width), width)
