"""The self-test of the run that comes with the repository: nothing gets through, nothing alarms."""

import json
from collections import Counter
from pathlib import Path

import pytest

from stages.faults.catalogue import FAULTS, TITLES

from ..conftest import ROOT
from ..project import Project, copy_repository, made_once
from .default import read_record, summary_of

KNOWN = {"positions_zero", "rate_too_low"}
"""Faults that the default run is known to let through; the page says why."""


def test_the_record_holds_every_fault_and_every_number() -> None:
    record = read_record()
    assert list(record["faults"]) == [fault.name for fault in FAULTS]
    assert list(record["list"]) == [str(number) for number in TITLES]


def test_every_fault_that_applies_is_seen_by_its_gate() -> None:
    faults = read_record()["faults"]
    got_through = {
        name
        for name, one in faults.items()
        if one["status"] not in ("caught", "warned", "not_applicable")
    }
    assert got_through == KNOWN
    assert all(one["seen_by"] for one in faults.values() if one["status"] in ("caught", "warned"))


def test_the_cause_is_named_for_at_least_95_percent() -> None:
    named = Counter(
        one["cause_named"] for one in read_record()["faults"].values() if one["status"] == "caught"
    )
    assert named[True] / (named[True] + named[False]) >= 0.95


def test_no_sound_variation_raises_an_alarm_and_no_control_is_missed() -> None:
    record = read_record()
    assert set(record["variations"].values()) == {"no alarm"}
    assert set(record["controls"].values()) == {True}


@pytest.fixture(scope="module")
def default(shared: Path) -> Project:
    """The repository as it is, with its tokens."""

    def make(path: Path) -> None:
        copy_repository(ROOT, path).repro("mask_report")

    return made_once(shared / "default_tokens", make)


def run_selftest(project: Project, *options: str) -> tuple[int, dict[str, object]]:
    done = project.holdshort("selftest", "--report", f"reports/{len(options)}", *options)
    matrix = json.loads(project.read(f"reports/{len(options)}/matrix.json"))
    return done.returncode, summary_of(matrix)


@pytest.mark.slow
def test_one_fault_of_each_kind_is_seen_as_recorded(default: Project) -> None:
    code, found = run_selftest(default, "--quick")
    record = read_record()
    faults = found["faults"]
    assert isinstance(faults, dict)
    tried = {name: one for name, one in faults.items() if one["status"] != "not_run"}
    assert (code, len(tried)) == (0, 6)
    assert tried == {name: record["faults"][name] for name in tried}
    assert found["controls"] == record["controls"]


@pytest.mark.matrix
def test_the_whole_self_test_finds_what_is_recorded(default: Project) -> None:
    assert run_selftest(default) == (0, read_record())
