"""Token files as other trainers write them, in every format."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

Rows = Sequence[dict[str, list[int]]]


def write_jsonl(path: Path, rows: Rows) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".zst":
        path.write_bytes(pa.compress(text.encode(), codec="zstd", asbytes=True))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def write_parquet(path: Path, rows: Rows) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=2)
    return path


def write_stream(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def write_saved_dataset(path: Path, rows: Rows) -> Path:
    """What `Dataset.save_to_disk` writes: Arrow streams, and state.json that names them."""
    path.mkdir()
    names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
    half = (len(rows) + 1) // 2
    schema = pa.Table.from_pylist(list(rows)).schema
    for name, part in zip(names, (rows[:half], rows[half:]), strict=True):
        write_stream(path / name, pa.Table.from_pylist(list(part), schema=schema))
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "7c1e2f3a4b5d6e7f",
        "_format_columns": None,
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (path / "state.json").write_text(json.dumps(state), encoding="utf-8")
    (path / "dataset_info.json").write_text("{}", encoding="utf-8")
    return path


def write_arrow(path: Path, rows: Rows) -> Path:
    return write_stream(path, pa.Table.from_pylist(list(rows)))


def write_safetensors(path: Path, rows: Rows, pad: int = 0) -> Path:
    """Rows padded on the right to one length; attention_mask says which tokens are real."""
    fill = {"input_ids": pad, "labels": -100}
    longest = max(len(row["input_ids"]) for row in rows)
    tensors: dict[str, Any] = {}
    for name in rows[0]:
        tensor = np.full((len(rows), longest), fill.get(name, 0), np.int64)
        for number, row in enumerate(rows):
            tensor[number, : len(row[name])] = row[name]
        tensors[name] = tensor
    mask = np.arange(longest) < np.array([[len(row["input_ids"])] for row in rows])
    tensors["attention_mask"] = mask.astype(np.int64)
    save_file(tensors, path)
    return path


WRITERS: dict[str, Callable[[Path, Rows], Path]] = {
    "a.jsonl": write_jsonl,
    "a.jsonl.gz": write_jsonl,
    "a.jsonl.zst": write_jsonl,
    "a.parquet": write_parquet,
    "a.arrow": write_arrow,
    "saved": write_saved_dataset,
    "a.safetensors": write_safetensors,
}
