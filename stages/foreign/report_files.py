"""What `holdshort audit-labels --report DIR` leaves: a page, findings.csv and verdict.json."""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from ..provenance.records import write_json
from ..report.page import Section, Table, write_page
from ..verdict.record import Verdict
from .auditor import Outcome
from .locating import Located

CSV_LINES = 100_000
ROWS_LISTED = 1000


def write_report(
    directory: Path,
    verdict: Verdict,
    documentation: str | None,
    outcome: Outcome,
    told: Sequence[str],
) -> None:
    """Write the three files into `directory`. told: what was read, in sentences."""
    directory.mkdir(parents=True, exist_ok=True)
    listed = outcome.located[:CSV_LINES]
    write_findings(directory / "findings.csv", listed)
    write_page(
        verdict.gate,
        documentation,
        verdict=verdict,
        sections=sections_of(outcome, told, len(listed)),
        conversations=outcome.views,
        directory=directory,
    )
    write_json(directory / "verdict.json", asdict(verdict))


def write_findings(path: Path, located: Sequence[Located]) -> None:
    columns = [field.name for field in fields(Located)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([getattr(finding, name) for name in columns] for finding in located)


def sections_of(outcome: Outcome, told: Sequence[str], listed: int) -> list[Section]:
    """The sections of the page. listed: places that findings.csv has."""
    kinds = Counter(finding.kind for finding in outcome.located)
    counted = f"findings.csv lists {listed} of {len(outcome.located)} places."
    sections = [
        Section("What was read", "; ".join(told) + "."),
        Section(
            "Findings by kind", counted, table=Table(("kind", "places"), sorted(kinds.items()))
        ),
    ]
    for title, names in (
        ("Token rows that were not matched", outcome.unmatched),
        ("Source rows that no token row holds", outcome.unused),
    ):
        if names:
            rows = [(name,) for name in names[:ROWS_LISTED]]
            sections.append(Section(title, table=Table(("row",), rows, len(names))))
    return sections
