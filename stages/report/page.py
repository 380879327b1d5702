"""reports/<stage>/index.html: one file that opens offline and escapes what it shows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..config.errors import UserError
from ..provenance.records import format_value
from ..verdict.judging import Check
from ..verdict.record import Verdict
from .token_view import TokenView, pack, script_json


@dataclass(frozen=True)
class Link:
    """Text that leads to an anchor on the page (`#row-3`), or nowhere."""

    text: str
    href: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under column names; a cell is a value or a list of links.

    `total` says how many rows there are when `rows` holds only some.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    total: int | None = None


@dataclass(frozen=True)
class Bar:
    """One stage of a funnel: what is left, and by which reasons the rest was lost on the way."""

    name: str
    value: int
    unit: str
    lost: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A heading with text, charts (SVG of our own making), funnels and a table below it.

    bars: funnels, each drawn against its own first bar.
    """

    title: str
    text: str = ""
    charts: Sequence[str] = ()
    table: Table | None = None
    bars: Sequence[Sequence[Bar]] = ()


def report_directory(stage: str) -> Path:
    directory = Path("reports") / stage
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def worst_first(checks: Sequence[Check]) -> list[Check]:
    """What a reader must see first: failures, then what was not judged, then warnings."""
    order = ("fail", "not_judged", "warn", "pass")
    return sorted(checks, key=lambda check: order.index(check.status))


def count_statuses(checks: Sequence[Check]) -> str:
    """How the checks went, in words: "2 of 17 checks fail, 1 warn, 14 pass"."""
    counts = Counter(check.status for check in worst_first(checks))
    (worst, first), *others = counts.items()
    words = [f"{first} of {len(checks)} checks {worst}", *(f"{n} {name}" for name, n in others)]
    return ", ".join(words).replace("_", " ")


def allowed(check: Check) -> str:
    """What the check allows, in the words of its message."""
    return check.message.partition("(")[2].partition(")")[0] if check.value is not None else ""


def remark(check: Check) -> str:
    """What its message tells beside value, unit and limit."""
    unit = f" {check.unit}" if check.unit else ""
    head = f"{format_value(check.value)}{unit} ({allowed(check)})"
    return check.message.removeprefix(head).removeprefix("; ")


def is_links(cell: Any) -> bool:
    """Whether a cell of a table is a list of links."""
    return isinstance(cell, list) and all(isinstance(one, Link) for one in cell)


def claim_directory(directory: Path, own: str) -> None:
    """Make the directory of a report before anything is computed for it.

    own: pattern of a file that only reports of this kind have. Raises UserError for a directory
    with other things: what DVC, git or another command keeps there would be overwritten.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is no directory; name another for the report")
    if directory.exists() and any(directory.iterdir()) and not any(directory.glob(own)):
        raise UserError(
            f"{directory} holds other files, and no earlier report ({own}); name an empty or a new "
            "directory"
        )
    directory.mkdir(parents=True, exist_ok=True)


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
    environment.filters["count_statuses"] = count_statuses
    environment.filters["allowed"] = allowed
    environment.filters["remark"] = remark
    environment.tests["links"] = is_links
    path = (directory or report_directory(stage)) / "index.html"
    page = environment.get_template("page.html.jinja").render(
        stage=stage,
        question=(documentation or "").partition("\n")[0],
        verdict=verdict,
        sections=sections,
        conversations=Markup(script_json(pack(conversations))) if conversations else "",
        summary=summary or {},
    )
    path.write_text(page, encoding="utf-8")
    return path
