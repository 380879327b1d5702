"""What a count of few trials says about a rate."""

import math
from statistics import NormalDist


def upper_bound(events: int, trials: int) -> float:
    """The one-sided 95 % upper bound of a rate after `events` in `trials` (Wilson score, 1927).

    1.0 when there were no trials: nothing is known then.
    """
    if not trials:
        return 1.0
    z = NormalDist().inv_cdf(0.95)
    rate, share = events / trials, z * z / trials
    spread = z * math.sqrt((rate * (1 - rate) + share / 4) / trials)
    return min((rate + share / 2 + spread) / (1 + share), 1.0)


def tell_rate(events: int, trials: int) -> str:
    """`0 of 58 (95 % upper bound 4.5 %)`."""
    return f"{events} of {trials} (95 % upper bound {100 * upper_bound(events, trials):.1f} %)"
