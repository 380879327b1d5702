"""Where is a fault? Its row, its token, and the message that the token is of or stands beside."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import Conversation
from ..chat.spans import NotJudgeable, SpanFinder
from ..chat.template_at_work import TemplateError
from ..chat.tokenizer import ChatTokenizer
from ..mask_audit.audit import token_bounds
from ..mask_audit.findings import Finding, Row
from .conversations import ForeignRow
from .matching import Place, place_messages

TOKENS_SHOWN = 8


@dataclass(frozen=True)
class Found:
    """A token row, its text, and the conversation that it holds."""

    row: ForeignRow
    text: str
    conversation: Conversation
    truncated: bool = False

    def to_audit(self) -> Row:
        row, messages = self.row, self.conversation.messages
        return Row(row.name, row.input_ids, row.labels, messages, self.truncated)


@dataclass(frozen=True)
class Located:
    """A finding and where it is. position: of its first token in the stored row, or -1.

    where: in, before or after the text of message `message`; both empty where that is not known.
    """

    kind: str
    source: str
    row: str
    position: int
    count: int
    where: str = ""
    message: int | str = ""
    role: str = ""
    tokens: str = ""
    detail: str = ""

    def __str__(self) -> str:
        at = f" token {self.position} {self.tokens}" if self.position >= 0 else ""
        told = f"{self.where} message {self.message} ({self.role})" if self.where else self.detail
        return f"{self.source} ({self.row}){at}: {told}"


@dataclass(frozen=True)
class Anatomy:
    """First character and end of every token, int64 [T], and where the messages stand."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    places: Sequence[Place]


class Locator:
    """Finds tokens and messages of findings in rows of one tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._spans = SpanFinder(tokenizer.render, tokenizer.inspected)
        self._last: tuple[Found, Anatomy] | None = None

    def locate(self, finding: Finding, one: Found) -> Iterator[Located]:
        """The finding at every stretch of its tokens."""
        kind, source, row = finding.kind, one.conversation.source, one.row
        if finding.position < 0 or kind == "padding_supervised":
            at, count = finding.position, finding.count
            yield Located(kind, source, row.name, at, count, detail=finding.detail)
            return
        for start, end in finding.runs or ((finding.position, finding.position + 1),):
            at = int(row.positions[start])
            count = end - start if finding.runs else finding.count
            where, message, role = self._place(kind, one, start)
            said = self._said(row, start, min(end, start + TOKENS_SHOWN))
            yield Located(
                kind, source, row.name, at, count, where, message, role, said, finding.detail
            )

    def _said(self, row: ForeignRow, start: int, end: int) -> str:
        ids = row.input_ids[start:end]
        known = ids[(ids >= 0) & (ids < self._tokenizer.vocab_size)]
        return repr(self._tokenizer.decode(known.tolist()))

    def _place(self, kind: str, one: Found, token: int) -> tuple[str, int | str, str]:
        """(in, before or after, message, its role) of a token."""
        if kind == "id_outside_vocabulary":
            return "", "", ""
        anatomy, messages = self.anatomy(one), one.conversation.messages
        character = int(anatomy.starts[token])
        inside = [place for place in anatomy.places if place.start <= character < place.end]
        earlier = [place for place in anatomy.places if place.end <= character]
        later = [place for place in anatomy.places if place.start >= character]
        follows = kind in ("scaffold_differs", "stop_masked")
        for where, around in (
            ("in", inside[:1]),
            ("after", earlier[-1:] if follows else []),
            ("before", later[:1]),
            ("after", earlier[-1:]),
        ):
            if around:
                index = around[0].index
                return where, index, str(messages[index]["role"])
        return "", "", ""

    def anatomy(self, one: Found) -> Anatomy:
        """Of a row without ids beyond the vocabulary; that of the last row is kept."""
        if self._last is None or self._last[0] is not one:
            bounds = token_bounds(one.row.input_ids.tolist(), one.text, self._tokenizer)
            self._last = one, Anatomy(*bounds, self._places(one))
        return self._last[1]

    def _places(self, one: Found) -> Sequence[Place]:
        """Where the messages stand: to the character, where the template wrote this very text."""
        messages, tools = one.conversation.messages, one.conversation.tools
        try:
            whole = self._tokenizer.render(messages, tools)
            if whole.startswith(one.text):
                spans = self._spans.find(whole, messages, tools)
                return [Place(span.index, span.start, span.end) for span in spans]
        except (TemplateError, NotJudgeable):
            pass
        return place_messages(one.text, messages)[0]
