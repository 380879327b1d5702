"""Rows of a data file, whatever its format, streamed and hashed.

.jsonl and .ndjson hold an object a line; .json an array of objects, or an object a line; .csv texts
below a header line; .parquet a row a row. All but Parquet may be compressed (.gz, .zst). The sha256
is of the bytes on disk; they are read once, but for Parquet, which is hashed before it is read.
"""

import csv
import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from ..chat.conversation import BadRow
from ..config.errors import UserError, reading
from ..provenance.hashing import CHUNK_BYTES, sha256_file
from .json_array import array_items
from .sources import HashingReader, codec_of, format_of

PARQUET_ROWS = 256
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
UTF8_MARK = b"\xef\xbb\xbf"

Unit = Literal["line", "item"]


class Row(NamedTuple):
    """One row. number: its line or item from 1; value: decoded, or the BadRow that says why not."""

    number: int
    source: str
    value: Any


def position(path: str, number: int, unit: Unit) -> str:
    """How a row is named: file:line, or file and item in a file that has all of them on a line."""
    return f"{path}:{number}" if unit == "line" else f"{path} item {number}"


class RowReader(ABC):
    """The rows of one file. `unit` and `blank_lines` are final when the rows are exhausted.

    Raises UserError for a file that is empty, damaged, or of another encoding than UTF-8.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = path.as_posix()
        self.unit: Unit = "line"
        self.blank_lines = 0

    @abstractmethod
    def rows(self) -> Iterator[Row]: ...

    @abstractmethod
    def passed(self) -> int:
        """Number of bytes of the file that were read so far."""

    @abstractmethod
    def hexdigest(self) -> str:
        """sha256 of the file, once its rows are exhausted."""

    @abstractmethod
    def close(self) -> None: ...

    def _row(self, number: int, value: Any) -> Row:
        return Row(number, position(self._name, number, self.unit), value)

    def _empty(self) -> UserError:
        return UserError(f"{self.path} is empty; it must hold at least one conversation")


class TextReader(RowReader):
    """A reader of text, compressed or not."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._raw = HashingReader(path)
        codec = codec_of(path)
        raw = Decompressor(self._raw, codec, path) if codec else self._raw
        self._stream = io.BufferedReader(raw, CHUNK_BYTES)
        if self._stream.peek()[:2] in UTF16_MARKS:
            raise UserError(f"{path}:1: the file is UTF-16; save it as UTF-8")
        if self._stream.peek().startswith(UTF8_MARK):
            self._stream.read(len(UTF8_MARK))

    def passed(self) -> int:
        return self._raw.passed

    def hexdigest(self) -> str:
        return self._raw.hexdigest()

    def close(self) -> None:
        self._stream.close()
        self._raw.close()


class Decompressor(io.RawIOBase):
    """The text of a compressed file. Reading raises UserError where it is damaged."""

    def __init__(self, raw: HashingReader, codec: str, path: Path) -> None:
        import pyarrow

        self._stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), codec)
        self._codec, self._path = codec, path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            return int(self._stream.readinto(buffer))
        except OSError as error:
            raise UserError(
                f"{self._path} is damaged or cut off ({self._codec}: {error}); bring it again"
            ) from None


class JsonLines(TextReader):
    """An object a line."""

    def rows(self) -> Iterator[Row]:
        previous = 0
        for number, line in enumerate(self._stream, start=1):
            if text := line.strip():
                self.blank_lines += number - previous - 1
                previous = number
                yield self._row(number, decoded(text, "line"))
        if not previous:
            raise self._empty()


class JsonFile(JsonLines):
    """An array of objects, or an object a line."""

    def rows(self) -> Iterator[Row]:
        if self._stream.peek().lstrip().startswith(b"["):
            yield from self._array()
            return
        for count, row in enumerate(super().rows()):
            if count == 0 and isinstance(row.value, BadRow):
                why = "; a .json file holds an array of objects, or an object a line"
                row = row._replace(value=BadRow(f"{row.value}{why}"))
            yield row

    def _array(self) -> Iterator[Row]:
        items = array_items(self._stream.read, self.path)
        first_two = list(islice(items, 2))
        if not first_two:
            raise self._empty()
        lines = [line for line, _ in first_two]
        self.unit = "item" if lines[0] == lines[-1] and len(lines) == 2 else "line"
        previous = 0
        for item, (line, text) in enumerate(chain(first_two, items), start=1):
            row = self._row(item if self.unit == "item" else line, decoded(text, "item"))
            if self.unit == "line" and line == previous:  # a source names one row
                row = row._replace(source=f"{row.source} (item {item})")
            previous = line
            yield row


@contextmanager
def cells_of_any_length() -> Iterator[None]:
    """The limit is the process's own: other readers of CSV keep theirs."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


class CsvFile(TextReader):
    """Texts, separated by commas, below a line of names."""

    def rows(self) -> Iterator[Row]:
        records = csv.reader(self._lines(), strict=True)
        header: list[str] = []
        count = 0
        while True:
            begins = records.line_num + 1
            try:
                with cells_of_any_length():
                    cells = next(records, None)
            except csv.Error as error:
                raise UserError(f"{self.path}:{begins}: not valid CSV ({error})") from None
            if cells is None:
                break
            if not cells:
                self.blank_lines += 1
            elif not header:
                header = self._header(cells, begins)
            else:
                count += 1
                yield self._row(begins, by_name(header, cells))
        if not count:
            raise self._empty()

    def _lines(self) -> Iterator[str]:
        for number, line in enumerate(self._stream, start=1):
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{self.path}:{number}: not UTF-8 (byte {error.start} of the line is "
                    f"0x{line[error.start]:02x}); save the file as UTF-8"
                ) from None

    def _header(self, cells: list[str], line: int) -> list[str]:
        names = [cell.strip() for cell in cells]
        where = f"{self.path}:{line}: the header"
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{where} names {twice[0]!r} twice; rename one of the columns")
        if lists := {"messages", "conversations", "conversation"} & set(names):
            raise UserError(
                f"{where} names {min(lists)!r}, but CSV holds texts alone (alpaca, "
                "prompt_completion); write such rows as .jsonl"
            )
        return names


def by_name(header: list[str], cells: list[str]) -> dict[str, str] | BadRow:
    if len(cells) != len(header):
        return BadRow(f"has {len(cells)} fields, the header has {len(header)}")
    return dict(zip(header, cells, strict=True))


class ParquetFile(RowReader):
    """Rows of a table; a batch of them is in memory at a time.

    A null within a column is left out: Arrow pads every object with the keys of all others.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        from pyarrow.parquet import ParquetFile as Table

        self._sha256 = sha256_file(path)
        self._size, self._read = path.stat().st_size, 0
        with self._parsing():
            self._table = Table(path, page_checksum_verification=True)
            self._count: int = self._table.metadata.num_rows
            names = self._table.schema_arrow.names
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{path} has the column {twice[0]!r} twice; rename one of them")

    def rows(self) -> Iterator[Row]:
        batches = self._table.iter_batches(batch_size=PARQUET_ROWS)
        while True:
            with self._parsing():
                batch = next(batches, None)
                values = [] if batch is None else batch.to_pylist()
            if batch is None:
                break
            for value in values:
                self._read += 1
                yield self._row(self._read, {key: without_nulls(one) for key, one in value.items()})
        if self._read != self._count:
            raise UserError(
                f"{self.path} holds {self._read} rows, and says that it has {self._count}"
            )
        if not self._read:
            raise self._empty()

    def passed(self) -> int:
        return self._size * self._read // max(self._count, 1)

    def hexdigest(self) -> str:
        return self._sha256

    def close(self) -> None:
        self._table.close()

    def _parsing(self) -> AbstractContextManager[None]:
        return reading(self.path, f"Parquet after row {self._read}", "write the file anew")


def without_nulls(value: Any) -> Any:
    """The value without the null members of its objects, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    return value


def decoded(text: bytes, unit: Unit) -> Any:
    """The value of a JSON text, or the BadRow that says why it has none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        try:
            text.decode()
        except UnicodeDecodeError as wrong:
            byte = f"byte {wrong.start} of the {unit} is 0x{text[wrong.start]:02x}"
            return BadRow(f"not UTF-8 ({byte})")
        return BadRow(f"not valid JSON ({error})")
    except RecursionError:
        return BadRow("nested too deeply to be a conversation")


READERS: dict[str, type[RowReader]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".json": JsonFile,
    ".csv": CsvFile,
    ".parquet": ParquetFile,
}


def open_rows(path: Path) -> RowReader:
    """A reader for a file that `input_files` found."""
    try:
        return READERS[format_of(path)](path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
