"""What differs is named with both values, and with what it means for the promise."""

import pytest

from stages.provenance.drift import (
    Drift,
    Meaning,
    compare,
    compare_environment,
    compare_params,
    promise,
)


def test_what_is_gone_new_or_another_is_named_with_both_values() -> None:
    then, now = {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 4, "d": 5}
    assert list(compare("data", then, now, "another run")) == [
        Drift("data", "b", "2", "(missing)", "another run"),
        Drift("data", "c", "3", "4", "another run"),
        Drift("data", "d", "(not there then)", "5", "another run"),
    ]
    assert list(compare("data", then, then, "another run")) == []


def test_only_params_that_the_training_reads_make_another_run() -> None:
    then = {"train.learning_rate": 1, "gates.gradient.steps": 1, "trainer": 1, "run.seed": 1}
    now = dict.fromkeys(then, 2)
    meanings = {d.name: d.meaning for d in compare_params(then, now, ["train", "run.seed"])}
    assert meanings == {
        "gates.gradient.steps": "nothing",
        "run.seed": "another run",
        "train.learning_rate": "another run",
        "trainer": "nothing",
    }


def test_another_environment_moves_bits() -> None:
    then = {"cpu_threads": 1, "packages": {"torch": "2.13.0"}}
    now = {"cpu_threads": 2, "packages": {"torch": "2.12.0"}}
    assert list(compare_environment(then, now)) == [
        Drift("environment", "cpu_threads", "1", "2", "other bits"),
        Drift("environment", "packages.torch", "2.13.0", "2.12.0", "other bits"),
    ]


@pytest.mark.parametrize(
    ("meanings", "words"),
    [
        ([], "the same bits are expected"),
        (["nothing"], "the same bits are expected"),
        (["nothing", "other bits"], "statistically equal"),
        (["other bits", "another run", "nothing"], "not comparable"),
    ],
)
def test_the_worst_decides_the_promise(meanings: list[Meaning], words: str) -> None:
    drifts = [Drift("data", "a", "1", "2", meaning) for meaning in meanings]
    assert promise(drifts).startswith(words)
