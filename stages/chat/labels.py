"""Which tokens are trained on? A role for every token, and labels by the policy in `labels`.

The policy names the roles that are supervised in assistant turns; the stop token of such a turn
always is. `labels.turns: last` supervises only the last turn; a message with `"weight": 0` is never
supervised.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..config.schema import Labels
from .conversation import ASSISTANT, Message
from .spans import NotJudgeable, Span
from .tokenizer import ChatTokenizer, Encoded

IGNORE_INDEX = -100


class Role(IntEnum):
    """What a token is there for."""

    PAD = 0
    BOS = 1
    SYSTEM = 2
    USER = 3
    TOOL = 4
    OTHER = 5
    HEADER = 6
    CONTENT = 7
    STOP = 8
    SCAFFOLD = 9
    REASONING = 10
    TOOL_CALL = 11


ROLE_OF_MESSAGE = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "tool": Role.TOOL,
    ASSISTANT: Role.CONTENT,
}
ROLE_OF_SPAN = {"content": Role.CONTENT, "reasoning": Role.REASONING, "call": Role.TOOL_CALL}


@dataclass(frozen=True)
class Labelled:
    """One conversation, ready to train on.

    input_ids, labels: int32 [T], labels[t] is input_ids[t] where supervised, else -100 (the model
    or the loss shifts, not the labels); roles: uint8 [T]; straddling: positions of tokens that
    cover the edge between what is said and the template's text.
    """

    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    roles: NDArray[np.uint8]
    straddling: NDArray[np.int64]

    def first(self, tokens: int) -> "Labelled":
        """The row cut off after so many tokens."""
        kept = self.straddling[self.straddling < tokens]
        return Labelled(self.input_ids[:tokens], self.labels[:tokens], self.roles[:tokens], kept)


def supervised_runs(labels: NDArray[np.int32]) -> list[tuple[int, int]]:
    """[start, end) of every unbroken stretch of supervised tokens."""
    mask = np.concatenate(([False], labels != IGNORE_INDEX, [False]))
    edges = np.flatnonzero(mask[1:] != mask[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def supervised_turns(messages: Sequence[Message], turns: Literal["all", "last"]) -> list[int]:
    """Indices of the messages that the policy supervises."""
    answers = [index for index, turn in enumerate(messages) if turn["role"] == ASSISTANT]
    chosen = answers[-1:] if turns == "last" else answers
    return [index for index in chosen if messages[index].get("weight", 1) != 0]


def label_conversation(
    encoded: Encoded,
    text: str,
    messages: Sequence[Message],
    spans: Sequence[Span],
    tokenizer: ChatTokenizer,
    policy: Labels,
) -> Labelled:
    """Give every token of `text` its role, and its label by the policy.

    Raises NotJudgeable when the beginning of an assistant turn cannot be told.
    """
    labeller = _Labeller(encoded, text, tokenizer, policy)
    chosen = set(supervised_turns(messages, policy.turns))
    for first, last in _turns(spans):
        index = spans[first].index
        lead = spans[first - 1].end if first else 0
        following = spans[last].start if last < len(spans) else len(text)
        if messages[index]["role"] == ASSISTANT:
            calls = bool(messages[index].get("tool_calls"))
            labeller.answer(spans[first:last], lead, following, calls, index in chosen)
        else:
            role = ROLE_OF_MESSAGE.get(messages[index]["role"], Role.OTHER)
            for span in spans[first:last]:
                labeller.mark(span.start, span.end, role)
    return labeller.finish()


def _turns(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """[first, last) of every unbroken run of spans of one message."""
    starts = [
        number
        for number in range(len(spans))
        if not number or spans[number].index != spans[number - 1].index
    ]
    return list(itertools.pairwise([*starts, len(spans)]))


class _Labeller:
    """Roles and supervision of one row, filled in turn by turn."""

    def __init__(
        self, encoded: Encoded, text: str, tokenizer: ChatTokenizer, policy: Labels
    ) -> None:
        self._ids, self._starts, self._ends = encoded.input_ids, encoded.starts, encoded.ends
        self._text, self._tokenizer = text, tokenizer
        self._supervise = {Role[name.upper()] for name in policy.supervise}
        self._mask_straddling = policy.straddling == "mask"
        self._stops = set(tokenizer.stop_token_ids.tolist())
        self._roles = np.full(len(self._ids), Role.SCAFFOLD, np.uint8)
        self._supervised = np.zeros(len(self._ids), bool)
        self._straddling: set[int] = set()

    def mark(self, start: int, end: int, role: Role) -> tuple[int, int]:
        """Give all tokens with a character in [start, end) their role; returns which these are."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end) if end > start else first
        self._roles[first:last] = role
        return first, last

    def answer(
        self, spans: Sequence[Span], lead: int, following: int, calls: bool, supervised: bool
    ) -> None:
        """Mark an assistant turn: header, what stands before and between the spans, stop token.

        lead: where the spans of the message before end; following: where those of the next begin.
        """
        header, body = self._find_header(spans[0], lead)
        parts = list(_parts(spans, body))
        stop = self._find_stop(spans[-1].end, following)
        end = self._starts[stop] if stop is not None else spans[-1].end
        if end > spans[-1].end:
            tail = Role.TOOL_CALL if calls else Role.SCAFFOLD
            parts.append((spans[-1].end, end, tail))
        self.mark(header, body, Role.HEADER)
        for start, stop_at, role in sorted(parts, key=self._precedence):
            first, last = self.mark(start, stop_at, role)
            self._supervised[first:last] = supervised and role in self._supervise
        if stop is not None:
            self._roles[stop] = Role.STOP
            self._supervised[stop] = supervised
        for span in spans:
            if span.kind != "call":
                self._straddling.update(self._across(span.start), self._across(span.end))
        if self._mask_straddling:
            self._mask_at_edges(parts, stop)
        self._mask_across(body)

    def _find_header(self, first: Span, lead: int) -> tuple[int, int]:
        """Where the header begins, and where it ends and what the model writes begins.

        Without a header (Mistral has none, DeepSeek none after a result), that is where the text
        begins; a call has template text before it, and so no certain beginning.
        """
        header = self._tokenizer.header
        found = self._text.rfind(header, lead, first.start) if header else -1
        if found >= 0:
            return found, found + len(header)
        if first.kind == "call":
            raise NotJudgeable(
                f"the template writes no header before the call of message {first.index} "
                "(assistant), so that its beginning is not certain"
            )
        return first.start, first.start

    def _find_stop(self, end: int, following: int) -> int | None:
        """The token that ends the turn whose text ends at `end`."""
        first, limit = bisect_left(self._starts, end), bisect_left(self._starts, following)
        behind = enumerate(self._ids[first:limit].tolist(), start=first)
        return next((position for position, token in behind if token in self._stops), None)

    def _mask_across(self, body: int) -> None:
        """Mask tokens over the edge of the header: after a prompt that ends there, none is met."""
        for position in self._across(body):
            self._supervised[position] = False
            self._roles[position] = Role.HEADER
            self._straddling.add(position)

    def _precedence(self, part: tuple[int, int, Role]) -> tuple[bool, bool]:
        """Last comes what is supervised, and what is said: it gets the tokens over its edges."""
        return part[2] in self._supervise, part[2] != Role.SCAFFOLD

    def _mask_at_edges(self, parts: Sequence[tuple[int, int, Role]], stop: int | None) -> None:
        """Mask tokens that hold both what is supervised and what is not."""
        changes = [part[:2] for part in parts if part[2] in self._supervise]
        if stop is not None:
            changes.append((self._starts[stop], self._ends[stop]))
        edges = Counter(edge for change in changes for edge in change)
        for edge, times in edges.items():
            if times == 1:  # twice: one supervised part ends where the next begins
                for position in self._across(edge):
                    self._supervised[position] = False

    def _across(self, edge: int) -> range:
        """Positions of the tokens that hold characters on both sides of an edge."""
        return range(bisect_right(self._ends, edge), bisect_left(self._starts, edge))

    def finish(self) -> Labelled:
        if len(self._ids) and self._ids[0] == self._tokenizer.bos_token_id:
            self._roles[0] = Role.BOS
        labels = np.where(self._supervised, self._ids, np.int32(IGNORE_INDEX))
        edges = np.array(sorted(self._straddling), np.int64)
        return Labelled(self._ids, labels, self._roles, edges)


def _parts(spans: Sequence[Span], body: int) -> list[tuple[int, int, Role]]:
    """[start, end) and role of the spans of an answer and of the template's text before each.

    Tags around reasoning belong to it; all from the end of a content to a call belongs to the call.
    """
    parts, position, before = [], body, Role.SCAFFOLD
    for span in spans:
        role = ROLE_OF_SPAN[span.kind]
        between = role if role in (Role.REASONING, Role.TOOL_CALL) else before
        if span.start > position:
            parts.append((position, span.start, between))
        parts.append((span.start, span.end, role))
        position = span.end
        before = Role.REASONING if role == Role.REASONING else Role.SCAFFOLD
    return parts
