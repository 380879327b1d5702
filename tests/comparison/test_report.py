"""What is said of arms follows from what they showed."""

import math

import pytest

from stages.comparison.declared import Arm
from stages.comparison.report import against, cell, compose_command
from stages.comparison.training import highest_rise


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, "without spike"),
        ({"spike": 1}, "still spike"),
        ({"flat": 1}, "without spike; new: flat"),
    ],
    ids=["gone", "still there", "another"],
)
def test_an_arm_is_told_against_the_first(found: dict[str, int], told: str) -> None:
    assert against({"spike": 1}, found, 1) == told
    assert against({}, {}, 1) == "-"


def test_of_several_seeds_it_is_counted() -> None:
    assert against({"spike": 4}, {"spike": 1}, 4) == "still spike (1 of 4)"
    assert against({"spike": 3}, {}, 4) == "without spike (3 of 4)"


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("last_loss", [0.123456], "0.1235"),
        ("last_loss", [1.0, 2.0, 6.0], "3 ± 2.6"),
        ("last_loss", [math.nan], "nan"),
        ("last_loss", [math.inf, 1.0], "inf ± nan"),
        ("skipped", [16.0], "16"),
        ("zero_gradient", [0.9637], "96.4 %"),
        ("zero_gradient", [0.1, 0.3], "20.0 ± 14.1 %"),
        ("unmoved", [math.nan], "-"),
    ],
    ids=[
        "loss",
        "over seeds",
        "no number",
        "one without",
        "count",
        "share",
        "shares",
        "not measured",
    ],
)
def test_a_number_is_shown_as_what_it_is(name: str, values: list[float], shown: str) -> None:
    assert cell(name, values) == shown


def test_a_rise_is_over_the_median_before() -> None:
    assert highest_rise([4.0, 2.0, 2.0, 6.0, 1.0]) == 3.0
    assert highest_rise([3.0, 2.0, 1.0]) == 1.0
    assert highest_rise([2.0, math.nan, math.inf, 3.0]) == 1.5
    assert highest_rise([]) == 1.0


def test_the_last_override_of_a_key_is_the_one_that_counts() -> None:
    arm = Arm("a", ["train.learning_rate=0.3", "run.seed=1", "train.learning_rate=0.03"])
    assert compose_command(arm) == "holdshort compose train.learning_rate=0.03 run.seed=1"
