"""Would the audit notice? Right rows are corrupted in known ways, and the audit must name each.

A control is caught when the audit names the corrupted row, the first corrupted token of each kind,
and nothing that was left as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..chat.tokenizer import ChatTokenizer
from ..config.schema import Labels
from .audit import audit_collated, audit_rows
from .corrupt_batches import (
    BATCH_CORRUPTIONS,
    PACK_CORRUPTIONS,
    plant_in_batch,
    plant_in_pack,
)
from .corrupt_labels import LABEL_CORRUPTIONS
from .corrupt_rows import ROW_CORRUPTIONS, plant_in_row
from .expected import Expected
from .findings import Audit, Finding, Kind
from .packed import audit_packed
from .specimens import Specimen

MIN_CONTROLS = 12
"""Controls that must have been applied to some row for the audit to count as proven."""
FACTS: set[Kind] = {"content_trimmed", "reasoning_dropped"}
"""What may be found in a row whose labels are right."""
ON_ROWS = (*LABEL_CORRUPTIONS, *ROW_CORRUPTIONS)
ON_BATCHES = tuple(BATCH_CORRUPTIONS)
ON_PACKS = tuple(PACK_CORRUPTIONS)
NEEDS = {
    **{name: corruption.needs for name, corruption in LABEL_CORRUPTIONS.items()},
    **{name: corruption.needs for name, corruption in ROW_CORRUPTIONS.items()},
    **{name: corruption.needs for name, corruption in BATCH_CORRUPTIONS.items()},
    **dict.fromkeys(ON_PACKS, "another row beside it"),
}


@dataclass(frozen=True)
class Control:
    """One way to corrupt, over all rows that it fits. applied, caught: rows; kinds: what the audit
    called it; missed: what it did not name, or named wrongly; reason: why it fits no row."""

    name: str
    applied: int
    caught: int
    kinds: tuple[str, ...]
    missed: tuple[str, ...]
    reason: str = ""


def judge(
    expected: Sequence[Expected], findings: Sequence[Finding]
) -> tuple[set[str], tuple[str, ...]]:
    """Sources of rows of which a fault was not named or another was; and what is wrong, in words.

    A finding in a row that was not corrupted is told of that row.
    """
    missed, told = set(), []
    by_source: dict[str, list[Finding]] = {}
    for finding in findings:
        by_source.setdefault(finding.source, []).append(finding)
    for one in expected:
        found = by_source.pop(one.source, [])
        wrong = [
            f"{one.source} {fault}, found {_listed(found)}"
            for fault in one.faults
            if not any(fault.is_named_by(finding) for finding in found)
        ]
        wrong += [
            f"{one.source} token {finding.position}: {finding.kind}, but it was not corrupted"
            for finding in found
            if not _is_allowed(finding, one)
        ]
        missed |= {one.source} if wrong else set()
        told += wrong
    for source, found in by_source.items():
        missed.add(source)
        told.append(f"{source} was not corrupted, found {_listed(found)}")
    return missed, tuple(told)


def _is_allowed(finding: Finding, expected: Expected) -> bool:
    if finding.position >= 0:
        return finding.position in expected.touched
    named = any(fault.is_named_by(finding) for fault in expected.faults)
    return named or finding.kind in expected.also


def _listed(findings: Sequence[Finding]) -> str:
    named = [f"{finding.kind} at token {finding.position}" for finding in findings]
    return ", ".join(named) or "nothing"


def run_controls(
    specimens: Sequence[Specimen],
    tokenizer: ChatTokenizer,
    policy: Labels,
    *,
    packing: bool = False,
) -> list[Control]:
    """Every control on every specimen that it fits; one with a fault of its own is left out.

    packing: those on packed rows too.
    """
    audit = Audit()
    audit_rows([specimen.row for specimen in specimens], tokenizer, policy, audit)
    known = set(audit.findings)
    faulty = {finding.source for finding in known if finding.kind not in FACTS}
    sound = [specimen for specimen in specimens if specimen.stored.source not in faulty]
    on_rows = [_run_on_rows(name, sound, known, tokenizer, policy) for name in ON_ROWS]
    on_batches = [_run_on_batches(name, sound, tokenizer, policy) for name in ON_BATCHES]
    packs = ON_PACKS if packing else ()
    return on_rows + on_batches + [_run_on_packs(name, sound, tokenizer, policy) for name in packs]


def _run_on_rows(
    name: str,
    specimens: Sequence[Specimen],
    known: set[Finding],
    tokenizer: ChatTokenizer,
    policy: Labels,
) -> Control:
    """Corrupt every second row at a time, so that a finding in one between them is noticed."""
    numbers = range(len(specimens))
    planted = [plant_in_row(name, specimens, n, tokenizer, policy) for n in numbers]
    tally = _Tally(name)
    for half in (0, 1):
        now = [one if n % 2 == half else None for n, one in enumerate(planted)]
        rows = [one.row if one else specimens[n].row for n, one in enumerate(now)]
        audit = Audit()
        audit_rows(rows, tokenizer, policy, audit)
        fresh = [finding for finding in audit.findings if finding not in known]
        tally.add([one.expected for one in now if one], fresh)
    return tally.control(specimens, policy)


def _run_on_batches(
    name: str,
    specimens: Sequence[Specimen],
    tokenizer: ChatTokenizer,
    policy: Labels,
) -> Control:
    """Batches of two rows of unlike lengths, so that there is padding."""
    tally = _Tally(name)
    rows = sorted((one.stored for one in specimens), key=lambda row: len(row.input_ids))
    for number in range(len(rows) if len(rows) > 1 else 0):
        index, other = number % 2, rows[(number + len(rows) // 2) % len(rows)]
        pair = [other, rows[number]] if index else [rows[number], other]
        if planted := plant_in_batch(name, pair, index, tokenizer):
            audit = Audit()
            audit_collated(planted.batch, planted.rows, tokenizer, audit)
            tally.add(planted.expected, audit.findings)
    return tally.control(specimens, policy)


def _run_on_packs(
    name: str,
    specimens: Sequence[Specimen],
    tokenizer: ChatTokenizer,
    policy: Labels,
) -> Control:
    """Two rows packed into one, above one of them alone, which leaves room for padding."""
    tally = _Tally(name)
    for one, other in pairwise(specimen.stored for specimen in specimens):
        packed, expected = plant_in_pack(name, [one, other], tokenizer)
        audit = Audit()
        audit_packed(packed, [[one, other], [one]], tokenizer, audit)
        tally.add([expected], audit.findings)
    return tally.control(specimens, policy)


class _Tally:
    """Counts one control over the audits in which it was tried."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._applied, self._caught = 0, 0
        self._kinds: set[str] = set()
        self._told: list[str] = []

    def add(self, expected: Sequence[Expected], findings: Sequence[Finding]) -> None:
        missed, told = judge(expected, findings)
        self._applied += len(expected)
        self._caught += sum(one.source not in missed for one in expected)
        self._kinds |= {finding.kind for finding in findings}
        self._told += told

    def control(self, specimens: Sequence[Specimen], policy: Labels) -> Control:
        reason = ""
        if not specimens:
            reason = "no row is free of faults of its own"
        elif not self._applied:
            reason = f"no row has {NEEDS[self._name]} (labels.turns is {policy.turns})"
        kinds, told = tuple(sorted(self._kinds)), tuple(self._told)
        return Control(self._name, self._applied, self._caught, kinds, told, reason)
