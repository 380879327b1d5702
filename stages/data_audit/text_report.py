"""What the audit of a data set's texts found, as measured values, as numbers and on the page."""

from ..report.page import Section, Table
from ..verdict.judging import Measured
from .text_audit import FINDINGS_KEPT, KINDS, TextAudit

FINDINGS_SHOWN = 20
TURNS_SHOWN = 12
WORDS = {"near_duplicate": " nearly repeats "}


def measure_texts(audit: TextAudit) -> dict[str, Measured]:
    """What the rules ask of the texts."""
    compared = f"{audit.compared_rows} of {audit.rows} rows were compared"
    searched = f"{audit.leak_searched_rows} of {audit.validation_rows} validation rows searched"
    return {
        "near_duplicate_fraction": _fraction(
            audit, "near_duplicate", audit.compared_rows, f"; {compared}"
        ),
        "ngram_leakage": Measured(
            audit.counts["ngram_leak"],
            audit.leak_searched_rows,
            searched,
            _evidence(audit, "ngram_leak"),
        ),
        "placeholder_fraction": _fraction(audit, "placeholder", audit.rows),
        "broken_off_fraction": _fraction(audit, "broken_off_answer", audit.rows),
        "damaged_fraction": _fraction(audit, "damaged_text", audit.rows),
        "script_outlier_fraction": _fraction(audit, "script_outlier", audit.rows),
    }


def _fraction(audit: TextAudit, kind: str, rows: int, note: str = "") -> Measured:
    count = audit.counts[kind]
    return Measured(count / max(rows, 1), rows, f"{count} rows{note}", _evidence(audit, kind))


def _evidence(audit: TextAudit, kind: str) -> tuple[str, ...]:
    found = audit.findings[kind][:FINDINGS_SHOWN]
    return tuple(f"{source}{WORDS.get(kind, ': ')}{detail}" for source, detail in found)


def text_numbers(audit: TextAudit) -> dict[str, float]:
    """The numbers for metrics/hash_data.json."""
    return {
        **{f"{kind}s": audit.counts[kind] for kind in KINDS},
        "median_characters": audit.shape.median_characters,
        "longest_characters": audit.shape.longest_characters,
    }


def text_sections(audit: TextAudit) -> list[Section]:
    """The sections of the page that show the texts."""
    return [_findings(audit), _shape(audit), _scripts(audit)]


def _findings(audit: TextAudit) -> Section:
    rows = [
        (kind, source, detail)
        for kind in KINDS
        for source, detail in audit.findings[kind][:FINDINGS_SHOWN]
    ]
    text = (
        f"Near duplicates were searched among {audit.compared_rows} of {audit.rows} rows, leaks "
        f"among {audit.leak_searched_rows} of {audit.validation_rows} validation rows. The first "
        f"{FINDINGS_SHOWN} of each kind are shown, {FINDINGS_KEPT} are named, all are counted."
    )
    columns = ("kind", "source", "detail")
    return Section("Texts", text, table=Table(columns, rows, total=audit.counts.total()))


def _shape(audit: TextAudit) -> Section:
    shape = audit.shape
    ratio = shape.longest_characters / max(shape.median_characters, 1)
    spoken = ", ".join(f"{role} {n}" for role, n in sorted(shape.characters.items()))
    text = (
        f"The longest conversation ({shape.longest}) has {shape.longest_characters} characters, "
        f"{ratio:.1f} times the median of {shape.median_characters:.0f}. Characters by role: "
        f"{spoken}."
    )
    rows = [
        (turns, rows, rows / max(audit.rows, 1))
        for turns, rows in sorted(shape.turns.items())[:TURNS_SHOWN]
    ]
    table = Table(("turns", "rows", "share"), rows, total=len(shape.turns))
    return Section("Lengths and turns", text, table=table)


def _scripts(audit: TextAudit) -> Section:
    total = max(audit.scripts.total(), 1)
    ranked = sorted(audit.scripts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(script, n, n / total) for script, n in ranked]
    text = "The script of most letters of a row's answers; rows without a letter are left out."
    return Section("Scripts", text, table=Table(("script", "rows", "share"), rows))
