"""Input files are read once, hashed on the way, and split; repeats are found among millions."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.chat.conversation import read_conversations
from stages.chat.split import SPLITS, Split
from stages.data_audit.repeats import conflicting_answers, duplicates, split_overlap
from stages.reading.ingest import FileRecord, RowKeys, entropy_nats, ingest_file


def line(prompt: str, answer: str) -> str:
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages})


def ingest(
    tmp_path: Path,
    text: str,
    fixed: Split | None = None,
    stop: bool = False,
    name: str = "in.jsonl",
) -> FileRecord:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    outputs: dict[Split, Path] = {split: tmp_path / f"{split}.jsonl" for split in SPLITS}
    return ingest_file(
        path,
        outputs,
        fixed_split=fixed,
        validation_fraction=0.5,
        split_seed=0,
        stop_at_bad_row=stop,
    )


def pairs(found: tuple[Any, Any]) -> list[tuple[int, int]]:
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    text = "".join(line(f"p{n}", "a") + "\n" for n in range(5000))
    record = ingest(tmp_path, text)
    assert record.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert (record.rows, record.size) == (5000, len(text.encode()))


def test_every_row_lands_in_one_split_with_its_source(tmp_path: Path) -> None:
    record = ingest(tmp_path, "\n\n".join(line(f"p{n}", "a") for n in range(40)) + "\n")
    rows = [row for s in SPLITS for row in read_conversations(tmp_path / f"{s}.jsonl")]
    numbers = sorted(int(row.source.rpartition(":")[2]) for row in rows)
    assert numbers == list(range(1, 80, 2))
    assert record.blank_lines == 39
    keys = record.take_keys()
    assert len(keys) == 40
    assert keys.split.sum() == len(list(read_conversations(tmp_path / "validation.jsonl")))


def test_a_fixed_split_takes_every_row(tmp_path: Path) -> None:
    ingest(tmp_path, "\n".join(line(f"p{n}", "a") for n in range(9)), fixed="validation")
    assert len(list(read_conversations(tmp_path / "validation.jsonl"))) == 9
    assert (tmp_path / "train.jsonl").read_bytes() == b""


def test_bad_rows_are_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    record = ingest(tmp_path, f"{line('p', 'a')}\nnonsense\n[]\n{line('q', 'a')}\n")
    assert [number for number, _ in record.bad_rows] == [2, 3]
    assert record.rows == 2


def test_reading_can_stop_at_the_first_bad_row(tmp_path: Path) -> None:
    record = ingest(tmp_path, f"nonsense\n[]\n{line('q', 'a')}\n", stop=True)
    assert [number for number, _ in record.bad_rows] == [1]


def test_turns_characters_bytes_and_empty_answers_are_counted(tmp_path: Path) -> None:
    record = ingest(tmp_path, f"{line('pq', 'aab')}\n{line('r', '')}\n")
    assert record.role_turns == {"user": 2, "assistant": 2}
    assert record.role_characters == {"user": 3, "assistant": 3}
    assert record.empty_answers == [2]
    assert record.answer_bytes[ord("a")] == 2
    assert record.answer_bytes.sum() == 3


def test_the_dialect_is_that_of_the_first_row_that_has_one(tmp_path: Path) -> None:
    alpaca = json.dumps({"instruction": "p", "output": "a"})
    record = ingest(tmp_path, f'{{"text": "a"}}\n{alpaca}\n{line("p", "a")}\n{alpaca}\n')
    assert (record.dialect, record.rows) == ("alpaca", 2)
    assert [number for number, _ in record.bad_rows] == [1, 3]
    assert record.bad_rows[1][1].startswith("is openai, the file began as alpaca; set data.dialect")
    assert ingest(tmp_path, "[]\n").dialect == ""


def test_rows_are_named_by_what_their_file_has(tmp_path: Path) -> None:
    items = f"[{line('p', 'a')},{line('q', '')},1]"
    record = ingest(tmp_path, items, fixed="train", name="in.json")
    path = tmp_path / "in.json"
    assert record.sha256 == hashlib.sha256(items.encode()).hexdigest()
    assert [record.where(number) for number in record.empty_answers] == [f"{path} item 2"]
    assert [record.where(number) for number, _ in record.bad_rows] == [f"{path} item 3"]
    sources = [row.source for row in read_conversations(tmp_path / "train.jsonl")]
    assert sources == [f"{path} item 1", f"{path} item 2"]
    assert ingest(tmp_path, line("p", "a")).where(7) == f"{tmp_path / 'in.jsonl'}:7"


def test_progress_adds_up_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(line(f"p{n}", "a") + "\n" for n in range(5000)) + "\n\n")
    told: list[int] = []
    ingest_file(
        path,
        {split: tmp_path / f"{split}.jsonl" for split in SPLITS},
        fixed_split="train",
        validation_fraction=0.5,
        split_seed=0,
        stop_at_bad_row=True,
        advance=told.append,
    )
    assert sum(told) == path.stat().st_size
    assert len(told) == 3


def test_repeats_contradictions_and_leaks_are_found_with_their_partners(tmp_path: Path) -> None:
    rows = [("p", "a"), ("q", "a"), ("p", "a"), ("p", "b"), ("r", "a"), ("q", "a"), ("p", "a")]
    keys = ingest(tmp_path, "\n".join(line(*row) for row in rows)).take_keys()
    assert pairs(duplicates(keys)) == [(2, 0), (5, 1), (6, 0)]
    assert pairs(conflicting_answers(keys)) == [(3, 0)]
    assert pairs(split_overlap(keys)) == []
    leaky = RowKeys(
        keys.content, keys.prompt, keys.answer, keys.line, np.array([0, 0, 0, 1, 1, 1, 0], np.uint8)
    )
    assert pairs(split_overlap(leaky)) == [(3, 0), (5, 1)]


def test_repeats_agree_with_a_slow_search(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [(f"p{random.integers(30)}", f"a{random.integers(3)}") for _ in range(300)]
    keys = ingest(tmp_path, "\n".join(line(*row) for row in rows)).take_keys()
    first_row: dict[tuple[str, str], int] = {}
    first_prompt: dict[str, int] = {}
    repeated, conflicting = [], []
    for number, (prompt, answer) in enumerate(rows):
        if (prompt, answer) in first_row:
            repeated.append((number, first_row[prompt, answer]))
        first_row.setdefault((prompt, answer), number)
        first_prompt.setdefault(prompt, number)
        if rows[first_prompt[prompt]][1] != answer:
            conflicting.append((number, first_prompt[prompt]))
    assert pairs(duplicates(keys)) == repeated
    assert pairs(conflicting_answers(keys)) == conflicting


def test_no_rows_repeat_nothing() -> None:
    none = np.zeros((0, 2), np.uint64)
    keys = RowKeys(none, none, none[:, 0], np.zeros(0, np.uint32), np.zeros(0, np.uint8))
    assert pairs(duplicates(keys)) == pairs(conflicting_answers(keys)) == []
    assert pairs(split_overlap(keys)) == []


def test_entropy_is_in_nats() -> None:
    assert entropy_nats(np.array([1, 1, 0, 2])) == pytest.approx(1.5 * np.log(2))
    assert entropy_nats(np.zeros(4, np.int64)) == 0.0
