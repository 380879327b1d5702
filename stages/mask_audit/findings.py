"""What an audit finds: kinds of faults, the rows that have them, and their counts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import Message

Kind = Literal[
    "prompt_supervised",
    "header_supervised",
    "scaffold_differs",
    "content_masked",
    "reasoning_differs",
    "call_differs",
    "stop_masked",
    "stop_missing",
    "label_differs_from_input",
    "id_outside_vocabulary",
    "no_supervised_token",
    "content_dropped",
    "content_trimmed",
    "reasoning_dropped",
    "call_dropped",
    "markers_differ",
    "double_bos",
    "open_generation_prompt",
    "ends_without_answer",
    "unknown_role",
    "default_system_injected",
    "control_token_in_content",
    "collated_tokens_differ",
    "padding_supervised",
    "attention_mask_wrong",
    "labels_shifted",
    "positions_wrong",
    "target_across_border",
    "row_not_dealt_once",
]


@dataclass(frozen=True)
class Row:
    """What is audited. input_ids, labels: int32 [T]; truncated: the end of the text was cut off."""

    source: str
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    messages: Sequence[Message]
    truncated: bool = False


@dataclass(frozen=True)
class Finding:
    """One kind of fault in one row. position: its first token, or -1; count: its tokens.

    runs: [start, end) of every unbroken stretch of these, where labels were compared.
    """

    kind: Kind
    source: str
    position: int
    count: int
    detail: str
    runs: tuple[tuple[int, int], ...] = ()


@dataclass
class Audit:
    """Counts over all audited rows. must_mask and must_supervise are tokens, faults by kind.

    rows_of: how many rows have findings of a kind; limit: how many findings of a kind are kept,
    the first ones, so that memory does not grow with the data; None keeps all.
    """

    rows: int = 0
    must_mask: int = 0
    must_supervise: int = 0
    faults: Counter[Kind] = field(default_factory=Counter)
    rows_of: Counter[Kind] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    limit: int | None = None
    _last: dict[Kind, str] = field(default_factory=dict)
    _kept: Counter[Kind] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        """Rows are audited one after another: those of a kind in one row are neighbours."""
        self.faults[finding.kind] += finding.count
        if self._last.get(finding.kind) != finding.source:
            self.rows_of[finding.kind] += 1
            self._last[finding.kind] = finding.source
        self._keep(finding)

    def _keep(self, finding: Finding) -> None:
        if self.limit is None or self._kept[finding.kind] < self.limit:
            self._kept[finding.kind] += 1
            self.findings.append(finding)

    def include(self, other: "Audit") -> None:
        """Add what another audit found in other rows."""
        self.rows += other.rows
        self.must_mask += other.must_mask
        self.must_supervise += other.must_supervise
        self.faults.update(other.faults)
        self.rows_of.update(other.rows_of)
        self._last.update(other._last)
        for finding in other.findings:
            self._keep(finding)
