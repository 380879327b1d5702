"""The rows of a token file that another trainer wrote, whatever its format.

Read are JSONL (plain, .gz, .zst), Parquet, Arrow (a file, or a directory that `datasets` has saved)
and safetensors (tensors [rows, T]).
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..chat.conversation import NOT_JSON, BadRow
from ..config.errors import UserError, reading
from ..provenance.hashing import CHUNK_BYTES, inside
from ..reading.sources import codec_of
from .columns import Columns, checked_columns, wanted_columns

FORMATS = ".jsonl (also .gz, .zst), .parquet, .arrow, .safetensors, or a directory of save_to_disk"
BATCH_ROWS = 256

Stored = tuple[str, Columns | BadRow]
"""The name of a row, and its columns or why it cannot be read."""


def read_rows(path: Path) -> Iterator[Stored]:
    """All rows of a token file, in their order.

    Raises UserError for a file that is missing, empty, damaged or of another kind, and for one
    without the columns that are needed.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if not path.is_dir() and not path.is_file():
        raise UserError(f"{path} (--tokens) is no regular file; write its content to one")
    read = _reader_of(path)
    empty = True
    for stored in read(path):
        empty = False
        yield stored
    if empty:
        raise UserError(f"{path} is empty; it must hold at least one row of tokens")


def _reader_of(path: Path) -> Callable[[Path], Iterator[Stored]]:
    if path.is_dir():
        return _read_saved_dataset
    codec = codec_of(path)
    suffix = (path.with_suffix("") if codec else path).suffix.lower()
    readers = {
        ".jsonl": _read_jsonl,
        ".ndjson": _read_jsonl,
        ".parquet": _read_parquet,
        ".arrow": _read_arrow,
        ".safetensors": _read_safetensors,
    }
    if suffix not in readers or (codec and readers[suffix] is not _read_jsonl):
        raise UserError(f"{path} is of a kind that cannot be read; use {FORMATS}")
    return readers[suffix]


def _read_jsonl(path: Path) -> Iterator[Stored]:
    import pyarrow

    with pyarrow.input_stream(str(path), compression=codec_of(path)) as stream:
        lines = enumerate(io.BufferedReader(stream, CHUNK_BYTES), start=1)
        while True:
            try:
                number, line = next(lines, (0, b""))
            except OSError as error:
                raise UserError(f"{path} is damaged or cut off ({error}); bring it again") from None
            if not number:
                break
            if line.strip():
                yield f"{path.name}:{number}", _decoded(line)


def _decoded(line: bytes) -> Columns | BadRow:
    try:
        row = msgspec.json.decode(line)
        if not isinstance(row, dict):
            raise BadRow(f"must be a JSON object, is {type(row).__name__}")
        names = wanted_columns(row)
        return checked_columns({name: row[stored] for name, stored in names.items()})
    except BadRow as reason:
        return reason
    except NOT_JSON as error:
        return BadRow(f"not valid JSON ({error})")


def _read_parquet(path: Path) -> Iterator[Stored]:
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = _wanted_of_file(path, file.schema_arrow)
            batches = file.iter_batches(batch_size=BATCH_ROWS, columns=list(names.values()))
            yield from _numbered(path, _rows_of_batches(batches, names))
    except (ArrowException, OSError) as error:
        raise _damaged(path, "Parquet", error) from None


def _read_arrow(path: Path) -> Iterator[Stored]:
    return _numbered(path, _rows_of_arrow(path))


def _read_saved_dataset(path: Path) -> Iterator[Stored]:
    """A directory that `Dataset.save_to_disk` wrote: state.json names its Arrow files in order."""
    if (path / "dataset_dict.json").exists():
        splits = sorted(one.name for one in path.iterdir() if (one / "state.json").exists())
        raise UserError(
            f"{path} holds several data sets; name one of its directories: {', '.join(splits)}"
        )
    listing = path / "state.json"
    if not listing.is_file():
        raise UserError(
            f"{path} is no data set that save_to_disk wrote (it has no state.json); use {FORMATS}"
        )
    with reading(listing, "the _data_files of a data set", "write the data set anew"):
        state = json.loads(listing.read_text(encoding="utf-8"))
        files = [inside(path, one["filename"]) for one in state["_data_files"]]
    if missing := [file.name for file in files if not file.is_file()]:
        raise UserError(f"{listing} names {missing[0]}, which is not there")
    return _numbered(path, (row for file in files for row in _rows_of_arrow(file)))


def _rows_of_arrow(path: Path) -> Iterator[Columns | BadRow]:
    """Rows of an Arrow file: the stream form, as `datasets` writes it, or the file form."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            if source.read_at(6, 0) == b"ARROW1":
                reader = pa.ipc.open_file(source)
                batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
            else:
                reader = pa.ipc.open_stream(source)
                batches = iter(reader)
            yield from _rows_of_batches(batches, _wanted_of_file(path, reader.schema))
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, "Arrow", error) from None


def _wanted_of_file(path: Path, schema: Any) -> dict[str, str]:
    from pyarrow import types

    try:
        names = wanted_columns(schema.names)
    except BadRow as reason:
        raise UserError(f"{path} {reason}") from None
    for name in names.values():
        kind = schema.field(name).type
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        inner = kind.value_type if any(is_list(kind) for is_list in lists) else None
        if inner is None or not (types.is_integer(inner) or types.is_boolean(inner)):
            raise UserError(f"{path}: column {name!r} is {kind}; it must be a list of integers")
    return names


def _rows_of_batches(
    batches: Iterable[Any], names: Mapping[str, str]
) -> Iterator[Columns | BadRow]:
    for batch in batches:
        columns = {name: batch.column(stored) for name, stored in names.items()}
        for number in range(batch.num_rows):
            yield checked_columns(
                {name: _values(column[number]) for name, column in columns.items()}
            )


def _values(cell: Any) -> Any:
    return cell.values.to_numpy(zero_copy_only=False) if cell.is_valid else None


def _read_safetensors(path: Path) -> Iterator[Stored]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            try:
                names = wanted_columns(file.keys())
            except BadRow as reason:
                raise UserError(f"{path} {reason}") from None
            tensors = {name: file.get_tensor(stored) for name, stored in names.items()}
    except (SafetensorError, OSError) as error:
        raise _damaged(path, "safetensors", error) from None
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    rows = {shape[0] for shape in shapes.values() if len(shape) == 2}
    if len(rows) != 1 or any(len(shape) != 2 for shape in shapes.values()):
        told = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise UserError(f"{path}: tensors must all be [rows, T] with as many rows: {told}")
    if wrong := [name for name, tensor in tensors.items() if tensor.dtype.kind not in "biu"]:
        raise UserError(f"{path}: {wrong[0]} must hold integers, is {tensors[wrong[0]].dtype}")
    cells = (
        checked_columns({name: tensor[number] for name, tensor in tensors.items()})
        for number in range(rows.pop())
    )
    return _numbered(path, cells)


def _numbered(path: Path, rows: Iterable[Columns | BadRow]) -> Iterator[Stored]:
    for number, row in enumerate(rows, start=1):
        yield f"{path.name} row {number}", row


def _damaged(path: Path, kind: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())
    return UserError(f"{path} cannot be read as {kind}: {reason}")
