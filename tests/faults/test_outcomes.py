"""What became of a fault is told as it was: what got through is never called caught."""

import json

import pytest

from stages.commands import selftest
from stages.faults.catalogue import FAULTS, TITLES
from stages.faults.matrix import Outcome, account, outcome_of
from stages.faults.running import Found, Run
from stages.mask_audit.controls import Control

from ..project import Project
from ..settings import make_params

SOUND = Run({"overfit_gate": Found(), "gradient_probe": Found(["clip_excess"], ["clip_excess"])})
BY_NAME = {fault.name: fault for fault in FAULTS}


def run(checks: list[str], warned: list[str] | None = None, causes: list[str] | None = None) -> Run:
    probe = Found(checks, warned or [], causes or [])
    return Run({"overfit_gate": Found(), "gradient_probe": probe})


def outcome(name: str, result: Run | str | Exception, healthy: Run = SOUND) -> Outcome:
    return outcome_of(BY_NAME[name], result, healthy)


@pytest.mark.parametrize(
    ("result", "healthy", "status"),
    [
        (run(["targets_wrong"], causes=["labels are shifted twice: ..."]), SOUND, "caught"),
        (run(["targets_raised"]), SOUND, "missed"),
        (run([]), SOUND, "missed"),
        (run(["targets_wrong"]), run(["targets_wrong"]), "not_proven"),
        (RuntimeError("shapes"), SOUND, "not_proven"),
        ("no labels", SOUND, "not_applicable"),
    ],
    ids=["caught", "other_check", "silence", "failing_before", "crash", "not_applicable"],
)
def test_a_fault_is_caught_by_a_check_that_must_see_it(
    result: Run | str | Exception, healthy: Run, status: str
) -> None:
    assert outcome("shifted_twice", result, healthy).status == status


def test_a_cause_is_named_when_the_gate_says_its_words() -> None:
    assert outcome(
        "shifted_twice", run(["targets_wrong"], causes=["a", "labels are shifted twice"])
    ).named
    assert outcome("shifted_twice", run(["targets_wrong"], causes=["a"])).named is False


def test_a_check_that_warned_before_and_fails_now_has_seen_something() -> None:
    assert outcome("shifted_twice", run(["clip_excess"])).found["gradient_probe"] == ["clip_excess"]


def test_a_check_that_warns_is_a_warning() -> None:
    warned = run(["clip_excess"], ["clip_excess"])
    assert outcome("clip_limit_too_low", warned, run([])).status == "warned"


def test_a_fault_that_is_known_to_get_through_is_called_so_unless_it_is_seen() -> None:
    assert outcome("norms_missing", run([])).status == "known"
    assert outcome("norms_missing", run(["median_norm"])).status == "caught"


def test_the_worst_of_several_is_told_of_a_number() -> None:
    caught = outcome("applied_rate_too_high", run(["learning_rate_error"]))
    missed = outcome("rate_too_high", run([]))
    status = {one.number: one.status for one in account([caught, missed], [])}
    assert status[52] == "MISSED"
    assert account([caught], [])[51].status == "caught"


def test_every_number_is_told_of_with_a_reason() -> None:
    outcomes = [outcome_of(fault, "not here", SOUND) for fault in FAULTS]
    listed = account(outcomes, [Control("labels inverted", 3, 3, ("prompt_supervised",), ())])
    assert [one.number for one in listed] == list(TITLES)
    assert all(one.gates or one.how for one in listed)
    assert (listed[18].status, listed[24].status) == ("caught", "does not apply")


def test_what_a_quick_run_does_not_plant_is_not_called_impossible() -> None:
    (one,) = (one for one in account([], []) if one.title == "gradients are never cleared")
    assert (one.status, "--quick" in one.how[0]) == ("not run", True)


def test_gate_check_and_cause_are_told_of_a_number_that_is_caught() -> None:
    seen = run(["targets_wrong", "median_norm"], causes=["labels are shifted twice: ..."])
    one = account([outcome("shifted_twice", seen)], [])[24]
    assert (one.number, one.status) == (25, "caught")
    assert (one.gates, one.checks, one.named) == (["gradient_probe"], ["targets_wrong"], True)
    assert one.how == ["planted: shifted twice"]


def test_gate_and_check_are_told_of_a_number_that_another_stage_sees() -> None:
    one = account([], [])[4]
    assert (one.status, one.gates, one.checks) == (
        "caught elsewhere",
        ("hash_data",),
        ("duplicate_fraction",),
    )


def test_a_control_that_was_missed_is_told() -> None:
    caught = outcome("mask_inverted", run(["targets_untrained"]))
    control = Control("labels inverted", 3, 2, (), ("rows.jsonl:1 ...",))
    assert account([caught], [control])[18].status == "MISSED"


def test_of_a_kind_the_first_fault_that_can_be_planted_is(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [BY_NAME[name] for name in ("dead_units", "shifted_twice", "sees_all")]
    results = iter(["no module of the model rectifies", run(["targets_wrong"])])
    monkeypatch.setattr(selftest, "run_fault", lambda fault, params: next(results))
    planted = selftest.plant_first(faults, make_params(), SOUND)
    assert (planted.fault.name, planted.status) == ("shifted_twice", "caught")


def test_where_none_of_a_kind_can_be_planted_the_last_reason_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selftest, "run_fault", lambda fault, params: "not here")
    planted = selftest.plant_first([BY_NAME["dead_units"]], make_params(), SOUND)
    assert (planted.status, planted.note) == ("not_applicable", "not here")


def test_without_tokens_the_command_says_what_to_run(fresh: Project) -> None:
    done = fresh.holdshort("selftest")
    assert done.returncode == 2
    assert done.stdout.strip() == (
        "error: artifacts/tokens/ is missing; run `dvc repro mask_report`"
    )
    assert not fresh.exists("reports")


@pytest.mark.slow
def test_the_self_test_of_a_sound_project_passes_and_writes_its_report_only(
    cleared: Project,
) -> None:
    cleared.commit()
    done = cleared.holdshort("selftest", "--quick", "--report", "reports/mine")
    assert done.returncode == 0, done.stdout
    assert "faults: 6 caught; the cause is named for 6 of 6" in done.stdout
    assert "false alarms over sound runs: 0 of " in done.stdout
    assert cleared.git("status", "--porcelain") == ""
    record = json.loads(cleared.read("reports/mine/matrix.json"))
    assert len(record["list"]) == len(TITLES)
    assert record["false_alarms"]["alarms"] == 0
    assert (cleared.path / "reports/mine/index.html").is_file()


@pytest.mark.slow
def test_overrides_of_the_data_are_refused(cleared: Project) -> None:
    done = cleared.holdshort("selftest", "labels=last_turn")
    assert done.returncode == 2
    assert "conf/ with these overrides has another 'labels'" in done.stdout
