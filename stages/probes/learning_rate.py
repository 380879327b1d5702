"""Is the learning rate that was applied the one that was asked for, at every step?

The closed forms are written down here a second time, apart from the schedule that is probed.
"""

import math
from collections.abc import Sequence


def expected_rate(step: int, peak: float, kind: str, warmup: int, steps: int) -> float:
    """The rate of optimizer step 0, 1, ...: `step / warmup` of the peak, then the decay."""
    if step < warmup:
        return peak * step / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    if kind == "cosine":
        return peak * math.cos(math.pi / 2 * done) ** 2
    if kind == "linear":
        return peak * (1 - done)
    assert kind == "constant_with_warmup", kind
    return peak


def trace_error(
    applied: Sequence[float], peak: float, kind: str, warmup: int, steps: int
) -> tuple[float, int]:
    """(largest distance of the applied rates to the closed form over the peak, its step)."""
    errors = [
        abs(rate - expected_rate(step, peak, kind, warmup, steps)) / peak
        for step, rate in enumerate(applied)
    ]
    worst = max(range(len(errors)), key=errors.__getitem__)
    return errors[worst], worst
