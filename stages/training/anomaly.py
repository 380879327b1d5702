"""Is this step unlike those before it? A loss that is not finite, or that leaps.

A leap is a loss more than six standard deviations above the mean of the last 128 steps, the rule of
OLMo-core's SkipStepOptimizer, once half of a window has been seen. Gradient norms are not held to
it: theirs leap by seven deviations in a healthy run.
"""

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

WINDOW = 128
DEVIATIONS = 6.0


def find_anomaly(loss: float, grad_norm: float, earlier: Sequence[float]) -> str | None:
    """What is wrong with a step, or None. earlier: losses of the steps before it, oldest first."""
    for name, value in (("loss", loss), ("gradient norm", grad_norm)):
        if not math.isfinite(value):
            return f"the {name} is {value}"
    window = [value for value in earlier[-WINDOW:] if math.isfinite(value)]
    if len(window) < WINDOW // 2:
        return None
    mean, deviation = fmean(window), pstdev(window)
    if loss <= mean + DEVIATIONS * deviation:
        return None
    above = f"{(loss - mean) / deviation:.1f} standard deviations" if deviation else "far"
    return f"the loss is {loss:.4g}, {above} above the last {len(window)} steps (mean {mean:.4g})"
