"""What became of every fault, and of every number of the list: pure functions of verdicts.

A fault counts as caught when a check that must see it does not pass, and does in the healthy run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..mask_audit.controls import Control
from .catalogue import CONTROLS, ELSEWHERE, FAULTS, IMPOSSIBLE, NOT_COVERED, TITLES
from .fault import GATES, Fault, Gate
from .running import Run

Status = Literal["caught", "warned", "missed", "not_proven", "known", "not_applicable", "not_run"]
GOT_THROUGH: tuple[Status, ...] = ("missed", "not_proven")
WORDS: Mapping[Status, str] = {
    "caught": "caught",
    "warned": "warned of",
    "missed": "MISSED",
    "not_proven": "NOT PROVEN",
    "known": "known to get through",
    "not_applicable": "does not apply",
    "not_run": "not run",
}


@dataclass(frozen=True)
class Outcome:
    """What the gates said of one fault.

    found: by gate, the checks that do not pass and do in the healthy run; named: whether its gate
    names the cause, None where there is none to name; note: why it was not caught or not tried.
    """

    fault: Fault
    status: Status
    found: Mapping[Gate, Sequence[str]]
    named: bool | None = None
    causes: Sequence[str] = ()
    note: str = ""
    seconds: float = 0.0


def beyond(run: Run, healthy: Run) -> dict[Gate, list[str]]:
    """By gate, the checks that say more of `run` than of the healthy one."""
    added: dict[Gate, list[str]] = {}
    for gate in GATES:
        now, before = run.found[gate], healthy.found[gate]
        added[gate] = [
            check
            for check in now.checks
            if check not in before.checks or (check in before.warned and check not in now.warned)
        ]
    return added


def outcome_of(fault: Fault, result: Run | str | Exception, healthy: Run) -> Outcome:
    """result: the verdicts, the reason why the fault does not apply, or what stopped the gates."""
    if isinstance(result, str):
        return Outcome(fault, "not_applicable", {}, note=result)
    if isinstance(result, Exception):
        stopped = f"the gates stopped: {type(result).__name__}: {result}"
        return Outcome(fault, "not_proven", {}, note=stopped)
    found, own = beyond(result, healthy), result.found[fault.gate]
    seen = set(fault.checks) & set(found[fault.gate])
    named = any(fault.cause in cause for cause in own.causes) if fault.cause else None
    status, note = _status(fault, seen, set(own.warned), set(healthy.found[fault.gate].checks))
    return Outcome(fault, status, found, named, own.causes, note, result.seconds)


def _status(
    fault: Fault, seen: set[str], warned: set[str], failing: set[str]
) -> tuple[Status, str]:
    """failing: checks of the gate that the healthy run does not pass."""
    if seen:
        return ("warned" if seen <= warned else "caught"), ""
    if fault.missed:
        return "known", fault.missed
    if already := failing & set(fault.checks):
        return "not_proven", f"the healthy run does not pass {', '.join(sorted(already))} either"
    return "missed", f"none of {', '.join(fault.checks)} saw it"


@dataclass(frozen=True)
class Listed:
    """One number of the list.

    gates, checks: which see it; named: whether the cause is named too, None where nobody was asked;
    how: what was planted, or why the fault is not seen.
    """

    number: int
    title: str
    status: str
    gates: Sequence[str] = ()
    checks: Sequence[str] = ()
    named: bool | None = None
    how: Sequence[str] = ()


def account(outcomes: Sequence[Outcome], controls: Sequence[Control]) -> list[Listed]:
    """Every number of the list, in order."""
    return [_account(number, outcomes, controls) for number in TITLES]


def _account(number: int, outcomes: Iterable[Outcome], controls: Iterable[Control]) -> Listed:
    planted = [one for one in outcomes if number in one.fault.numbers]
    tried = [one for one in controls if one.name in CONTROLS.get(number, ()) and one.applied]
    how = [_tell(one) for one in planted]
    how += [f"control '{one.name}'{': missed' if one.missed else ''}" for one in tried]
    statuses: set[str] = {one.status for one in planted}
    statuses |= {"missed" if one.missed else "caught" for one in tried}
    for status in (*GOT_THROUGH, "caught", "warned"):
        if status in statuses:
            return _seen(number, WORDS[status], planted, tried, how)
    if number in ELSEWHERE:
        gate, _, check = ELSEWHERE[number].partition(": ")
        return Listed(number, TITLES[number], "caught elsewhere", (gate,), (check,), None, how)
    if number in IMPOSSIBLE:
        how = [*how, IMPOSSIBLE[number]]
        return Listed(number, TITLES[number], WORDS["not_applicable"], how=how)
    if number in NOT_COVERED:
        return Listed(number, TITLES[number], "not covered", how=[*how, NOT_COVERED[number]])
    for status in ("known", "not_run", "not_applicable"):
        if status in statuses:
            return Listed(number, TITLES[number], WORDS[status], how=how)
    if any(number in fault.numbers for fault in FAULTS):
        how = ["not planted: --quick takes one fault of each kind"]
        return Listed(number, TITLES[number], WORDS["not_run"], how=how)
    how = ["no row fits the control"]
    return Listed(number, TITLES[number], WORDS["not_applicable"], how=how)


def _seen(
    number: int,
    status: str,
    planted: Sequence[Outcome],
    tried: Sequence[Control],
    how: Sequence[str],
) -> Listed:
    """A number that was planted or tried, with all that sees it."""
    saw = [one for one in planted if one.status in ("caught", "warned")]
    gates: dict[str, None] = dict.fromkeys(one.fault.gate for one in saw)
    checks = dict.fromkeys(
        check for one in saw for check in one.found[one.fault.gate] if check in one.fault.checks
    )
    if tried:
        gates["mask_report"] = None
        checks |= dict.fromkeys(kind for one in tried for kind in one.kinds)
    named = [one.named for one in saw if one.named is not None]
    named += [not one.missed for one in tried]
    asked = all(named) if named else None
    return Listed(number, TITLES[number], status, list(gates), list(checks), asked, how)


def _tell(outcome: Outcome) -> str:
    name = outcome.fault.name.replace("_", " ")
    if outcome.status in ("caught", "warned"):
        return f"planted: {name}"
    return f"{name}: {outcome.note}"


def record_of(outcome: Outcome) -> dict[str, Any]:
    """For JSON; without seconds, so that the same run gives the same bytes."""
    fault = outcome.fault
    return {
        "name": fault.name,
        "kind": fault.kind,
        "numbers": list(fault.numbers),
        "gate": fault.gate,
        "must_see": list(fault.checks),
        "status": outcome.status,
        "found": {gate: list(checks) for gate, checks in outcome.found.items()},
        "cause_named": outcome.named,
        "causes": list(outcome.causes),
        "note": outcome.note,
    }
