"""Conversations become labelled, audited rows; whatever is left out is counted and named."""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import Conversation
from ..chat.labels import IGNORE_INDEX, Labelled, label_conversation
from ..chat.spans import NotJudgeable, SpanFinder
from ..chat.template_at_work import TemplateError
from ..chat.tokenizer import ChatTokenizer, Encoded
from ..config.errors import UserError
from ..config.schema import Data, Labels
from .audit import audit_rows
from .findings import Audit, Finding, Row
from .markers import can_compare, compare_with_markers
from .row_checks import check_rows

CHUNK_ROWS = 256

Drop = Literal["template_refuses", "not_judgeable", "too_long", "no_supervised_token"]


@dataclass
class Prepared:
    """What became of one conversation: a row to train on, or the reason why there is none.

    text, tokens: the rendering (while it is worked on) and its length before any cut; row: also
    there when it was dropped after it was labelled; marked: spans of the template's own markers,
    where they can be compared.
    """

    conversation: Conversation
    text: str = ""
    tokens: int = 0
    row: Labelled | None = None
    dropped: Drop | None = None
    detail: str = ""
    truncated: bool = False
    marked: list[tuple[int, int]] | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def status(self) -> str:
        return f"dropped: {self.dropped}" if self.dropped else "cut" if self.truncated else "kept"


@dataclass
class Accounting:
    """Where the rows of a split went: loaded = kept + dropped; truncated rows are kept ones.

    lengths: tokens of a rendered row, before any cut -> rows; supervised_ids: int64 [vocabulary],
    how often each id is a target.
    """

    supervised_ids: NDArray[np.int64]
    loaded: int = 0
    rendered: int = 0
    kept: int = 0
    truncated: int = 0
    dropped: Counter[Drop] = field(default_factory=Counter)
    tokens_kept: int = 0
    tokens_supervised: int = 0
    straddling_tokens: int = 0
    lengths: Counter[int] = field(default_factory=Counter)

    def add(self, prepared: Prepared) -> None:
        self.loaded += 1
        if prepared.dropped != "template_refuses":
            self.rendered += 1
            self.lengths[prepared.tokens] += 1
        row = prepared.row
        if prepared.dropped:
            self.dropped[prepared.dropped] += 1
            return
        assert row is not None
        targets = row.labels[row.labels != IGNORE_INDEX]
        self.kept += 1
        self.truncated += prepared.truncated
        self.tokens_kept += len(row.input_ids)
        self.tokens_supervised += len(targets)
        self.straddling_tokens += len(row.straddling)
        np.add.at(self.supervised_ids, targets, 1)


class Preparer:
    """Renders, tokenises, labels, cuts and audits conversations, some hundreds at a time."""

    def __init__(self, tokenizer: ChatTokenizer, data: Data, labels: Labels) -> None:
        self.tokenizer, self._data, self._labels = tokenizer, data, labels
        self._spans = SpanFinder(
            lambda messages, tools: tokenizer.render(messages, tools), tokenizer.inspected
        )

    def prepare(self, conversations: Iterable[Conversation], audit: Audit) -> Iterator[Prepared]:
        """Prepare a stream of conversations, in order; `audit` gathers what is found.

        Raises UserError for a row that the template refuses, unless data.on_bad_row is `report`.
        """
        waiting: tuple[list[Prepared], Future[list[Encoded]]] | None = None
        with ThreadPoolExecutor(1) as pool:  # tokenising needs no interpreter lock
            for chunk in self._rendered(iter(conversations)):
                texts = [prepared.text for prepared in chunk]
                following = chunk, pool.submit(self.tokenizer.encode, texts)
                if waiting is not None:
                    yield from self._finish(*waiting, audit)
                waiting = following
            if waiting is not None:
                yield from self._finish(*waiting, audit)

    def _rendered(self, conversations: Iterator[Conversation]) -> Iterator[list[Prepared]]:
        while chunk := [Prepared(one) for one in islice(conversations, CHUNK_ROWS)]:
            for prepared in chunk:
                self._render(prepared)
            yield chunk

    def _finish(
        self, chunk: list[Prepared], encoded: Future[list[Encoded]], audit: Audit
    ) -> list[Prepared]:
        """Label, cut and audit a chunk once it is tokenised."""
        found = Audit()
        for prepared, tokens in zip(chunk, encoded.result(), strict=True):
            if not prepared.dropped:
                self._label(prepared, tokens, found)
        self._audit([prepared for prepared in chunk if not prepared.dropped], found)
        by_source = {prepared.conversation.source: prepared for prepared in chunk}
        for finding in found.findings:
            by_source[finding.source].findings.append(finding)
        audit.include(found)
        return chunk

    def _render(self, prepared: Prepared) -> None:
        conversation = prepared.conversation
        try:
            messages, tools = conversation.messages, conversation.tools
            if can_compare(conversation, self.tokenizer, self._labels):
                prepared.text, prepared.marked = self.tokenizer.render_marked(messages, tools)
            else:
                prepared.text = self.tokenizer.render(messages, tools)
        except TemplateError as reason:
            if self._data.on_bad_row == "stop":
                raise UserError(
                    f"{conversation.source}: the chat template in {self.tokenizer.directory} "
                    f"refuses the row: {reason}; mend the row, or set data.on_bad_row to 'report' "
                    "to leave such rows out and have them counted and named"
                ) from None
            prepared.dropped, prepared.detail = "template_refuses", str(reason)

    def _label(self, prepared: Prepared, tokens: Encoded, audit: Audit) -> None:
        conversation, limit = prepared.conversation, self._data.max_length
        prepared.tokens = len(tokens.input_ids)
        messages = conversation.messages
        try:
            spans = self._spans.find(prepared.text, messages, conversation.tools)
            row = label_conversation(
                tokens, prepared.text, messages, spans, self.tokenizer, self._labels
            )
        except NotJudgeable as reason:
            prepared.dropped, prepared.detail = "not_judgeable", str(reason)
            return
        if prepared.tokens > limit:
            prepared.detail = f"{prepared.tokens} tokens, data.max_length is {limit}"
            if self._data.truncation == "drop":
                prepared.row, prepared.dropped = row, "too_long"
                return
            row, prepared.truncated = row.first(limit), True
        prepared.row = row
        if not (row.labels != IGNORE_INDEX).any():
            prepared.dropped = "no_supervised_token"
            prepared.detail = "no answer in it is supervised by the policy in labels"
        elif prepared.marked is not None and not prepared.truncated:
            source = conversation.source
            compare_with_markers(source, tokens, prepared.marked, row, self.tokenizer, audit)

    def _audit(self, kept: list[Prepared], audit: Audit) -> None:
        rows = []
        for prepared in kept:
            row, conversation = prepared.row, prepared.conversation
            assert row is not None
            source, messages = conversation.source, conversation.messages
            rows.append(Row(source, row.input_ids, row.labels, messages, prepared.truncated))
        audit_rows(rows, self.tokenizer, self._labels, audit)
        check_rows(rows, [prepared.text for prepared in kept], self.tokenizer, audit)
