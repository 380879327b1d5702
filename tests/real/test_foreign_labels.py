"""Labels that TRL's training template really makes are judged, and named where they are wrong."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from stages.chat.conversation import Message
from stages.chat.labels import IGNORE_INDEX
from stages.commands.audit_labels import Options, run

from .fetch import FetchError, tokenizer_directory

pytestmark = [pytest.mark.network, pytest.mark.slow]

CONVERSATIONS: list[list[Message]] = [
    [
        {"role": "system", "content": "You answer in one sentence."},
        {"role": "user", "content": f"Which number comes after {number}?"},
        {"role": "assistant", "content": f"After {number} comes {number + 1}."},
        {"role": "user", "content": "And in code?\n\n"},
        {"role": "assistant", "content": f"    n = {number}\n    print(n + 1)\n"},
    ]
    for number in range(40)
]
HEADER = ["<|im_start|>", "assistant", "\n"]
Row = dict[str, list[int]]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    try:
        return AutoTokenizer.from_pretrained(str(tokenizer_directory("qwen2_5_training")))
    except FetchError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="module")
def made(tokenizer: Any) -> list[Row]:
    """input_ids and labels, as TRL's SFTTrainer makes them with assistant_only_loss."""
    rows = []
    for messages in CONVERSATIONS:
        row = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        pairs = zip(row["input_ids"], row["assistant_masks"], strict=True)
        labels = [token if mask else IGNORE_INDEX for token, mask in pairs]
        rows.append({"input_ids": row["input_ids"], "labels": labels})
    return rows


def newlines_of_headers(tokenizer: Any, row: Row) -> list[int]:
    """Positions of the newline that ends each assistant header, looked up token by token."""
    tokens = [tokenizer.decode([token]) for token in row["input_ids"]]
    return [t + 2 for t in range(len(tokens) - 2) if tokens[t : t + 3] == HEADER]


def newlines_after_stops(tokenizer: Any, row: Row) -> list[int]:
    headers = newlines_of_headers(tokenizer, row)
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    return [row["input_ids"].index(stop, start) + 1 for start in headers]


def write(path: Path, rows: list[Row]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def judge(directory: Path, tokens: Path) -> tuple[int, dict[str, Any]]:
    source = directory / "source.jsonl"
    lines = (json.dumps({"messages": messages}) + "\n" for messages in CONVERSATIONS)
    source.write_text("".join(lines), encoding="utf-8")
    plain = tokenizer_directory("qwen2_5")
    code = run(Options(tokens, source, plain, report=directory / "report"))
    verdict = json.loads((directory / "report" / "verdict.json").read_text(encoding="utf-8"))
    return code, {check["id"]: check for check in verdict["checks"] if check["status"] != "pass"}


@pytest.mark.parametrize("name", ["trl.jsonl", "trl.parquet"])
def test_the_newline_of_every_header_is_named(
    tokenizer: Any, made: list[Row], tmp_path: Path, name: str
) -> None:
    code, checks = judge(tmp_path, write(tmp_path / name, made))
    assert code == 1
    assert {check["id"]: check["status"] for check in checks.values()} == {
        "header_supervised": "fail",
        "scaffold_differs": "warn",
    }
    turns = 2 * len(CONVERSATIONS)
    assert checks["header_supervised"]["value"] == turns
    assert checks["scaffold_differs"]["value"] == turns
    lines = (tmp_path / "report" / "findings.csv").read_text(encoding="utf-8").splitlines()
    found = {(*line.split(",")[:2], int(line.split(",")[3])): line for line in lines[1:]}
    for number, row in enumerate(made, start=1):
        source = f"source.jsonl:{number}"
        headers = newlines_of_headers(tokenizer, row)
        stops = newlines_after_stops(tokenizer, row)
        for message, header, stop in zip((2, 4), headers, stops, strict=True):
            named = found.pop(("header_supervised", source, header))
            assert named.split(",")[4:9] == ["1", "before", str(message), "assistant", r"'\n'"]
            named = found.pop(("scaffold_differs", source, stop))
            assert named.split(",")[4:9] == ["1", "after", str(message), "assistant", r"'\n'"]
    assert found == {}


@pytest.mark.parametrize("name", ["mended.jsonl", "mended.parquet"])
def test_the_same_labels_mended_pass(
    tokenizer: Any, made: list[Row], tmp_path: Path, name: str
) -> None:
    mended = []
    for row in made:
        labels = list(row["labels"])
        for position in newlines_of_headers(tokenizer, row):
            labels[position] = IGNORE_INDEX
        mended.append({**row, "labels": labels})
    code, checks = judge(tmp_path, write(tmp_path / name, mended))
    assert (code, set(checks)) == (0, {"scaffold_differs"})
    for row in mended:
        for position in newlines_after_stops(tokenizer, row):
            row["labels"][position] = IGNORE_INDEX
    assert judge(tmp_path, write(tmp_path / name, mended)) == (0, {})
