"""What is written to the token store is what is read, without reading all of it."""

from pathlib import Path

import numpy as np
import pytest

from stages.chat.collator import collate
from stages.chat.labels import Labelled
from stages.chat.token_store import TokenMeta, TokenStore, TokenWriter, read_meta, write_meta
from stages.config import UserError


def row(number: int) -> Labelled:
    ids = np.arange(number, number + number % 5 + 1, dtype=np.int32)
    labels = np.where(ids % 2 == 0, ids, np.int32(-100)).astype(np.int32)
    return Labelled(ids, labels, (ids % 10).astype(np.uint8), np.zeros(0, np.int64))


def write(directory: Path, rows: int) -> None:
    with TokenWriter("train", directory) as writer:
        for number in range(rows):
            writer.append(f"a:{number}", row(number))


@pytest.mark.parametrize("rows", [0, 1, 1023, 1024, 1025, 3000])
def test_rows_come_back_as_they_were_written(tmp_path: Path, rows: int) -> None:
    write(tmp_path, rows)
    store = TokenStore("train", tmp_path)
    assert len(store) == rows
    for number in {0, 1, rows // 2, rows - 1} & set(range(rows)):
        read, written = store[number], row(number)
        assert read.source == f"a:{number}"
        assert read.input_ids.tolist() == written.input_ids.tolist()
        assert read.labels.tolist() == written.labels.tolist()
        assert read.roles.tolist() == written.roles.tolist()
    assert store.lengths().tolist() == [number % 5 + 1 for number in range(rows)]
    with pytest.raises(IndexError):
        store[rows]


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(tmp_path / name, 1500)
    one, other = ((tmp_path / name / "train.arrow").read_bytes() for name in ("one", "other"))
    assert one == other


def test_meta_comes_back_and_a_missing_store_is_named(tmp_path: Path) -> None:
    meta = TokenMeta(10, 0, 2, 64, "all", {"sha256": "x"})
    write_meta(meta, tmp_path)
    assert read_meta(tmp_path) == meta
    with pytest.raises(UserError, match="run `dvc repro mask_report`"):
        read_meta(tmp_path / "none")
    with pytest.raises(UserError, match="run `dvc repro mask_report`"):
        TokenStore("train", tmp_path / "none")


def test_a_batch_is_padded_on_the_right_and_never_supervised_there(tmp_path: Path) -> None:
    write(tmp_path, 5)
    batch = collate(TokenStore("train", tmp_path).rows([1, 4, 2]), pad_token_id=7)
    assert batch["input_ids"].tolist() == [[1, 2, 7, 7, 7], [4, 5, 6, 7, 8], [2, 3, 4, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0, 0], [1] * 5, [1, 1, 1, 0, 0]]
    assert batch["labels"].tolist() == [
        [-100, 2, -100, -100, -100],
        [4, -100, 6, -100, 8],
        [2, -100, 4, -100, -100],
    ]
