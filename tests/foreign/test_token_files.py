"""Token files of other trainers: every format gives the same rows, and a bad file is named."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from stages.chat.conversation import BadRow
from stages.config import UserError
from stages.foreign.token_files import read_rows

from .token_files import WRITERS, Rows, write_jsonl, write_parquet, write_saved_dataset

ROWS: Rows = [
    {"input_ids": [5, 6, 7, 2], "labels": [-100, -100, 7, 2]},
    {"input_ids": [5, 8, 2], "labels": [-100, 8, 2]},
    {"input_ids": [9, 2], "labels": [-100, 2]},
]


Values = dict[str, list[int]]


def readable(path: Path) -> list[Values]:
    rows = []
    for _, row in read_rows(path):
        assert not isinstance(row, BadRow), row
        rows.append({name: value.tolist() for name, value in row.items()})
    return rows


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        list(read_rows(path))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path.parent}/", "")


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "a.safetensors"])
def test_every_format_gives_the_rows(tmp_path: Path, name: str) -> None:
    assert readable(WRITERS[name](tmp_path / name, ROWS)) == ROWS


def test_tensors_give_the_rows_with_their_padding(tmp_path: Path) -> None:
    rows = readable(WRITERS["a.safetensors"](tmp_path / "a.safetensors", ROWS))
    assert rows[1] == {
        "input_ids": [5, 8, 2, 0],
        "labels": [-100, 8, 2, -100],
        "attention_mask": [1, 1, 1, 0],
    }


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "saved"])
def test_the_kind_of_a_file_is_told_by_its_suffix_in_any_case(tmp_path: Path, name: str) -> None:
    lower = WRITERS[name](tmp_path / name, ROWS)
    upper = tmp_path / name.upper()
    upper.write_bytes(lower.read_bytes())
    assert readable(upper) == readable(lower)


def test_unsigned_numbers_beyond_int64_are_told_by_row(tmp_path: Path) -> None:
    huge = np.array([[1, 2], [1, 2**64 - 100]], np.uint64)
    save_file({"input_ids": huge, "labels": huge}, tmp_path / "a.safetensors")
    (_, good), (name, bad) = read_rows(tmp_path / "a.safetensors")
    assert not isinstance(good, BadRow)
    assert (name, str(bad)) == (
        "a.safetensors row 2",
        "'input_ids' must be a flat list of whole numbers that fit into int64",
    )


def test_a_row_is_named_by_its_line_or_its_number(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    path.write_text("\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert [name for name, _ in read_rows(path)] == ["a.jsonl:2", "a.jsonl:3", "a.jsonl:4"]
    saved = write_saved_dataset(tmp_path / "saved", ROWS)
    assert [name for name, _ in read_rows(saved)] == ["saved row 1", "saved row 2", "saved row 3"]


def test_columns_that_nobody_asks_for_are_left_alone(tmp_path: Path) -> None:
    rows = [{**row, "text": "x", "length": 3} for row in ROWS]
    assert readable(write_parquet(tmp_path / "a.parquet", rows)) == ROWS  # type: ignore[arg-type]


def test_the_names_of_torchtune_are_known(tmp_path: Path) -> None:
    row = {"tokens": [5, 6], "labels": [6, -100], "seq_lens": [2], "input_pos": [0, 1]}
    (read,) = readable(write_jsonl(tmp_path / "a.jsonl", [row]))
    assert read == {
        "input_ids": [5, 6],
        "labels": [6, -100],
        "seq_lengths": [2],
        "position_ids": [0, 1],
    }


BAD_LINES = {
    "[1]": "must be a JSON object, is list",
    '{"input_ids": [1], "labels": [1': "not valid JSON",
    '{"labels": [1]}': "has no input_ids; its columns are labels",
    '{"input_ids": [1], "text": "a"}': (
        "has no labels, assistant_masks or completion_mask; its columns are input_ids, text"
    ),
    '{"input_ids": [1], "labels": [1.5]}': "'labels' must be a flat list of whole numbers",
    '{"input_ids": [1], "labels": ["a"]}': "'labels' must be a flat list of whole numbers",
    '{"input_ids": [1], "labels": [null]}': "'labels' must be a flat list of whole numbers",
    '{"input_ids": [[1]], "labels": [1]}': "'input_ids' must be a flat list of whole numbers",
    '{"input_ids": [[1], 2], "labels": [1]}': "'input_ids' must be a flat list of whole numbers",
    '{"input_ids": null, "labels": [1]}': "'input_ids' must be a flat list of whole numbers",
    '{"input_ids": [1e400], "labels": [1]}': "not valid JSON",
    '{"input_ids": [18446744073709551516], "labels": [1]}': "'input_ids' must be a flat list of",
    '{"input_ids": [1], "labels": [1], "seq_lengths": [99999999999999999999, 1]}': (
        "'seq_lengths' must be a flat list of whole numbers that fit into int64"
    ),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_broken_line_is_told_and_the_others_are_read(tmp_path: Path, line: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    *good, (name, bad) = read_rows(path)
    assert [isinstance(row, BadRow) for _, row in good] == [False] * 3
    assert name == "a.jsonl:4"
    assert str(bad).startswith(BAD_LINES[line])


def test_a_null_in_a_table_is_told(tmp_path: Path) -> None:
    rows: Any = [*ROWS, {"input_ids": [1], "labels": None}, {"input_ids": [1], "labels": [None]}]
    read = [row for _, row in read_rows(write_parquet(tmp_path / "a.parquet", rows))]
    assert [str(row) for row in read[3:]] == [
        "'labels' must be a flat list of whole numbers that fit into int64"
    ] * 2


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def test_files_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.jsonl") == "none.jsonl does not exist"
    (tmp_path / "a.csv").write_text("a,b\n", encoding="utf-8")
    assert refusal(tmp_path / "a.csv").startswith("a.csv is of a kind that cannot be read; use ")
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    assert refusal(tmp_path / "empty.jsonl").startswith("empty.jsonl is empty")
    (tmp_path / "no_dataset").mkdir()
    assert "it has no state.json" in refusal(tmp_path / "no_dataset")
    (tmp_path / "no_dataset" / "state.json").mkdir()
    assert "it has no state.json" in refusal(tmp_path / "no_dataset")
    (tmp_path / "directory.jsonl").mkdir()
    assert "it has no state.json" in refusal(tmp_path / "directory.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert refusal(tmp_path / "pipe.jsonl") == (
        "pipe.jsonl (--tokens) is no regular file; write its content to one"
    )
    for name in ("a.parquet", "a.arrow", "a.safetensors"):
        (tmp_path / name).write_bytes(b"neither of them, but long enough to be looked into")
        assert refusal(tmp_path / name).startswith(f"{name} cannot be read as ")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.safetensors"])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, [*ROWS] * 40)
    truncate(path)
    assert refusal(path).startswith(name)


def test_tables_without_the_columns_are_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"ids": [1], "labels": [1]}])
    assert refusal(path) == "a.parquet has no input_ids; its columns are ids, labels"
    texts: Any = [{"input_ids": "1 2", "labels": [1]}]
    assert "column 'input_ids' is string; it must be a list" in refusal(
        write_parquet(tmp_path / "b.parquet", texts)
    )
    save_file(
        {"input_ids": np.zeros(3, np.int64), "labels": np.zeros(3, np.int64)},
        tmp_path / "c.safetensors",
    )
    assert "tensors must all be [rows, T]" in refusal(tmp_path / "c.safetensors")
    save_file({"input_ids": np.zeros((1, 3), np.int64)}, tmp_path / "d.safetensors")
    assert "has no labels, assistant_masks or completion_mask" in refusal(
        tmp_path / "d.safetensors"
    )
    shape = (1, 3)
    save_file(
        {"input_ids": np.zeros(shape, np.int64), "labels": np.zeros(shape, np.float32)},
        tmp_path / "e.safetensors",
    )
    assert "labels must hold integers, is float32" in refusal(tmp_path / "e.safetensors")


def test_a_directory_of_splits_and_a_lost_shard_are_refused(tmp_path: Path) -> None:
    both = tmp_path / "both"
    both.mkdir()
    (both / "dataset_dict.json").write_text("{}", encoding="utf-8")
    write_saved_dataset(both / "train", ROWS)
    assert refusal(both).endswith("name one of its directories: train")
    (both / "train" / "data-00001-of-00002.arrow").unlink()
    assert refusal(both / "train").endswith("names data-00001-of-00002.arrow, which is not there")
    (both / "train" / "state.json").write_text("{}", encoding="utf-8")
    assert "cannot be read as the _data_files" in refusal(both / "train")
