"""Stream one input file: hash it, parse it, split it, and keep a few bytes of every row.

What is kept of a row (45 bytes, in flat arrays) is enough to find duplicates, conflicting answers
and leaks between the splits of millions of rows afterwards.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import (
    ASSISTANT,
    BadRow,
    Conversation,
    content_key,
    first_answer,
    is_empty_answer,
    prompt_key,
)
from ..chat.split import SPLITS, Split, split_of
from .dialects import Dialect, RowParser
from .formats import Unit, open_rows, position

PROGRESS_ROWS = 2048


@dataclass(frozen=True)
class RowKeys:
    """Flat arrays over rows; a key of 16 bytes is two columns of uint64.

    content, prompt: uint64 [rows, 2]; answer: uint64 [rows] (first answer); line: uint32 [rows]
    (or item, see FileRecord.unit);
    split: uint8 [rows], an index into SPLITS.
    """

    content: NDArray[np.uint64]
    prompt: NDArray[np.uint64]
    answer: NDArray[np.uint64]
    line: NDArray[np.uint32]
    split: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.line)

    @classmethod
    def concatenate(cls, parts: list["RowKeys"]) -> "RowKeys":
        """The rows of all parts; one part is returned as it is."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS))


COLUMNS = ("content", "prompt", "answer", "line", "split")


@dataclass
class FileRecord:
    """What one input file held. `answer_bytes` counts each byte value in assistant turns.

    dialect: of its rows, empty when none of them fits one; unit: what its rows are numbered by.
    """

    path: str
    dialect: str = ""
    unit: Unit = "line"
    sha256: str = ""
    size: int = 0
    blank_lines: int = 0
    bad_rows: list[tuple[int, str]] = field(default_factory=list)
    empty_answers: list[int] = field(default_factory=list)
    role_turns: Counter[str] = field(default_factory=Counter)
    role_characters: Counter[str] = field(default_factory=Counter)
    answer_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))
    keys: RowKeys | None = None
    rows: int = 0

    def where(self, number: int) -> str:
        """The name of a row: file:line, as a rule."""
        return position(self.path, number, self.unit)

    def take_keys(self) -> RowKeys:
        """Hand the keys over, so that they can be freed when their new owner is done with them."""
        assert self.keys is not None
        keys, self.keys = self.keys, None
        return keys


class _KeyColumns:
    """Growing columns of RowKeys."""

    def __init__(self) -> None:
        self.content, self.prompt, self.answer = bytearray(), bytearray(), bytearray()
        self.line, self.split = array("I"), array("B")

    def append(self, conversation: Conversation, prompt: bytes, line: int, split: Split) -> None:
        position = first_answer(conversation.messages)
        self.content += bytes.fromhex(conversation.id)
        self.prompt += prompt
        self.answer += content_key(conversation.messages[position : position + 1])[:8]
        self.line.append(line)
        self.split.append(SPLITS.index(split))

    def freeze(self) -> RowKeys:
        return RowKeys(
            content=np.frombuffer(self.content, np.uint64).reshape(-1, 2),
            prompt=np.frombuffer(self.prompt, np.uint64).reshape(-1, 2),
            answer=np.frombuffer(self.answer, np.uint64),
            line=np.frombuffer(self.line, np.uint32),
            split=np.frombuffer(self.split, np.uint8),
        )


def ingest_file(
    path: Path,
    split_paths: dict[Split, Path],
    *,
    fixed_split: Split | None,
    validation_fraction: float,
    split_seed: int,
    stop_at_bad_row: bool,
    dialect: Dialect | Literal["auto"] = "auto",
    advance: Callable[[int], None] = lambda size: None,
) -> FileRecord:
    """Read `path` once; append its conversations to `split_paths`, normalised, one a line.

    fixed_split: the split of every row, or None to split by content.
    stop_at_bad_row: end at the first row that is no conversation (the record then names it).
    advance: told the number of input bytes passed since the last call.
    """
    columns = _KeyColumns()
    encoder = msgspec.json.Encoder()
    parser = RowParser(dialect)
    with ExitStack() as stack:
        reader = stack.enter_context(closing(open_rows(path)))
        record = FileRecord(path.as_posix(), size=path.stat().st_size)
        outputs = {split: stack.enter_context(out.open("ab")) for split, out in split_paths.items()}
        told = 0
        for count, row in enumerate(reader.rows(), start=1):
            if count % PROGRESS_ROWS == 0:
                advance(reader.passed() - told)
                told = reader.passed()
            try:
                conversation = parser.parse(row.value, row.source)
            except BadRow as reason:
                record.bad_rows.append((row.number, str(reason)))
                if stop_at_bad_row:
                    break
                continue
            prompt = prompt_key(conversation)
            split = fixed_split or split_of(prompt, validation_fraction, split_seed)
            columns.append(conversation, prompt, row.number, split)
            _count_turns(record, conversation, row.number)
            outputs[split].write(encoder.encode(conversation) + b"\n")
        advance(reader.passed() - told)
        record.sha256, record.blank_lines = reader.hexdigest(), reader.blank_lines
        record.dialect, record.unit = parser.dialect or "", reader.unit
    record.keys = columns.freeze()
    record.rows = len(record.keys)
    return record


def _count_turns(record: FileRecord, conversation: Conversation, number: int) -> None:
    for message in conversation.messages:
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        record.role_turns[message["role"]] += 1
        record.role_characters[message["role"]] += len(text)
        if message["role"] == ASSISTANT:
            spoken = np.frombuffer(text.encode(), np.uint8)
            record.answer_bytes += np.bincount(spoken, minlength=256)
    if any(map(is_empty_answer, conversation.messages)):
        record.empty_answers.append(number)


def entropy_nats(counts: NDArray[np.int64]) -> float:
    """Entropy in nats of the distribution that `counts` describes; 0.0 for no counts."""
    probabilities = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(probabilities * np.log(probabilities)).sum())
