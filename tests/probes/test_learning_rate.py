"""The closed form of the rate, written down a second time, is that of the schedule."""

import math

import pytest

from stages.probes.learning_rate import expected_rate, trace_error
from stages.training.schedule import schedule_factor

KINDS = ("cosine", "linear", "constant_with_warmup")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 50), (5, 50), (49, 50), (15, 300)])
def test_the_closed_form_is_that_of_the_schedule(kind: str, warmup: int, steps: int) -> None:
    factor = schedule_factor(kind, warmup, steps)
    applied = [0.003 * factor(step) for step in range(steps)]
    expected = [expected_rate(step, 0.003, kind, warmup, steps) for step in range(steps)]
    assert expected == pytest.approx(applied, rel=0, abs=1e-12 * 0.003)
    assert trace_error(applied, 0.003, kind, warmup, steps)[0] < 1e-12


def test_the_rates_of_a_small_run_are_these() -> None:
    rates = [expected_rate(step, 8.0, "linear", 2, 6) for step in range(6)]
    assert rates == [0.0, 4.0, 8.0, 6.0, 4.0, 2.0]
    assert expected_rate(4, 8.0, "cosine", 2, 6) == pytest.approx(4.0)


def test_an_unknown_schedule_is_a_mistake_in_the_code() -> None:
    with pytest.raises(AssertionError, match="polynomial"):
        expected_rate(5, 1.0, "polynomial", 0, 10)


def test_the_worst_step_is_named_with_its_distance_over_the_peak() -> None:
    applied = [0.0, 4.0, 8.0, 6.0, 5.0, 2.0]
    assert trace_error(applied, 8.0, "linear", 2, 6) == (0.125, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_that_steps_twice_is_seen(kind: str) -> None:
    factor = schedule_factor(kind, 5, 50)
    applied = [factor(2 * step) for step in range(10)]
    assert trace_error(applied, 1.0, kind, 5, 50)[0] > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_that_never_steps_is_seen(kind: str) -> None:
    assert trace_error([0.0] * 10, 1.0, kind, 5, 50)[0] > 0.9


def test_a_schedule_that_steps_before_the_optimizer_is_seen() -> None:
    factor = schedule_factor("cosine", 5, 50)
    applied = [factor(step + 1) for step in range(10)]
    error, worst = trace_error(applied, 1.0, "cosine", 5, 50)
    assert error == pytest.approx(0.2)
    assert worst < 5


def test_a_schedule_without_warm_up_is_seen() -> None:
    factor = schedule_factor("cosine", 0, 50)
    assert trace_error([factor(step) for step in range(10)], 1.0, "cosine", 5, 50) == (1.0, 0)


def test_a_rate_that_is_infinite_is_seen() -> None:
    assert trace_error([0.0, math.inf], 1.0, "linear", 0, 10) == (math.inf, 1)
