"""What `holdshort diagnose --report DIR` leaves: a page, diagnosis.json, charts as SVG and PNG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..provenance.records import write_json
from ..report.page import Link, Section, Table, write_page
from ..report.plots import draw, draw_png
from .charts import charts_of
from .diagnosis import NOT_COVERED, Diagnosis
from .run_log import RunLog
from .signature import Known, Signature


def write_report(
    directory: Path,
    documentation: str | None,
    log: RunLog,
    diagnosis: Diagnosis,
    told: Sequence[str],
    known: Known,
) -> Path:
    """Write all into `directory`, and return the page. told: what was read, in sentences."""
    directory.mkdir(parents=True, exist_ok=True)
    charts = charts_of(log, diagnosis, known)
    drawn = {name: draw(chart) for name, chart in charts.items()}
    for name, svg in drawn.items():
        (directory / f"{name}.svg").write_text(f"{svg}\n", encoding="utf-8")
        (directory / f"{name}.png").write_bytes(draw_png(charts[name]))
    write_json(directory / "diagnosis.json", record_of(diagnosis, told))
    return write_page(
        "diagnose",
        documentation,
        sections=[
            diagnosis_section(diagnosis),
            Section("Curves", charts=list(drawn.values())),
            *other_sections(diagnosis),
            Section("What was read", "; ".join(told) + "."),
        ],
        directory=directory,
    )


def diagnosis_section(diagnosis: Diagnosis) -> Section:
    """The signatures that were found, with evidence, causes and what to try."""
    if not diagnosis.faults:
        text = "No signature of a failure was found."
        if not diagnosis.could_judge:
            text = "Not enough evidence: " + "; ".join(
                f"{one.id}: {one.reason}" for one in diagnosis.not_judged
            )
        return Section("Diagnosis", text)
    rows = []
    for signature in diagnosis.faults:
        causes = diagnosis.causes_of(signature)
        rows.append(
            (
                f"{signature.title} ({signature.id})",
                [Link(line) for line in signature.evidence],
                [Link(f"{cause.text}: {cause.remedy}") for cause in causes],
            )
        )
    text = "Causes are hypotheses, the likeliest first: a curve alone decides little."
    return Section("Diagnosis", text, table=Table(("signature", "evidence", "perhaps"), rows))


def other_sections(diagnosis: Diagnosis) -> list[Section]:
    """Remarks, what this log could not show, and what no curve shows."""
    remarks = [(one.title, [Link(line) for line in one.evidence]) for one in diagnosis.remarks]
    unjudged = [(one.id, one.reason) for one in diagnosis.not_judged]
    sections = []
    if remarks:
        text = "Healthy runs show these too."
        sections.append(Section("Remarks", text, table=Table(("remark", "evidence"), remarks)))
    if unjudged:
        sections.append(Section("Not judged", table=Table(("what", "why"), unjudged)))
    table = Table(("no curve shows",), [(line,) for line in NOT_COVERED])
    return [*sections, Section("Not covered", table=table)]


def record_of(diagnosis: Diagnosis, told: Sequence[str]) -> dict[str, Any]:
    """diagnosis.json."""

    def signature_of(one: Signature) -> dict[str, Any]:
        causes = [{"cause": c.text, "try": c.remedy} for c in diagnosis.causes_of(one)]
        return {
            "id": one.id,
            "title": one.title,
            "evidence": list(one.evidence),
            "steps": list(one.steps),
            "causes": causes,
        }

    return {
        "exit_code": diagnosis.exit_code,
        "read": list(told),
        "signatures": [signature_of(one) for one in diagnosis.faults],
        "remarks": [signature_of(one) for one in diagnosis.remarks],
        "not_judged": {one.id: one.reason for one in diagnosis.not_judged},
        "not_covered": list(NOT_COVERED),
    }
