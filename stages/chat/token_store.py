"""artifacts/tokens/: labelled rows in memory-mapped Arrow files, and what a model needs to know.

<split>.arrow has a row per conversation: source (string), input_ids and labels (list<int32>), roles
(list<uint8>). meta.json names the tokenizer's vocabulary size and special ids, and the policy.
"""

import json
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..config.errors import UserError, reading
from .labels import Labelled

TOKENS = Path("artifacts/tokens")
SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("roles", pa.list_(pa.uint8())),
    ]
)
AGAIN = "`dvc repro -f -s mask_report` writes them anew"
ROWS_PER_BATCH = 1024
ROWS_KEPT_IN_MEMORY = 256
"""Each row in random order maps up to three times 64 KiB: the kernel maps what lies around it."""


@dataclass(frozen=True)
class TokenMeta:
    """What a model and a collator must know of the tokens; `tokenizer` is its identity."""

    vocab_size: int
    pad_token_id: int
    stop_token_id: int
    max_length: int
    turns: str
    tokenizer: dict[str, Any]


@dataclass(frozen=True)
class TokenRow:
    """Views into the store: input_ids, labels int32 [T]; roles uint8 [T]."""

    source: str
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    roles: NDArray[np.uint8]


class TokenWriter:
    """Writes one split; rows go to disk every 1,024."""

    def __init__(self, split: str, directory: Path = TOKENS) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = pa.ipc.new_file(directory / f"{split}.arrow", SCHEMA)
        self._pending: list[tuple[str, Labelled]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flush()
        self._writer.close()

    def append(self, source: str, row: Labelled) -> None:
        self._pending.append((source, row))
        if len(self._pending) == ROWS_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = [row for _, row in self._pending]
        columns = [
            pa.array([source for source, _ in self._pending], pa.string()),
            _list_array([row.input_ids for row in rows], np.int32),
            _list_array([row.labels for row in rows], np.int32),
            _list_array([row.roles for row in rows], np.uint8),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
        self._pending.clear()


def _list_array(rows: list[NDArray[Any]], dtype: type) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(rows).astype(dtype)))


class TokenStore:
    """Random access to the rows of one split without reading them into memory."""

    def __init__(self, split: str, directory: Path = TOKENS) -> None:
        path = directory / f"{split}.arrow"
        if not path.is_file():
            raise UserError(f"{path} is missing; run `dvc repro mask_report`")
        with reading(path, "tokens", AGAIN):
            with path.open("rb") as file:
                self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            table = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._file))).read_all()
            if table.schema != SCHEMA:
                raise ValueError(f"its columns are {', '.join(table.schema.names) or 'none'}")
            table.validate(full=True)
            self._batches = [self._columns(batch) for batch in table.to_batches()]
        self._file.madvise(mmap.MADV_DONTNEED)  # what was looked through shall not stay in memory
        self._read = 0
        self._ends = np.cumsum([len(batch["offsets"]) - 1 for batch in self._batches])

    @staticmethod
    def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
        lists = {name: batch.column(name) for name in ("input_ids", "labels", "roles")}
        if any(column.null_count for column in batch.columns):
            raise ValueError("a row lacks something")
        offsets = lists["input_ids"].offsets
        if not all(one.offsets.equals(offsets) for one in lists.values()):
            raise ValueError("a row has not as many labels or roles as tokens")
        columns: dict[str, Any] = {name: array.values.to_numpy() for name, array in lists.items()}
        return columns | {
            "offsets": lists["input_ids"].offsets.to_numpy(),
            "source": batch.column("source"),
        }

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> TokenRow:
        if not 0 <= index < len(self):
            raise IndexError(index)
        self._read += 1
        if self._read > ROWS_KEPT_IN_MEMORY:  # else a walk over all rows ends with all in memory
            self._file.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        number = int(np.searchsorted(self._ends, index, side="right"))
        batch = self._batches[number]
        local = index - (int(self._ends[number - 1]) if number else 0)
        start, end = batch["offsets"][local], batch["offsets"][local + 1]
        return TokenRow(
            source=batch["source"][local].as_py(),
            input_ids=batch["input_ids"][start:end],
            labels=batch["labels"][start:end],
            roles=batch["roles"][start:end],
        )

    def __iter__(self) -> Iterator[TokenRow]:
        return (self[index] for index in range(len(self)))

    def rows(self, indices: Iterable[int]) -> list[TokenRow]:
        return [self[index] for index in indices]

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every row: int64 [rows]."""
        parts = [np.diff(batch["offsets"]).astype(np.int64) for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def write_meta(meta: TokenMeta, directory: Path = TOKENS) -> None:
    text = json.dumps(asdict(meta), indent=2, sort_keys=True)
    (directory / "meta.json").write_text(f"{text}\n", encoding="utf-8")


def read_meta(directory: Path = TOKENS) -> TokenMeta:
    """Raises UserError when the store has none."""
    path = directory / "meta.json"
    try:
        with reading(path, "facts of tokens", AGAIN):
            return msgspec.json.decode(path.read_bytes(), type=TokenMeta)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run `dvc repro mask_report`") from None
