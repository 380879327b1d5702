"""What a stage prints: a verdict on one screen, tokens with their labels, progress of long work."""

import math
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ..config.errors import visible
from ..provenance.records import format_value
from ..verdict.judging import Check
from ..verdict.record import Verdict

STATUS_STYLE = {
    "pass": "green",
    "warn": "yellow",
    "fail": "bold red",
    "not_judged": "bold magenta",
    "blocked": "bold magenta",
}
EVIDENCE_SHOWN = 5

console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
"""Without markup: what is printed may hold brackets of others, `[/]` among them."""


def progress(unit: str = "") -> Progress:
    """A bar with what is done, the share and the time left; silent when nobody watches."""
    return Progress(
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def print_verdict(verdict: Verdict, evidence: str = "") -> None:
    """The checks of a gate as a table, then what does not pass, with evidence and remedies.

    evidence: where there is more, if not on the gate's page.
    """
    style = STATUS_STYLE[verdict.status]
    title = Text.assemble(f"{verdict.gate}: ", (verdict.status.upper(), style))
    table = Table(title=title, title_justify="left")
    for column in ("check", "status", "value", "allowed"):
        table.add_column(column, overflow="fold", no_wrap=column == "check")
    for check in verdict.checks:
        status = Text(check.status, STATUS_STYLE[check.status])
        table.add_row(check.id, status, _value(check), _allowed(check))
    if verdict.checks:
        console.print(table)
    else:
        console.print(title)
    for check in verdict.checks:
        if check.status != "pass":
            console.print(Text(f"{check.status}: {check.id}: {check.rule}", style))
            console.print(f"  {visible(check.message)}")
            for line in check.evidence[:EVIDENCE_SHOWN]:
                console.print(f"    {visible(line)}")
            if len(check.evidence) > EVIDENCE_SHOWN:
                console.print(f"    ... {len(check.evidence) - EVIDENCE_SHOWN} more in the report")
            console.print(f"  remedy: {check.remedy}")
    for rank, cause in enumerate(verdict.causes, start=1):
        console.print(f"cause {rank}: {cause}")
    page = evidence or f"reports/{verdict.gate}/index.html"
    console.print(f"evidence: {page}")


def _value(check: Check) -> str:
    shown = "-" if check.value is None else format_value(check.value)
    return f"{shown} {check.unit}".rstrip()


def _allowed(check: Check) -> str:
    return check.message.partition("(")[2].partition(")")[0] if check.value is not None else "-"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of numbers, as text."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_tokens(title: str, tokens: Sequence[str], labels: Sequence[int]) -> None:
    """One row token by token: `Token: "..." -> Label: ... (Masked | SUPERVISED)`."""
    console.print(Text(title, "bold"))
    for token, label in zip(tokens, labels, strict=True):
        masked = label < 0
        state, style = ("Masked", "dim red") if masked else ("SUPERVISED", "bold green")
        quoted = visible(token.replace("\\", "\\\\").replace('"', '\\"'))
        console.print(Text(f'Token: "{quoted}" -> Label: {label} ({state})', style), soft_wrap=True)


class TrainingProgress:
    """A bar with loss, learning rate, gradient norm, tokens a second and the time left."""

    def __init__(self, steps: int, done: int) -> None:
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  lr {task.fields[rate]:.2e}"),
            TextColumn("norm {task.fields[norm]:.2f}  {task.fields[speed]:,.0f} tokens/s"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(
            "training",
            total=steps,
            completed=done,
            loss=math.nan,
            rate=0.0,
            norm=math.nan,
            speed=0.0,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, loss: float, rate: float, norm: float, speed: float) -> None:
        self._bar.update(self._task, advance=1, loss=loss, rate=rate, norm=norm, speed=speed)
