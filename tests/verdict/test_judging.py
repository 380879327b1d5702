"""Values are held against limits, and a record that does not follow from its values is found."""

import math
from dataclasses import replace
from typing import Any

import pytest

from stages.verdict.judging import (
    Check,
    Comparison,
    Measured,
    Rule,
    failed_ids,
    judge,
    judge_all,
    overall_status,
    passes,
    rank_causes,
    rejudge,
)

PARAMS: dict[str, Any] = {
    "limit": 0.5,
    "low": 1.0,
    "high": 2.0,
    "count": 3,
    "pin": "abc",
    "unpinned": None,
}
LIMITS: dict[str, tuple[str, ...]] = {
    "zero": (),
    "at_most": ("limit",),
    "below": ("limit",),
    "at_least": ("limit",),
    "between": ("low", "high"),
    "equals": ("pin",),
}
RULES = (
    Rule("lost_rows", "no row is lost", "zero", "find them", unit="rows"),
    Rule("loss", "the loss is low", "below", "train longer", ("limit",), "nats"),
    Rule("norm", "the norm is healthy", "between", "clip", ("low", "high")),
    Rule("spikes", "few spikes", "at_most", "warm up", ("count",), severity="warn"),
)
GOOD = {
    "lost_rows": Measured(0, 10),
    "loss": Measured(0.25),
    "norm": Measured(1.5),
    "spikes": Measured(2),
}


def make_rule(comparison: Comparison, **changes: Any) -> Rule:
    return Rule(
        "id",
        "text",
        comparison,
        "remedy",
        **{"limits": LIMITS[comparison], **changes},
    )


def judge_value(comparison: Comparison, value: Any) -> Check:
    return judge(make_rule(comparison), Measured(value), PARAMS, None)


def good_checks() -> list[Check]:
    return judge_all(RULES, GOOD, PARAMS, 42)


def altered(name: str, **changes: Any) -> list[Check]:
    return [replace(c, **changes) if c.id == name else c for c in good_checks()]


@pytest.mark.parametrize(
    ("comparison", "value", "status", "margin"),
    [
        ("zero", 0, "pass", 0.0),
        ("zero", 0.0, "pass", 0.0),
        ("zero", 1, "fail", -1.0),
        ("zero", -2, "fail", -2.0),
        ("at_most", 0.5, "pass", 0.0),
        ("at_most", 0.25, "pass", 0.25),
        ("at_most", 0.75, "fail", -0.25),
        ("at_most", 0, "pass", 0.5),
        ("below", 0.5, "fail", 0.0),
        ("below", 0.25, "pass", 0.25),
        ("below", 1, "fail", -0.5),
        ("at_least", 0.5, "pass", 0.0),
        ("at_least", 0.25, "fail", -0.25),
        ("at_least", 3, "pass", 2.5),
        ("between", 1.0, "pass", 0.0),
        ("between", 2.0, "pass", 0.0),
        ("between", 1.25, "pass", 0.25),
        ("between", 0.5, "fail", -0.5),
        ("between", 2.5, "fail", -0.5),
        ("equals", "abc", "pass", None),
        ("equals", "abd", "fail", None),
    ],
)
def test_a_value_is_held_against_its_limit(
    comparison: Comparison, value: Any, status: str, margin: float | None
) -> None:
    check = judge_value(comparison, value)
    assert (check.status, check.margin) == (status, margin)


@pytest.mark.parametrize("comparison", list(LIMITS))
@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_number_that_is_not_finite_never_holds(
    comparison: Comparison, value: float, text: str
) -> None:
    check = judge_value(comparison, value)
    assert (check.status, check.value, check.margin) == ("fail", text, None)
    again = judge_value(comparison, check.value)
    assert again.status == "fail"


@pytest.mark.parametrize("comparison", list(LIMITS))
def test_what_was_not_measured_is_not_judged(comparison: Comparison) -> None:
    check = judge(make_rule(comparison), Measured(None, note="no rows"), PARAMS, None)
    assert (check.status, check.margin) == ("not_judged", None)
    assert check.message == "could not be judged: no rows"
    assert check.remedy == "remedy"


@pytest.mark.parametrize("value", [1, math.nan])
def test_a_rule_that_warns_does_not_fail(value: float) -> None:
    check = judge(make_rule("zero", severity="warn"), Measured(value), PARAMS, None)
    assert check.status == "warn"


def test_nothing_pinned_means_that_any_value_holds() -> None:
    check = judge(make_rule("equals", limits=("unpinned",)), Measured("xyz"), PARAMS, None)
    assert (check.status, check.limit) == ("pass", None)
    assert check.message == "xyz (nothing is pinned)"


@pytest.mark.parametrize(
    ("comparison", "value", "message"),
    [
        ("zero", 3, "3 rows (must be 0); here"),
        ("at_most", 0.123456, "0.1235 rows (at most 0.5); here"),
        ("below", 0.25, "0.25 rows (below 0.5); here"),
        ("at_least", 1, "1 rows (at least 0.5); here"),
        ("between", 1.5, "1.5 rows (between 1 and 2); here"),
        ("equals", "abd", "abd rows (must equal abc); here"),
        ("at_most", math.nan, "nan rows (at most 0.5); here"),
    ],
)
def test_the_message_says_what_was_found_and_what_is_allowed(
    comparison: Comparison, value: Any, message: str
) -> None:
    rule = make_rule(comparison, unit="rows")
    assert judge(rule, Measured(value, note="here"), PARAMS, None).message == message


def test_a_check_records_all_that_a_reader_needs() -> None:
    rule = Rule("loss", "the loss is low", "below", "train longer", ("limit",), "nats")
    check = judge(rule, Measured(0.75, 8, "lowest", ("row 1", "row 2")), PARAMS, 42)
    assert check == Check(
        id="loss",
        rule="the loss is low",
        status="fail",
        value=0.75,
        limit=0.5,
        margin=-0.25,
        unit="nats",
        n=8,
        seed=42,
        message="0.75 nats (below 0.5); lowest",
        remedy="train longer",
        evidence=["row 1", "row 2"],
    )


def test_a_check_that_passes_needs_no_remedy() -> None:
    assert judge_value("zero", 0).remedy == ""


def test_what_a_gate_did_not_measure_blocks_it() -> None:
    checks = judge_all(RULES, {name: GOOD[name] for name in ("lost_rows", "norm")}, PARAMS)
    assert [check.status for check in checks] == ["pass", "not_judged", "pass", "not_judged"]
    assert checks[1].message == "could not be judged: the gate did not measure it"
    assert overall_status(checks, RULES) == "not_judged"


def test_a_value_without_a_rule_is_a_mistake_in_the_code() -> None:
    with pytest.raises(AssertionError, match="extra"):
        judge_all(RULES, {**GOOD, "extra": Measured(1)}, PARAMS)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "pass"),
        ({"spikes": Measured(9)}, "warn"),
        ({"spikes": Measured(None)}, "warn"),
        ({"norm": Measured(None)}, "not_judged"),
        ({"norm": Measured(None), "loss": Measured(0.9)}, "fail"),
        ({"norm": Measured(math.nan)}, "fail"),
    ],
)
def test_a_gate_is_as_good_as_its_worst_check(changes: dict[str, Measured], status: str) -> None:
    checks = judge_all(RULES, {**GOOD, **changes}, PARAMS)
    assert overall_status(checks, RULES) == status


@pytest.mark.parametrize(
    ("status", "passed"),
    [("pass", True), ("warn", True), ("fail", False), ("not_judged", False), ("blocked", False)],
)
def test_only_pass_and_warn_pass(status: Any, passed: bool) -> None:
    assert passes(status) is passed


def test_warnings_are_no_failures() -> None:
    measured = {**GOOD, "spikes": Measured(9), "loss": Measured(1.0), "norm": Measured(None)}
    assert failed_ids(judge_all(RULES, measured, PARAMS)) == {"loss", "norm"}


def test_the_first_cause_that_fits_takes_its_checks_from_the_later_ones() -> None:
    measured = {**GOOD, "loss": Measured(1.0), "norm": Measured(3.0), "lost_rows": Measured(1)}
    causes: list[tuple[set[str], str]] = [
        ({"loss", "spikes"}, "spikes did not fail"),
        ({"loss", "norm"}, "both"),
        ({"loss"}, "explained already"),
        ({"lost_rows"}, "the rest"),
    ]
    assert rank_causes(judge_all(RULES, measured, PARAMS), causes) == ["both", "the rest"]


def test_a_sound_record_holds() -> None:
    assert rejudge(good_checks(), RULES, PARAMS) == []


def test_warnings_hold_when_judged_again() -> None:
    checks = judge_all(RULES, {**GOOD, "spikes": Measured(9)}, PARAMS)
    assert rejudge(checks, RULES, PARAMS) == []
    checks = judge_all(RULES, {**GOOD, "spikes": Measured(None)}, PARAMS)
    assert rejudge(checks, RULES, PARAMS) == []


def test_a_removed_check_is_found() -> None:
    checks = [check for check in good_checks() if check.id != "loss"]
    assert rejudge(checks, RULES, PARAMS) == [("the verdict has no check 'loss'", "dvc repro")]


def test_a_failing_check_is_found_with_its_remedy() -> None:
    checks = judge_all(RULES, {**GOOD, "loss": Measured(0.75)}, PARAMS)
    assert rejudge(checks, RULES, PARAMS) == [
        ("loss: the loss is low: 0.75 nats (below 0.5)", "train longer")
    ]


def test_a_check_that_was_not_judged_is_found() -> None:
    checks = judge_all(RULES, {**GOOD, "loss": Measured(None, note="no rows")}, PARAMS)
    assert rejudge(checks, RULES, PARAMS) == [
        ("loss: the loss is low: could not be judged: no rows", "train longer")
    ]


def test_a_nan_that_went_through_a_file_still_fails() -> None:
    checks = judge_all(RULES, {**GOOD, "loss": Measured(math.nan)}, PARAMS)
    assert rejudge(checks, RULES, PARAMS) == [
        ("loss: the loss is low: nan nats (below 0.5)", "train longer")
    ]


def test_a_forged_status_is_found() -> None:
    checks = judge_all(RULES, {**GOOD, "loss": Measured(0.75)}, PARAMS)
    forged = [replace(check, status="pass") for check in checks]
    assert rejudge(forged, RULES, PARAMS) == [
        (
            "check 'loss' is recorded as pass under the limit 0.5, but its value 0.75 is judged "
            "fail under the limit 0.5",
            "dvc repro",
        )
    ]


@pytest.mark.parametrize("status", ["pass", "warn", "blocked"])
def test_no_status_makes_a_bad_value_hold(status: str) -> None:
    assert len(rejudge(altered("loss", value=0.75, status=status), RULES, PARAMS)) == 1


def test_a_forged_limit_is_found() -> None:
    faults = rejudge(altered("loss", value=0.75, limit=1.0, status="pass"), RULES, PARAMS)
    assert faults == [
        (
            "check 'loss' is recorded as pass under the limit 1.0, but its value 0.75 is judged "
            "fail under the limit 0.5",
            "dvc repro",
        )
    ]


def test_a_looser_limit_is_found_even_when_the_value_holds() -> None:
    faults = rejudge(altered("norm", limit=[0.0, 9.0]), RULES, PARAMS)
    assert [reason.partition(" is recorded")[0] for reason, _ in faults] == ["check 'norm'"]


def test_a_check_under_no_rule_is_found() -> None:
    extra = replace(good_checks()[0], id="extra")
    assert rejudge([*good_checks(), extra], RULES, PARAMS) == [
        ("'extra' is not one of the gate's rules", "dvc repro")
    ]


@pytest.mark.parametrize("first", [True, False])
def test_a_second_check_under_one_rule_does_not_hide_the_first(first: bool) -> None:
    bad = judge_all(RULES, {**GOOD, "loss": Measured(0.75)}, PARAMS)[1]
    checks = [bad, *good_checks()] if first else [*good_checks(), bad]
    assert rejudge(checks, RULES, PARAMS) != []


@pytest.mark.parametrize("name", ["lost_rows", "loss", "norm"])
def test_a_text_in_place_of_a_number_is_found(name: str) -> None:
    assert rejudge(altered(name, value="0"), RULES, PARAMS) != []


def test_an_empty_record_lacks_every_check() -> None:
    assert [reason for reason, _ in rejudge([], RULES, PARAMS)] == [
        f"the verdict has no check '{rule.id}'" for rule in RULES
    ]
