"""How far do numbers of several runs lie apart?"""

import math
from collections.abc import Sequence
from statistics import stdev


def deviation_of(values: Sequence[float]) -> float:
    """Standard deviation with n - 1; NaN of one value, and where one is not finite."""
    told = len(values) > 1 and all(map(math.isfinite, values))
    return stdev(values) if told else math.nan
