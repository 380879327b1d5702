"""Bounds of rates against scipy's."""

import pytest
from scipy.stats import binomtest

from stages.faults.rates import tell_rate, upper_bound


@pytest.mark.parametrize(("events", "trials"), [(0, 7), (0, 58), (1, 40), (3, 1020), (5, 5)])
def test_the_bound_is_the_one_sided_wilson_bound(events: int, trials: int) -> None:
    known = binomtest(events, trials, alternative="less").proportion_ci(0.95, method="wilson").high
    assert upper_bound(events, trials) == pytest.approx(known, abs=1e-12)


def test_without_trials_nothing_is_known() -> None:
    assert upper_bound(0, 0) == 1.0


def test_a_rate_is_told_with_its_count_and_bound() -> None:
    assert tell_rate(0, 58) == "0 of 58 (95 % upper bound 4.5 %)"
