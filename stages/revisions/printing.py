"""Drifts as lines for the terminal."""

from collections import Counter
from collections.abc import Iterable

from ..provenance.drift import Drift
from ..report.terminal import console, visible

WIDTH = 16
"""Characters of a digest that are shown."""
SHOWN = 10
"""Drifts of a kind that are shown; the others are counted."""


def shorten(value: str) -> str:
    is_digest = len(value) in (32, 64) and set(value) <= set("0123456789abcdef")
    return f"{value[:WIDTH]}..." if is_digest else value


def line(drift: Drift) -> str:
    values = f"{shorten(drift.then)} (then) -> {shorten(drift.now)} (now)"
    return visible(f"{drift.kind} {drift.name}: {values}")


def print_drifts(drifts: Iterable[Drift]) -> None:
    """A line each, of many of a kind the first."""
    drifts = list(drifts)
    total, shown = Counter(drift.kind for drift in drifts), Counter[str]()
    for drift in drifts:
        shown[drift.kind] += 1
        if shown[drift.kind] <= SHOWN:
            wording = drift.kind == "code" and drift.meaning == "nothing"
            remark = "; comments and docstrings only" if wording else ""
            console.print(f"  {line(drift)}{remark}", markup=False)
        elif shown[drift.kind] == total[drift.kind]:
            console.print(f"  ... and {total[drift.kind] - SHOWN} more of kind {drift.kind}")
