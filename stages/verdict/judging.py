"""Is a measured value allowed? Rules and checks: pure functions of numbers and limits.

A `Rule` says what is allowed; its limits are keys of params.yaml, never numbers in the code. So
anyone can judge again from the record of a gate: `manifest` does before it clears a run, and
`full_train` before it starts one.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..provenance.records import format_value

Status = Literal["pass", "warn", "fail", "not_judged", "blocked"]
Comparison = Literal["zero", "at_most", "at_least", "below", "between", "equals"]
Value = float | int | str | None


@dataclass(frozen=True)
class Rule:
    """One question asked of a run.

    comparison: how the value relates to the limits. `zero` is an invariant and takes no limit;
    `equals` holds when its limit is null, which means that nothing was pinned.
    limits: keys of params.yaml, one, or two for `between` (both ends allowed).
    severity: what a violation does. A check that could not be judged blocks like a failure, unless
    its rule only warns.
    """

    id: str
    text: str
    comparison: Comparison
    remedy: str
    limits: tuple[str, ...] = ()
    unit: str = ""
    severity: Literal["fail", "warn"] = "fail"


@dataclass(frozen=True)
class Measured:
    """A value to be judged: over how many things it was taken, and what shows it.

    value: None when it could not be measured; `note` then says why.
    evidence: names that a reader needs (rows, parameters, tokens), the telling ones first.
    """

    value: Value
    n: int | None = None
    note: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """A judged value. `margin` is its distance to the limit, negative beyond it."""

    id: str
    rule: str
    status: Status
    value: Value
    limit: Any
    margin: float | None
    unit: str
    n: int | None
    seed: int | None
    message: str
    remedy: str
    evidence: list[str] = field(default_factory=list)


def judge(rule: Rule, measured: Measured, params: Mapping[str, Any], seed: int | None) -> Check:
    """Hold a measured value against the limits that `params` (by dotted key) gives to the rule."""
    limits = [params[key] for key in rule.limits]
    limit: Any = 0 if rule.comparison == "zero" else limits[0]
    if rule.comparison == "between":
        limit = limits
    value = measured.value
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)  # JSON has no word for it
    holds: bool | None
    margin: float | None
    if value is None:
        holds, margin = None, None
    elif isinstance(value, str) and rule.comparison != "equals":
        holds, margin = False, None
    else:
        holds, margin = _compare(rule.comparison, value, limit)
    status: Status = "pass" if holds else "not_judged" if holds is None else rule.severity
    return Check(
        id=rule.id,
        rule=rule.text,
        status=status,
        value=value,
        limit=limit,
        margin=margin,
        unit=rule.unit,
        n=measured.n,
        seed=seed,
        message=_message(rule, value, limit, measured.note),
        remedy="" if status == "pass" else rule.remedy,
        evidence=list(measured.evidence),
    )


def _compare(comparison: Comparison, value: Any, limit: Any) -> tuple[bool, float | None]:
    match comparison:
        case "equals":
            return limit is None or value == limit, None
        case "zero":
            return value == 0, float(-abs(value))
        case "at_most":
            return value <= limit, limit - value
        case "below":
            return value < limit, limit - value
        case "at_least":
            return value >= limit, value - limit
        case "between":
            return limit[0] <= value <= limit[1], min(value - limit[0], limit[1] - value)


def _message(rule: Rule, value: Value, limit: Any, note: str) -> str:
    if value is None:
        return f"could not be judged: {note}"
    match rule.comparison:
        case "between":
            allowed = f"between {format_value(limit[0])} and {format_value(limit[1])}"
        case "equals":
            allowed = "nothing is pinned" if limit is None else f"must equal {limit}"
        case "zero":
            allowed = "must be 0"
        case comparison:
            allowed = f"{comparison.replace('_', ' ')} {format_value(limit)}"
    unit = f" {rule.unit}" if rule.unit else ""
    return f"{format_value(value)}{unit} ({allowed})" + (f"; {note}" if note else "")


def judge_all(
    rules: Sequence[Rule],
    measured: Mapping[str, Measured],
    params: Mapping[str, Any],
    seed: int | None = None,
    unmeasured: str = "the gate did not measure it",
) -> list[Check]:
    """Judge every rule of a gate, in its order; what was not measured was not judged, and why."""
    unknown = set(measured) - {rule.id for rule in rules}
    assert not unknown, f"measured without a rule: {sorted(unknown)}"
    absent = Measured(None, note=unmeasured)
    return [judge(rule, measured.get(rule.id, absent), params, seed) for rule in rules]


def overall_status(checks: Sequence[Check], rules: Sequence[Rule]) -> Status:
    """The worst of the checks; one that was not judged blocks unless its rule only warns."""
    warns_only = {rule.id for rule in rules if rule.severity == "warn"}
    statuses = {
        "warn" if check.status == "not_judged" and check.id in warns_only else check.status
        for check in checks
    }
    order: tuple[Status, ...] = ("fail", "not_judged", "warn")
    return next((status for status in order if status in statuses), "pass")


def failed_ids(checks: Sequence[Check]) -> set[str]:
    """Ids of the checks that do not pass, warnings left out."""
    return {check.id for check in checks if not passes(check.status)}


def rank_causes(checks: Sequence[Check], causes: Sequence[tuple[set[str], str]]) -> list[str]:
    """The likely causes of what failed, by a decision table over the ids of failed checks.

    The first entry whose ids all failed explains them, and takes them from the later entries.
    """
    failed, ranked = failed_ids(checks), []
    for ids, cause in causes:
        if ids <= failed:
            ranked.append(cause)
            failed -= ids
    return ranked


def passes(status: Status) -> bool:
    return status in ("pass", "warn")


def rejudge(
    checks: Sequence[Check], rules: Sequence[Rule], params: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Judge recorded checks again, from their values and the limits in force now.

    Returns (what does not hold, remedy): a rule without a check, a check that fails, a status or
    limit that does not follow from the value. An empty list means that the gate passes.
    """
    recorded = {check.id: check for check in checks}
    twice = [name for name, n in Counter(check.id for check in checks).items() if n > 1]
    faults = [(f"the verdict has check '{name}' more than once", "dvc repro") for name in twice]
    for rule in rules:
        check = recorded.pop(rule.id, None)
        if check is None:
            faults.append((f"the verdict has no check '{rule.id}'", "dvc repro"))
            continue
        again = judge(rule, Measured(check.value), params, check.seed)
        if (again.status, again.limit) != (check.status, check.limit):
            reason = (
                f"check '{rule.id}' is recorded as {check.status} under the limit {check.limit}, "
                f"but its value {format_value(check.value)} is judged {again.status} under the "
                f"limit {again.limit}"
            )
            faults.append((reason, "dvc repro"))
        elif not passes(overall_status([again], rules)):
            faults.append((f"{rule.id}: {rule.text}: {check.message}", rule.remedy))
    faults += [(f"'{name}' is not one of the gate's rules", "dvc repro") for name in recorded]
    return faults
