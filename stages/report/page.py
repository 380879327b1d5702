"""reports/<stage>/index.html: one file that opens offline and escapes what it shows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..provenance.records import format_value
from ..verdict.judging import Check
from ..verdict.record import Verdict


@dataclass(frozen=True)
class Table:
    """Rows under column names; `total` says how many there are when `rows` holds only some."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    total: int | None = None


@dataclass(frozen=True)
class Section:
    """A heading with text, charts (SVG of our own making) and a table below it."""

    title: str
    text: str = ""
    charts: Sequence[str] = ()
    table: Table | None = None


@dataclass(frozen=True)
class TokenView:
    """One conversation for the token viewer. findings: kind and detail, at a token or at -1."""

    source: str
    tokens: Sequence[str]
    ids: Sequence[int]
    labels: Sequence[int]
    roles: Sequence[str]
    findings: Sequence[Mapping[str, Any]] = field(default_factory=list)


def report_directory(stage: str) -> Path:
    directory = Path("reports") / stage
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def worst_first(checks: Sequence[Check]) -> list[Check]:
    """What a reader must see first: failures, then what was not judged, then warnings."""
    order = ("fail", "not_judged", "warn", "pass")
    return sorted(checks, key=lambda check: order.index(check.status))


def write_page(
    stage: str,
    documentation: str | None,
    *,
    verdict: Verdict | None = None,
    sections: Sequence[Section] = (),
    conversations: Sequence[TokenView] = (),
    summary: Mapping[str, Any] | None = None,
    directory: Path | None = None,
) -> Path:
    """Write the page of a stage and return its path.

    documentation: the stage's docstring, whose first line is the question that it answers.
    directory: where to, if not to reports/<stage>/.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = format_value
    environment.filters["svg"] = Markup
    environment.filters["worst_first"] = worst_first
    path = (directory or report_directory(stage)) / "index.html"
    page = environment.get_template("page.html.jinja").render(
        stage=stage,
        question=(documentation or "").partition("\n")[0],
        verdict=verdict,
        sections=sections,
        conversations=[asdict(view) for view in conversations],
        summary=summary or {},
    )
    path.write_text(page, encoding="utf-8")
    return path
