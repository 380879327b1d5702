"""Which tokens are trained on? A role for every token, and labels by the policy in `labels`.

Policy: the content of assistant turns and the stop token after each are supervised, all else is
masked. `labels.turns: last` supervises only the last such turn; a message with `"weight": 0` is
never supervised.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .conversation import ASSISTANT, Message
from .spans import Span
from .tokenizer import Encoded

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


ROLE_OF_MESSAGE = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "tool": Role.TOOL,
    ASSISTANT: Role.CONTENT,
}


@dataclass(frozen=True)
class Labelled:
    """One conversation, ready to train on.

    input_ids, labels: int32 [T], labels[t] is input_ids[t] where supervised, else -100 (the model
    or the loss shifts, not the labels); roles: uint8 [T]; straddling: positions of tokens that
    cover the edge between a content and the template's text.
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
    messages: Sequence[Message],
    spans: Sequence[Span],
    *,
    turns: Literal["all", "last"],
    header_length: int,
    bos_token_id: int | None,
    added_token_ids: NDArray[np.int32],
) -> Labelled:
    """Give every token its role, and its label by the policy.

    A token belongs to a content when all its characters do; the stop token of an answer is the
    first added token behind it, before the next content; `header_length` characters before an
    answer are its header.
    """
    starts, ends = encoded.starts, encoded.ends
    roles = np.full(len(starts), Role.SCAFFOLD, np.uint8)
    supervised = np.zeros(len(starts), bool)
    straddling: list[NDArray[np.int64]] = []
    chosen = set(supervised_turns(messages, turns))
    is_added = np.isin(encoded.input_ids, added_token_ids)
    for span, following in zip(spans, [*spans[1:], None], strict=True):
        message = messages[span.index]
        first = int(np.searchsorted(starts, span.start))
        last = int(np.searchsorted(ends, span.end, side="right"))
        roles[first:last] = ROLE_OF_MESSAGE.get(message["role"], Role.OTHER)
        for edge in (span.start, span.end):
            straddling.append(np.flatnonzero((starts < edge) & (ends > edge)))
        if message["role"] == ASSISTANT:
            header = int(np.searchsorted(starts, span.start - header_length))
            roles[header:first] = Role.HEADER
            limit = int(np.searchsorted(starts, following.start)) if following else len(starts)
            stop = last + int(np.argmax(is_added[last:limit])) if is_added[last:limit].any() else -1
            if stop >= 0:
                roles[stop] = Role.STOP
            if span.index in chosen:
                supervised[first:last] = True
                if stop >= 0:
                    supervised[stop] = True
    if len(roles) and encoded.input_ids[0] == bos_token_id:
        roles[0] = Role.BOS
    labels = np.where(supervised, encoded.input_ids, np.int32(IGNORE_INDEX)).astype(np.int32)
    edges = np.unique(np.concatenate(straddling)) if straddling else np.zeros(0, np.int64)
    return Labelled(encoded.input_ids, labels, roles, edges)
