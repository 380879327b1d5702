"""Where does the loss rise: at the start, at once, for long, to the end, or again and again?"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .run_log import Floats, Series
from .signature import Finding, NotJudged, Signature, at, show
from .trends import FEWEST, MEDIAN_EFFICIENCY, Shape, running_median

SPIKE_SIGMA = 6.0
SPIKE_WINDOW = 128
"""OLMo-core skips a step whose loss is 6 standard deviations above the mean of the last 128."""
SPIKE_HISTORY = 32
SPIKE_LEVEL = 16
SPIKE_RISE = 0.05
"""Of the loss at the start: smaller ones are outliers of a loss that is all but 0."""
DIVERGED = 1.5
"""trainproof: the end is more than 1.5 times the lowest."""
END_SIGMA = 6.0
"""How far beyond noise the end must lie above the lowest of many medians, itself some 3 below."""
RISE_SIGMA = 8.0
"""The same between the lowest and the highest of many."""
ALTERNATES = -0.8
"""Correlation of neighbouring changes: -0.5 in noise, -1 where each undoes the one before."""
SWING = 1.25
SWINGS = 3
"""AutoTrainer counts reversals that are large; three of 25 % and more are no accident."""


def judge_rises(shape: Shape, deliberate: NDArray[np.bool_]) -> Iterator[Finding]:
    """Rises: at the start, at once, for long, to the end, or again and again."""
    diverged = divergence(shape, deliberate)
    early = None if diverged else early_rise(shape)
    begin = len(shape) // 5 if early else 0
    spiked = spikes(shape, deliberate, begin, diverged.steps[0] if diverged else np.inf)
    swings = None
    if deliberate.any():
        yield NotJudged("swings of the loss", "the learning rate was raised again, and it with it")
    elif len(shape) >= 3 * FEWEST:
        swings = oscillation(shape)
        if not (diverged or early or spiked or swings) and (hump := long_rise(shape)):
            yield hump
    yield from (one for one in (diverged, early, swings, spiked) if one)
    if len(shape) < SPIKE_HISTORY:
        yield NotJudged("spike by 6 sigma", f"{SPIKE_HISTORY} losses are needed before it")


def limit_of(shape: Shape, factor: float, sigma: float) -> float:
    """The least rise of a smoothed logarithm that is neither small nor noise."""
    return max(float(np.log(factor)), sigma * shape.smooth_noise)


def rises_with_rate(rate: Series | None, steps: Floats) -> NDArray[np.bool_]:
    """Steps at which a loss may rise, for the learning rate was raised again (warm restarts).

    They last a tenth of the run from each step where the rate rises after it had fallen.
    """
    allowed = np.zeros(len(steps), bool)
    if rate is None or len(rate) < 2:
        return allowed
    values = np.nan_to_num(rate.values)
    had_fallen = np.maximum.accumulate(values)[:-1] > 1.02 * values[:-1]
    rising = np.flatnonzero((values[1:] > 1.02 * values[:-1]) & had_fallen)
    lasts = 0.1 * (steps[-1] - steps[0])
    for i in rising:
        allowed |= (steps >= rate.steps[i]) & (steps <= rate.steps[i + 1] + lasts)
    return allowed


def divergence(shape: Shape, deliberate: NDArray[np.bool_]) -> Signature | None:
    """The end lies far above the lowest level, or above the start."""
    tail = max(len(shape) // 10, 3)
    end = float(np.median(shape.logs[-tail:]))
    lowest = int(np.argmin(shape.smooth))
    begin = float(np.median(shape.logs[:tail]))
    error = MEDIAN_EFFICIENCY * shape.noise * np.sqrt(2 / tail)
    rose = end - shape.smooth[lowest] > limit_of(shape, DIVERGED, END_SIGMA)
    ends_above = end - begin > max(np.log(1.1), END_SIGMA * error)
    if not ends_above and (not rose or deliberate.any()):
        return None
    low = float(np.exp(shape.smooth[lowest]))
    evidence = (
        f"the last {tail} losses are {show(np.exp(end))} at the median, the lowest level is "
        f"{show(low)} about step {at(shape.steps[lowest])}, the first {tail} are "
        f"{show(np.exp(begin))}",
    )
    begins = float(shape.steps[lowest])
    return Signature("divergence", "the loss rises and does not come back", evidence, (begins,))


def early_rise(shape: Shape) -> Signature | None:
    """In the first fifth, the loss rises far above its start before it falls."""
    zone = max(len(shape) // 5, 5)
    begin = float(np.median(shape.logs[:2]))
    early = running_median(shape.logs[: zone + 1], 3)[:zone]
    peak = int(np.argmax(early))
    limit = max(np.log(DIVERGED), SPIKE_SIGMA * 0.75 * shape.noise)
    if early[peak] - begin < limit or early[peak] - shape.smooth[peak:].min() < limit:
        return None
    evidence = (
        f"it begins at {show(np.exp(begin))} and is {show(np.exp(early[peak]))} about step "
        f"{at(shape.steps[peak])}, before it falls",
    )
    return Signature(
        "early_spike", "the loss rises before it falls", evidence, (float(shape.steps[peak]),)
    )


def spikes(
    shape: Shape, deliberate: NDArray[np.bool_], begin: int, lowest: float
) -> Signature | None:
    """Losses far above those before them; neighbours within 8 steps are one spike.

    lowest: the step from which the loss diverges; of spikes behind it, only the first is one.
    """
    found: list[int] = []
    for i in np.flatnonzero(are_spikes(shape) & ~deliberate):
        if i < begin or (found and (i - found[-1] <= 8 or shape.steps[found[-1]] >= lowest)):
            continue
        found.append(int(i))
    if not found:
        return None
    title = "the loss spikes" if len(found) == 1 else f"the loss spikes {len(found)} times"
    evidence = tuple(describe_spike(shape, i) for i in found)
    return Signature("spike", title, evidence, tuple(float(shape.steps[i]) for i in found))


def are_spikes(shape: Shape) -> NDArray[np.bool_]:
    """OLMo-core's rule, on the loss and on its logarithm: losses of small batches have a long tail.

    Sigma is that of excesses over the level of the time, so that the fall at the start does not
    count as noise. With less history, a loss is a spike that is twice those on both of its sides.
    """
    level = level_before(shape.values)
    least = level + np.maximum(SPIKE_RISE * shape.values[:5].max(), 0.1 * level)
    limit = np.full(len(shape), np.inf)
    for i in range(SPIKE_HISTORY // 4, min(SPIKE_HISTORY, len(shape))):
        before, after = shape.logs[max(i - 8, 0) : i], shape.logs[i + 1 : i + 9]
        around = max(float(np.median(side)) for side in (before, after) if len(side))
        limit[i] = np.exp(around + max(np.log(2), SPIKE_SIGMA * shape.noise))
    late = slice(SPIKE_HISTORY, len(shape))
    log_level = level_before(shape.logs)
    linear = level + SPIKE_SIGMA * excess_before(shape.values - level)
    sigma = np.maximum(excess_before(shape.logs - log_level), shape.noise)
    logarithmic = np.exp(np.minimum(log_level + SPIKE_SIGMA * sigma, 700.0))
    limit[late] = np.maximum(linear, logarithmic)[late]
    neighbour = np.minimum(np.roll(shape.values, 1), np.roll(shape.values, 2))
    is_sudden = shape.values - neighbour > 0.5 * (shape.values - level)
    found: NDArray[np.bool_] = is_sudden & (shape.values > np.maximum(limit, least))
    return found


def level_before(values: Floats) -> Floats:
    """The median of the up to SPIKE_LEVEL values before each; the first is its own."""
    level = values.copy()
    for i in range(1, min(SPIKE_LEVEL, len(values))):
        level[i] = np.median(values[:i])
    if len(values) > SPIKE_LEVEL:
        level[SPIKE_LEVEL:] = np.median(sliding_window_view(values[:-1], SPIKE_LEVEL), axis=1)
    return level


def excess_before(rest: Floats) -> Floats:
    """Standard deviation, from those above 0 alone, of the up to SPIKE_WINDOW values before each.

    Losses far below their level are no concern.
    """
    squares = np.concatenate(([0.0], np.cumsum(2 * np.maximum(rest, 0.0) ** 2)))
    ends = np.arange(len(rest))
    starts = np.maximum(ends - SPIKE_WINDOW, 0)
    sums = np.maximum(squares[ends] - squares[starts], 0.0)
    excess: Floats = np.sqrt(sums / np.maximum(ends - starts, 1))
    return excess


def describe_spike(shape: Shape, i: int) -> str:
    before, after = shape.values[max(i - SPIKE_WINDOW, 0) : i], shape.values[i + 1 : i + 11]
    told = (
        f"step {at(shape.steps[i])}: loss {show(shape.values[i])}; the {len(before)} before it are "
        f"{show(before.mean())} on average (standard deviation {show(before.std())})"
    )
    if len(after):
        told += f", the {len(after)} behind it {show(float(np.median(after)))} at the median"
    return told


def long_rise(shape: Shape) -> Signature | None:
    """The smoothed loss rises far above what it had reached, and comes back."""
    rise = shape.smooth - np.minimum.accumulate(shape.smooth)
    peak = int(np.argmax(rise))
    if rise[peak] < limit_of(shape, DIVERGED, RISE_SIGMA):
        return None
    lowest = int(np.argmin(shape.smooth[: peak + 1]))
    evidence = (
        f"the level rises from {show(np.exp(shape.smooth[lowest]))} (step "
        f"{at(shape.steps[lowest])}) to {show(np.exp(shape.smooth[peak]))} (step "
        f"{at(shape.steps[peak])})",
    )
    where = (float(shape.steps[lowest]), float(shape.steps[peak]))
    return Signature("long_rise", "the loss rises for long before it comes back", evidence, where)


def oscillation(shape: Shape) -> Signature | None:
    """Swings that are not the noise of batches, which the smoothing takes out."""
    changes = np.diff(shape.logs)
    correlation = float(np.corrcoef(changes[:-1], changes[1:])[0, 1]) if changes.any() else 0.0
    if correlation < ALTERNATES and changes.std() > 2 * np.log(SWING):
        evidence = (
            f"its changes have opposite signs by turns (correlation {correlation:.2f}), and are "
            f"{100 * changes.std():.0f} % of it"
        )
        return Signature("oscillation", "the loss jumps up and down from step to step", (evidence,))
    turns = turning_points(shape.smooth, limit_of(shape, SWING, RISE_SIGMA))
    rises = [(low, high) for low, high in pairwise(turns) if shape.smooth[high] > shape.smooth[low]]
    if len(rises) < SWINGS:
        return None
    swings = tuple(
        f"the level rises from {show(np.exp(shape.smooth[low]))} (step {at(shape.steps[low])}) to "
        f"{show(np.exp(shape.smooth[high]))} (step {at(shape.steps[high])})"
        for low, high in rises
    )
    where = tuple(float(shape.steps[high]) for _, high in rises)
    return Signature("oscillation", f"the loss swings up {len(rises)} times", swings, where)


def turning_points(smooth: Floats, limit: float) -> list[int]:
    """Indices between which the curve goes up or down by more than `limit`, by turns."""
    turns, low, high, direction = [0], 0, 0, 0
    for i, value in enumerate(smooth):
        if value < smooth[low]:
            low = i
        if value > smooth[high]:
            high = i
        if direction >= 0 and smooth[high] - value > limit:
            turns.append(high)
            direction, low = -1, i
        elif direction <= 0 and value - smooth[low] > limit:
            turns.append(low)
            direction, high = 1, i
    turns.append(high if direction > 0 else low)
    return turns
