"""Conversations for the token viewer of a page, packed so that hundreds of them stay small."""

import itertools
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

IGNORED = -100
Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True)
class TokenFinding:
    """What is wrong with a row. position: the first token concerned, or -1; count: how many."""

    kind: str
    position: int
    count: int
    detail: str


@dataclass(frozen=True)
class TokenView:
    """One conversation. anchor: unique on the page, as in #row-3; detail: why it was left out.

    tokens: text of each token, bytes where they are no text alone; labels: the token's own id where
    supervised, negative where masked; total: tokens of the row, when only its first are here.
    """

    anchor: str
    source: str
    split: str
    status: str
    tokens: Sequence[str | bytes]
    ids: Sequence[int]
    labels: Sequence[int]
    roles: Sequence[str]
    findings: Sequence[TokenFinding] = field(default_factory=list)
    detail: str = ""
    total: int | None = None


def run_lengths(values: Iterable[Value]) -> list[tuple[Value, int]]:
    """Neighbours that are equal, counted: "aab" is [("a", 2), ("b", 1)]."""
    return [(value, len(list(group))) for value, group in itertools.groupby(values)]


class Numbering(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, thing: Any) -> int:
        self[thing] = len(self)
        return self[thing]


def pack(views: Sequence[TokenView]) -> dict[str, Any]:
    """The views with every distinct token once.

    pieces, ids: text (or list of bytes) and id of each distinct token. Of each row: tokens, numbers
    of pieces; roles, flat pairs of role number and run length; supervised, run lengths of masked
    and supervised tokens by turns; labels, flat pairs of position and label where it is neither
    the token's own id nor -100; findings, lists of kind, position, count, detail.
    """
    pieces, roles = Numbering(), Numbering()
    rows = [_pack_row(view, pieces, roles) for view in views]
    return {
        "roles": list(roles),
        "ids": [token_id for token_id, _ in pieces],
        "pieces": [list(token) if isinstance(token, bytes) else token for _, token in pieces],
        "rows": rows,
    }


def _pack_row(view: TokenView, pieces: Numbering, roles: Numbering) -> dict[str, Any]:
    supervised = [label >= 0 for label in view.labels]
    expected = zip(view.ids, supervised, strict=True)
    odd = [
        (position, label)
        for position, (label, (token_id, target)) in enumerate(
            zip(view.labels, expected, strict=True)
        )
        if label != (token_id if target else IGNORED)
    ]
    runs = run_lengths(supervised)
    return {
        "anchor": view.anchor,
        "source": view.source,
        "split": view.split,
        "status": view.status,
        "detail": view.detail,
        "total": len(view.ids) if view.total is None else view.total,
        "tokens": [pieces[pair] for pair in zip(view.ids, view.tokens, strict=True)],
        "roles": [
            number for role, length in run_lengths(view.roles) for number in (roles[role], length)
        ],
        "supervised": ([0] if runs and runs[0][0] else []) + [length for _, length in runs],
        "labels": [number for pair in odd for number in pair],
        "findings": [[f.kind, f.position, f.count, f.detail] for f in view.findings],
    }


def script_json(content: Any) -> str:
    """Compact JSON that no HTML parser takes for the end of the script element it stands in."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
