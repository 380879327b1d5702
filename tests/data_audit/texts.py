"""Data sets of a few rows, stored as hash_data stores them, and their audit."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from stages.chat.conversation import Conversation
from stages.data_audit.text_audit import TextAudit, audit_texts
from stages.reading.dialects import RowParser

Turn = tuple[str, str]


def conversation(*turns: Turn, source: str = "d:1") -> Conversation:
    """A conversation of (role, content) turns."""
    messages = [{"role": role, "content": content} for role, content in turns]
    return RowParser("openai").parse({"messages": messages}, source)


def asked(question: str, answer: str) -> tuple[Turn, Turn]:
    return ("user", question), ("assistant", answer)


def words(first: int, last: int) -> str:
    """The words w<first> to w<last>, all different."""
    return " ".join(f"w{number}" for number in range(first, last + 1))


def audit(
    directory: Path,
    train: Sequence[Sequence[Turn]],
    validation: Sequence[Sequence[Turn]] = (),
    repeated: Sequence[int] = (),
) -> TextAudit:
    """Audit rows with the limits of the protocol; sources are t:1, t:2, ... and v:1, v:2, ..."""
    for split, rows in {"train": train, "validation": validation}.items():
        with (directory / f"{split}.jsonl").open("wb") as file:
            for number, turns in enumerate(rows, start=1):
                row = conversation(*turns, source=f"{split[0]}:{number}")
                file.write(msgspec.json.encode(row) + b"\n")
    return audit_texts(
        directory,
        np.array([0] * len(train) + [1] * len(validation), np.uint8),
        np.array(repeated, np.int64),
        similarity=0.8,
        leaked_share=0.7,
        script_share=0.01,
    )
