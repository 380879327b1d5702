"""Labels that another trainer made: rows of tokens and labels, whatever file they lie in.

Read are JSONL (plain, .gz, .zst), Parquet, Arrow (a file, or a directory that `datasets` has saved)
and safetensors (tensors [rows, T]). A row has input_ids and labels (-100: masked), or instead of
labels assistant_masks or completion_mask (1: supervised; of both, as TRL does, what both name);
and, if there is padding or packing, attention_mask, seq_lengths or position_ids. torchtune's names
(tokens, seq_lens, input_pos) are known too.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import NOT_JSON, BadRow
from ..chat.labels import IGNORE_INDEX
from ..config.errors import UserError, reading
from ..provenance.hashing import CHUNK_BYTES, inside
from ..reading.sources import codec_of

LABELS = "labels"
MASKS = ("assistant_masks", "completion_mask")
ALIASES = {"tokens": "input_ids", "seq_lens": "seq_lengths", "input_pos": "position_ids"}
KNOWN = ("input_ids", LABELS, *MASKS, "attention_mask", "position_ids", "seq_lengths")
FORMATS = ".jsonl (also .gz, .zst), .parquet, .arrow, .safetensors, or a directory of save_to_disk"
BATCH_ROWS = 256
MAX_INT64 = np.iinfo(np.int64).max

Ids = NDArray[np.int64]
Columns = dict[str, Ids]
Stored = tuple[str, "Columns | BadRow"]
"""The name of a row, and its columns or why it cannot be read."""


@dataclass(frozen=True)
class ForeignRow:
    """One conversation of a token file, without padding, its labels not shifted.

    input_ids, labels: int32 [T]; positions: int64 [T], where these tokens stand in the stored row;
    padding: positions of supervised padding.
    """

    name: str
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    positions: Ids
    padding: Ids
    packed: bool = False


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
        names = _wanted(row)
        return {name: whole_numbers(name, row[stored]) for name, stored in names.items()}
    except BadRow as reason:
        return reason
    except NOT_JSON as error:
        return BadRow(f"not valid JSON ({error})")


def _wanted(columns: Iterable[str]) -> dict[str, str]:
    """Known name -> name in the file. Raises BadRow, which lists the columns found."""
    found = list(columns)
    names = {name: name for name in KNOWN if name in found}
    for alias, name in ALIASES.items():
        if alias in found:
            names.setdefault(name, alias)
    missing = "input_ids" if "input_ids" not in names else ""
    if not missing and not any(name in names for name in (LABELS, *MASKS)):
        missing = f"{LABELS}, {' or '.join(MASKS)}"
    if missing:
        raise BadRow(f"has no {missing}; its columns are {', '.join(found) or 'none'}")
    return names


def whole_numbers(name: str, values: Any) -> Ids:
    """A flat list as int64 [T]. Raises BadRow for anything else."""
    try:
        array = np.asarray(values if values is not None else np.nan)
    except (ValueError, OverflowError):
        array = np.asarray(np.nan)
    fits = not array.size or (array.dtype.kind in "biu" and int(array.max()) <= MAX_INT64)
    if array.ndim != 1 or not fits:
        raise BadRow(f"{name!r} must be a flat list of whole numbers that fit into int64")
    return array.astype(np.int64)


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
        names = _wanted(schema.names)
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
            yield _checked({name: _values(column[number]) for name, column in columns.items()})


def _values(cell: Any) -> Any:
    return cell.values.to_numpy(zero_copy_only=False) if cell.is_valid else None


def _checked(cells: Mapping[str, Any]) -> Columns | BadRow:
    try:
        return {name: whole_numbers(name, values) for name, values in cells.items()}
    except BadRow as reason:
        return reason


def _read_safetensors(path: Path) -> Iterator[Stored]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            try:
                names = _wanted(file.keys())
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
        _checked({name: tensor[number] for name, tensor in tensors.items()})
        for number in range(rows.pop())
    )
    return _numbered(path, cells)


def _numbered(path: Path, rows: Iterable[Columns | BadRow]) -> Iterator[Stored]:
    for number, row in enumerate(rows, start=1):
        yield f"{path.name} row {number}", row


def _damaged(path: Path, kind: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())
    return UserError(f"{path} cannot be read as {kind}: {reason}")


def labels_of(columns: Columns) -> Ids:
    """The labels, or those that the masks make of input_ids; as many as tokens. Raises BadRow."""
    if LABELS in columns:
        return _a_value_a_token(columns, LABELS)
    masks = [_a_value_a_token(columns, name) for name in MASKS if name in columns]
    for mask in masks:
        if not np.isin(mask, (0, 1)).all():
            raise BadRow("a mask holds other values than 0 and 1")
    return np.where(np.all(masks, axis=0), columns["input_ids"], IGNORE_INDEX)


def _a_value_a_token(columns: Columns, name: str) -> Ids:
    values, tokens = columns[name], len(columns["input_ids"])
    if len(values) != tokens:
        raise BadRow(f"{len(values)} values in {name!r} for {tokens} tokens in 'input_ids'")
    return values


def conversations_of(
    name: str, columns: Columns, shifted: bool, pad_token_id: int, stop_ids: Iterable[int]
) -> list[ForeignRow]:
    """The conversations of a stored row: one, or several where it says where each begins.

    Padding is stripped: what attention_mask leaves out, or else masked pad tokens at the end.
    Raises BadRow when columns do not fit each other.
    """
    ids, labels = columns["input_ids"], labels_of(columns)
    if not len(ids):
        raise BadRow("'input_ids' is empty")
    for other in ("attention_mask", "position_ids"):
        if other in columns:
            _a_value_a_token(columns, other)
    attended = columns.get("attention_mask")
    if shifted:
        ids, labels, attended = _shift_back(ids, labels, attended)
    if attended is None:
        real = _without_trailing_padding(ids, labels, pad_token_id, set(stop_ids))
    else:
        real = np.flatnonzero(attended)
    masked_out = np.setdiff1d(np.arange(len(ids)), real)
    padding = masked_out[labels[masked_out] != IGNORE_INDEX]
    if not len(real):
        raise BadRow("holds nothing but padding")
    parts = _split(columns, real)
    return [
        ForeignRow(
            name if len(parts) == 1 else f"{name} part {number}",
            _int32(ids[part]),
            _int32(labels[part]),
            part,
            padding if number == 1 else padding[:0],
            packed=len(parts) > 1,
        )
        for number, part in enumerate(parts, start=1)
    ]


def _shift_back(ids: Ids, labels: Ids, attended: Ids | None) -> tuple[Ids, Ids, Ids | None]:
    """labels[t] as the label of token t; the last of them may name a token that ids lack."""
    back = np.insert(labels, 0, IGNORE_INDEX)
    if labels[-1] == IGNORE_INDEX:
        return ids, back[:-1], attended
    one_more = None if attended is None else np.append(attended, attended[-1:])
    return np.append(ids, labels[-1:]), back, one_more


def _without_trailing_padding(ids: Ids, labels: Ids, pad_token_id: int, stop_ids: set[int]) -> Ids:
    """Positions up to the last token that is not masked padding.

    Where the pad token is the stop token too, one is left to a row that would end without any.
    """
    kept = np.flatnonzero((ids != pad_token_id) | (labels != IGNORE_INDEX))
    end = int(kept[-1]) + 1 if len(kept) else 0
    if pad_token_id in stop_ids and end < len(ids) and (not end or ids[end - 1] not in stop_ids):
        end += 1
    return np.arange(end)


def _split(columns: Columns, real: Ids) -> list[Ids]:
    """`real` cut where a packed row begins another conversation."""
    if "seq_lengths" in columns:
        return _split_by_lengths(columns["seq_lengths"], len(columns["input_ids"]), real)
    for name in ("attention_mask", "position_ids"):
        values = columns.get(name)
        if values is None or len(real) < 2:
            continue
        inside = values[real[real < len(values)]]
        begins = np.diff(inside) != 0 if name == "attention_mask" else np.diff(inside) <= 0
        if begins.any():
            return np.split(real, np.flatnonzero(begins) + 1)
    return [real]


def _split_by_lengths(lengths: Ids, stored: int, real: Ids) -> list[Ids]:
    """`real` in parts; lengths count all `stored` tokens of the row, or those without padding."""
    if (lengths < 1).any():
        raise BadRow(f"'seq_lengths' holds {lengths.min()}; each must be 1 or more")
    total = sum(lengths.tolist())  # an int64 would wrap around
    if total not in (stored, len(real)):
        bare = f", {len(real)} without padding" if len(real) < stored else ""
        raise BadRow(f"'seq_lengths' add up to {total}, the row has {stored} tokens{bare}")
    pieces = np.split(np.arange(total), np.cumsum(lengths)[:-1])
    if total == len(real):
        return [real[piece] for piece in pieces]
    return [kept for piece in pieces if len(kept := np.intersect1d(piece, real))]


def _int32(values: Ids) -> NDArray[np.int32]:
    """Values beyond int32 become its ends, which no vocabulary has."""
    bounds = np.iinfo(np.int32)
    return np.clip(values, bounds.min, bounds.max).astype(np.int32)
