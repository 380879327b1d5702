"""Which rows go on the page of gate 1? A bounded sample of all, and of each thing that can happen.

Rows of any status and with any finding are among them, whatever the size of the data set.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..chat.labels import Role
from ..chat.token_store import TokenRow
from ..chat.tokenizer import ChatTokenizer
from ..report.token_view import TokenFinding, TokenView
from .findings import Finding
from .pieces import Pieces
from .prepare import Prepared

STATUS_ROWS = 10
"""Rows of each status other than `kept` that are shown beside the evenly spaced ones."""
KIND_ROWS = 10
"""Rows of each kind of finding that are shown even where no room is left for findings."""
ROW_TOKENS = 16_384
"""Tokens shown of one row."""
PAGE_TOKENS = 1_000_000
"""Tokens shown of all rows; a row that does not fit any more is left out, and counted."""
COLLATED = "as collated"

Integers = NDArray[np.integer[Any]]


class Sampler:
    """Chooses rows: evenly spaced ones, the first with findings, and some of each status.

    wanted: how many evenly spaced rows, and as many with findings; rows: how many there are.
    """

    def __init__(self, wanted: int, rows: int, tokenizer: ChatTokenizer) -> None:
        self.views: list[TokenView] = []
        self.left_out = 0
        self._stride = max(math.ceil(rows / wanted), 1)
        self._faulty_left = {"rows": wanted, "batch": wanted}
        self._tokens_left = PAGE_TOKENS
        self._seen = 0
        self._collated = 0
        self._statuses = Counter[str]()
        self._kinds = Counter[tuple[str, str]]()
        self._pieces = Pieces(tokenizer)

    def look_at(self, prepared: Prepared, split: str) -> None:
        """Take the row, or not. Rows are numbered from 1 in the order in which they come."""
        self._seen += 1
        if not self._wants(prepared):
            return
        row = prepared.row
        nothing = np.zeros(0, np.int32)
        ids, labels, roles = (
            (nothing, nothing, nothing) if row is None else (row.input_ids, row.labels, row.roles)
        )
        view = self._view(
            f"row-{self._seen}",
            prepared.conversation.source,
            split,
            prepared.status,
            (ids, labels, roles),
            prepared.findings,
            prepared.detail,
        )
        self._add(view)

    def _wants(self, prepared: Prepared) -> bool:
        chosen = (self._seen - 1) % self._stride == 0
        chosen = self._wants_findings(prepared.findings, "rows") or chosen
        if prepared.status != "kept":
            self._statuses[prepared.status] += 1
            chosen = chosen or self._statuses[prepared.status] <= STATUS_ROWS
        return chosen

    def _wants_findings(self, findings: Sequence[Finding], where: Literal["rows", "batch"]) -> bool:
        kinds = {(where, finding.kind) for finding in findings}
        rare = any(self._kinds[kind] < KIND_ROWS for kind in kinds)
        self._kinds.update(kinds)
        if kinds and self._faulty_left[where]:
            self._faulty_left[where] -= 1
            return True
        return rare

    def look_at_batch(
        self,
        rows: Sequence[TokenRow],
        split: str,
        batch: Mapping[str, Integers],
        findings: Sequence[Finding],
    ) -> None:
        """Take the rows that `findings` are about, as the collator put them into `batch`.

        batch: input_ids, attention_mask and labels, each int64 [rows, length].
        """
        for index, row in enumerate(rows):
            mine = [finding for finding in findings if finding.source == row.source]
            if not mine or not self._wants_findings(mine, "batch"):
                continue
            self._collated += 1
            ids, mask, labels = (
                batch[name][index] for name in ("input_ids", "attention_mask", "labels")
            )
            roles = np.full(len(ids), Role.PAD, np.uint8)
            if int((mask == 1).sum()) == len(row.roles):
                roles[mask == 1] = row.roles
            anchor = f"collated-{self._collated}"
            placed = [self._in_batch(finding, mask) for finding in mine]
            parts = (ids, labels, roles)
            self._add(self._view(anchor, row.source, split, COLLATED, parts, placed, ""))

    @staticmethod
    def _in_batch(finding: Finding, mask: Integers) -> Finding:
        """The finding with its position counted in the padded row, as the batch holds it."""
        real = np.flatnonzero(mask == 1)
        if finding.kind == "padding_supervised" or not 0 <= finding.position < len(real):
            return finding
        return replace(finding, position=int(real[finding.position]))

    def _view(
        self,
        anchor: str,
        source: str,
        split: str,
        status: str,
        parts: tuple[Integers, Integers, Integers],
        findings: Sequence[Finding],
        detail: str,
    ) -> TokenView:
        ids, labels, roles = (part[:ROW_TOKENS].tolist() for part in parts)
        return TokenView(
            anchor=anchor,
            source=source,
            split=split,
            status=status,
            tokens=self._pieces.of(ids),
            ids=ids,
            labels=labels,
            roles=[Role(role).name.lower() for role in roles],
            findings=[TokenFinding(f.kind, f.position, f.count, f.detail) for f in findings],
            detail=detail,
            total=len(parts[0]),
        )

    def _add(self, view: TokenView) -> None:
        if len(view.ids) > self._tokens_left:
            self.left_out += 1
            return
        self._tokens_left -= len(view.ids)
        self.views.append(view)
