"""Drifts as lines for the terminal."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..config.errors import visible
from ..provenance.drift import Drift
from ..report.terminal import console

if TYPE_CHECKING:  # DVC and torch: not for `holdshort verify`
    from .comparison import Comparison

WIDTH = 16
"""Characters of a digest that are shown."""
SHOWN = 20
"""Drifts of a kind that are shown; the others are counted."""


def shorten(value: str) -> str:
    is_digest = len(value) in (32, 40, 64) and set(value) <= set("0123456789abcdef")
    return f"{value[:WIDTH]}..." if is_digest else value


def line(drift: Drift, then: str = "then", now: str = "now") -> str:
    """then, now: what the two values are called."""
    values = f"{shorten(drift.then)} ({then}) -> {shorten(drift.now)} ({now})"
    return visible(f"{drift.kind} {drift.name}: {values}")


def print_drifts(drifts: Sequence[Drift], then: str, now: str) -> None:
    """A line each; of many of a kind the first."""
    total, shown = Counter(drift.kind for drift in drifts), Counter[str]()
    for drift in drifts:
        shown[drift.kind] += 1
        if shown[drift.kind] <= SHOWN:
            console.print(f"  {line(drift, then, now)}{remark(drift)}")
        elif shown[drift.kind] == total[drift.kind]:
            console.print(f"  ... and {total[drift.kind] - SHOWN} more of kind {drift.kind}")


def remark(drift: Drift) -> str:
    is_wording = drift.kind == "code" and drift.meaning == "nothing"
    return "; comments and docstrings only" if is_wording else ""


def print_comparison(found: "Comparison", then: str, now: str) -> None:
    """Causes, then effects, then what could not be compared."""
    for title, drifts in (("because of:", found.causes), ("what came of it:", found.effects)):
        if drifts:
            console.print(title)
            print_drifts(drifts, then, now)
    for one in found.unknown:
        console.print(f"not compared: {one}")
