"""Rows are known by what they say: one that only moved was not changed."""

import json
from pathlib import Path

import pytest

from stages.config import UserError
from stages.revisions.record import Record
from stages.revisions.rows import Row, Rows, compare_rows, read_rows

THEN = ["a", "b", "c", "d"]


def rows(said: list[str], validation: str = "d") -> Rows:
    """A row a line, each of which says one letter."""
    found = [Row(one, f"data.jsonl:{number}") for number, one in enumerate(said, start=1)]
    return Rows(found, {one: "validation" if one in validation else "train" for one in said})


def told(now: Rows) -> list[str]:
    return [f"{d.name}: {d.then} -> {d.now}" for d in compare_rows(rows(THEN), now)]


def test_the_same_rows_differ_in_nothing() -> None:
    assert told(rows(THEN)) == []


def test_a_changed_row_is_named_with_both_digests() -> None:
    assert told(rows(["a", "x", "c", "d"])) == [
        "all: 4 rows -> 4 rows: 1 changed, 0 removed, 0 added, 0 in another split",
        "data.jsonl:2: b -> x",
    ]


def test_a_removed_row_does_not_change_those_behind_it() -> None:
    assert told(rows(["a", "c", "d"])) == [
        "all: 4 rows -> 3 rows: 0 changed, 1 removed, 0 added, 0 in another split",
        "data.jsonl:2: b -> (missing)",
    ]


def test_an_added_row_does_not_change_those_behind_it() -> None:
    assert told(rows(["x", *THEN])) == [
        "all: 4 rows -> 5 rows: 0 changed, 0 removed, 1 added, 0 in another split",
        "data.jsonl:1: (not there then) -> x",
    ]


def test_a_repeated_row_is_added_once() -> None:
    assert told(rows([*THEN, "a"])) == [
        "all: 4 rows -> 5 rows: 0 changed, 0 removed, 1 added, 0 in another split",
        "data.jsonl:5: (not there then) -> a",
    ]


def test_another_order_and_another_split_are_counted() -> None:
    assert told(rows(["b", "a", "c", "d"])) == [
        "all: 4 rows -> 4 rows: 0 changed, 0 removed, 0 added, 0 in another split, "
        "the rest in another order"
    ]
    assert told(rows(THEN, validation="cd")) == [
        "all: 4 rows -> 4 rows: 0 changed, 0 removed, 0 added, 1 in another split"
    ]


def test_rows_are_read_from_both_splits_or_not_at_all(tmp_path: Path) -> None:
    record = Record.of_directory(tmp_path, "here")
    assert read_rows(record) is None
    dataset = tmp_path / "artifacts/dataset"
    dataset.mkdir(parents=True)
    for split, said in (("train", "a"), ("validation", "b")):
        row = {"id": said, "source": f"data.jsonl:{said}", "messages": []}
        (dataset / f"{split}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    found = read_rows(record)
    assert found is not None
    assert found.rows == [Row("a", "data.jsonl:a"), Row("b", "data.jsonl:b")]
    assert found.splits == {"a": "train", "b": "validation"}
    (dataset / "train.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.jsonl of here is damaged"):
        read_rows(record)
