"""What users and assistants say, as words, n-grams and hashes of both, for rows by the batch.

System and tool turns never count: they are the setting of a conversation, not what it teaches.
Words are lower case, without punctuation (as in Brown et al., 2020, appendix C); in scripts that
are written without spaces every character counts as one word. Hashes do not depend on the process.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import ASSISTANT, Conversation, Message

USER = "user"
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
"""Thai, Lao, Burmese, Khmer, kana and Han."""
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
UNSPACED_LETTER = re.compile(rf"[{UNSPACED}]")
SPACED_WORD = re.compile(r"\w+")
"""What WORD finds where no script without spaces is used, three times as fast."""
ASCII_WORD = re.compile(rb"[a-z0-9_]+")
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Batch:
    """The words of some rows, joined.

    words: uint64 [words], hashes; starts: int64 [rows + 1], where each row begins and ends.
    """

    words: Hashes
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Batch":
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        return cls(np.fromiter(chain.from_iterable(rows), np.uint64, int(starts[-1])), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row_keys(self) -> Hashes:
        """uint64 [rows]: equal for rows of the same words in the same order."""
        position = np.arange(len(self.words), dtype=np.uint64) - np.repeat(
            self.starts[:-1], np.diff(self.starts)
        ).astype(np.uint64)
        mixed = mix(self.words + mix(position))
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        length = np.diff(self.starts).astype(np.uint64)
        return mix(sums[self.starts[1:]] - sums[self.starts[:-1]] + mix(length))

    def ngrams(self, n: int) -> tuple[Hashes, NDArray[np.int64]]:
        """(uint64 [n-grams], int64 [n-grams]: the row of each), in order; none spans two rows."""
        if len(self.words) < n:
            return np.zeros(0, np.uint64), np.zeros(0, np.int64)
        row = np.repeat(np.arange(len(self)), np.diff(self.starts))
        last = len(self.words) - n + 1
        hashes = np.zeros(last, np.uint64)
        for offset in range(n):
            hashes *= MULTIPLIER
            hashes += self.words[offset : offset + last]
        inside = row[:last] == row[n - 1 :]
        return mix(hashes[inside]), row[:last][inside]


def mix(values: Hashes) -> Hashes:
    """Spread uint64 values over all bits (the finaliser of SplitMix64; Steele et al., 2014)."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(0xBF58476D1CE4E5B9)
    values = values ^ (values >> np.uint64(27))
    values = values * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def text_of(message: Message) -> str:
    """The text of a message: its content, or the text parts of it; "" where there is none."""
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(part for part in parts if isinstance(part, str))
    return content or ""


def spoken(conversation: Conversation, roles: Iterable[str] = (USER, ASSISTANT)) -> str:
    """The text of the turns of `roles`, calls of tools among it."""
    said = []
    for message in conversation.messages:
        if message["role"] in roles:
            said.append(text_of(message))
            if calls := message.get("tool_calls"):
                said.append(msgspec.json.encode(calls).decode())
    return "\n".join(said)


def word_hashes(text: str) -> list[int]:
    """A hash (of 32 bits) of every word, in order."""
    lower = text.lower()
    if lower.isascii():
        return list(map(crc32, ASCII_WORD.findall(lower.encode())))
    pattern = WORD if UNSPACED_LETTER.search(lower) else SPACED_WORD
    return [crc32(word.encode()) for word in pattern.findall(lower)]
