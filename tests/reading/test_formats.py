"""Every file format gives the same rows, each named by the place at which it begins."""

import csv
import gzip
import hashlib
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.chat.conversation import BadRow
from stages.config import UserError
from stages.reading.formats import Row, RowReader, open_rows
from stages.reading.json_array import array_items
from stages.reading.sources import FORMATS, format_of, input_files

ROWS = [{"instruction": f'say "{n}"\n[{n}, {{', "output": f"ü{n}\\"} for n in range(1, 4)]


def read(path: Path) -> tuple[list[Row], RowReader]:
    reader = open_rows(path)
    rows = list(reader.rows())
    assert reader.passed() == path.stat().st_size
    assert reader.hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest()
    reader.close()
    return rows, reader


def read_text(tmp_path: Path, name: str, text: str | bytes) -> tuple[list[Row], RowReader]:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path)


def named(tmp_path: Path, name: str, text: str | bytes) -> list[tuple[str, Any]]:
    """(source without its directory, value, or the reason as text) of every row."""
    rows, _ = read_text(tmp_path, name, text)
    return [
        (
            row.source.rpartition("/")[2],
            str(row.value) if isinstance(row.value, BadRow) else row.value,
        )
        for row in rows
    ]


def refusal(tmp_path: Path, name: str, text: str | bytes) -> str:
    with pytest.raises(UserError) as caught:
        read_text(tmp_path, name, text)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{tmp_path}/", "")


def as_csv(rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


TEXTS = {
    "a.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "a.ndjson": "".join(json.dumps(row) + "\n" for row in ROWS),
    "lines.json": "\n".join(json.dumps(row) for row in ROWS),
    "indented.json": json.dumps(ROWS, indent=2),
    "compact.json": json.dumps(ROWS, ensure_ascii=False, separators=(",", ":")),
    "a.csv": as_csv(ROWS),
}


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_format_gives_the_rows_plain_and_compressed(tmp_path: Path, name: str) -> None:
    text = TEXTS[name].encode()
    zipped = gzip.compress(text[:40]) + gzip.compress(text[40:])  # members, as `cat` joins them
    packed = pa.compress(text, codec="zstd", asbytes=True)
    kinds = {
        name: text,
        f"{name}.gz": zipped,
        f"{name}.zst": packed,
        f"b{name}": b"\xef\xbb\xbf" + text,
    }
    for kind, content in kinds.items():
        rows, reader = read_text(tmp_path, kind, content)
        assert [row.value for row in rows] == ROWS, kind
        assert reader.blank_lines == 0


def test_parquet_gives_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    rows, _ = read(path)
    assert [(row.number, row.value) for row in rows] == list(enumerate(ROWS, 1))
    assert rows[2].source == f"{path}:3"


def test_what_parquet_pads_with_null_is_left_out(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
    ]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": messages, "input": None}]), path)
    assert read(path)[0][0].value == {"messages": messages, "input": None}


def test_a_line_is_named_by_its_number(tmp_path: Path) -> None:
    text = '{"a": 1}\n\n \n{"a": 2}\r\n{'
    rows, reader = read_text(tmp_path, "a.jsonl", text)
    assert [row.number for row in rows] == [1, 4, 5]
    assert isinstance(rows[2].value, BadRow)
    assert reader.blank_lines == 2


def test_an_item_of_an_array_is_named_by_the_line_on_which_it_begins(tmp_path: Path) -> None:
    text = '\n[\n  {"a":\n 1},\n\n  {"a": 2}\n, 3, {"b": "\\"]"}]\n\n'
    assert named(tmp_path, "a.json", text) == [
        ("a.json:3", {"a": 1}),
        ("a.json:6", {"a": 2}),
        ("a.json:7", 3),
        ("a.json:7 (item 4)", {"b": '"]'}),
    ]


def test_the_items_of_a_file_of_one_line_are_named_by_number(tmp_path: Path) -> None:
    assert named(tmp_path, "a.json", '[{"a":1},{"a":2}]') == [
        ("a.json item 1", {"a": 1}),
        ("a.json item 2", {"a": 2}),
    ]


def test_a_malformed_item_costs_itself_alone(tmp_path: Path) -> None:
    text = b'[\n{"a": 1},\n{"a": },\n{"a": "\xff"},\n"b",\n{"a": 2}]'
    assert named(tmp_path, "a.json", text) == [
        ("a.json:2", {"a": 1}),
        ("a.json:3", "not valid JSON (JSON is malformed: invalid character (byte 6))"),
        ("a.json:4", "not UTF-8 (byte 7 of the item is 0xff)"),
        ("a.json:5", "b"),
        ("a.json:6", {"a": 2}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "a.json is empty"),
        ("", "a.json is empty"),
        (" \n", "a.json is empty"),
        ("[", "a.json:1: not a JSON array of objects: item 1 of the array is missing"),
        ('[{"a": 1},\n]', "a.json:2: not a JSON array of objects: item 2 of the array is missing"),
        (
            '[{"a": 1}\n{"a": 2}]',
            "a.json:2: not a JSON array of objects: after item 1 of the array",
        ),
        ('[{"a": 1},\n{"a": "', "a.json:2: not a JSON array of objects: item 2, which begins here"),
        (
            '[{"a": 1},\n{"a": [\n',
            "a.json:2: not a JSON array of objects: item 2, which begins here",
        ),
        ('[{"a": 1}', "a.json:1: not a JSON array of objects: after item 1 of the array"),
        ('[{"a": 1}]\n[', "a.json:2: not a JSON array of objects: something follows the end"),
    ],
)
def test_an_array_that_cannot_be_read_on_is_refused(tmp_path: Path, text: str, words: str) -> None:
    assert refusal(tmp_path, "a.json", text).startswith(words)


def in_pieces(text: bytes, cuts: random.Random) -> Callable[[int], bytes]:
    stream = io.BytesIO(text)
    return lambda size: stream.read(cuts.randint(1, 5))


def test_an_array_is_the_same_however_it_is_cut_into_pieces() -> None:
    items = [{"a": '"\\]}', "b": [{}, [1, "x\\\\"]]}, [], "s\\", -1.5, None, {"ü": "\n"}]
    text = json.dumps(items, ensure_ascii=False, indent=1).encode()
    for seed in range(50):
        found = list(array_items(in_pieces(text, random.Random(seed)), Path("a.json")))
        assert [json.loads(item) for _, item in found] == items
        lines = [text[: text.index(item)].count(b"\n") + 1 for _, item in found]
        assert [line for line, _ in found] == lines


def test_a_json_file_that_is_neither_says_what_it_may_hold(tmp_path: Path) -> None:
    (_, reason), *_ = named(tmp_path, "a.json", '{\n"data": []}')
    assert reason.endswith("; a .json file holds an array of objects, or an object a line")


def test_a_csv_row_is_named_by_the_line_on_which_it_begins(tmp_path: Path) -> None:
    text = 'prompt,completion\n"a\nb",c\n\nd,e,f\ng,h\n'
    rows, reader = read_text(tmp_path, "a.csv", text)
    assert [row.number for row in rows] == [2, 5, 6]
    assert rows[0].value == {"prompt": "a\nb", "completion": "c"}
    assert str(rows[1].value) == "has 3 fields, the header has 2"
    assert reader.blank_lines == 1


def test_a_long_cell_is_no_reason_to_stop(tmp_path: Path) -> None:
    ((_, value),) = named(tmp_path, "a.csv", f"prompt,completion\n{'a' * 200_000},b\n")
    assert len(value["prompt"]) == 200_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"prompt,completion\n", "a.csv is empty"),
        (b"prompt,prompt\na,b\n", "a.csv:1: the header names 'prompt' twice"),
        (b"messages\na\n", "a.csv:1: the header names 'messages', but CSV holds texts alone"),
        (b'prompt,completion\na,b\n"c,d\n', "a.csv:3: not valid CSV (unexpected end of data)"),
        (b"prompt,completion\na,\xe9\n", "a.csv:2: not UTF-8 (byte 2 of the line is 0xe9)"),
    ],
)
def test_a_csv_file_that_cannot_be_read_is_refused(tmp_path: Path, text: bytes, words: str) -> None:
    assert refusal(tmp_path, "a.csv", text).startswith(words)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    text = TEXTS["a.jsonl"].encode()
    cut = refusal(tmp_path, "a.jsonl.gz", gzip.compress(text)[:-9])
    assert cut.startswith("a.jsonl.gz is damaged or cut off (gzip: ")
    assert "zstd" in refusal(tmp_path, "a.jsonl.zst", text)
    assert refusal(tmp_path, "a.parquet", b"PAR1").startswith("a.parquet cannot be read as Parquet")
    with pytest.raises(UserError, match=r"none\.jsonl cannot be read: No such file"):
        open_rows(tmp_path / "none.jsonl")


def test_another_encoding_than_utf8_is_refused(tmp_path: Path) -> None:
    words = "a.jsonl:1: the file is UTF-16; save it as UTF-8"
    assert refusal(tmp_path, "a.jsonl", TEXTS["a.jsonl"].encode("utf-16")) == words


def test_what_is_nested_too_deeply_is_a_bad_row(tmp_path: Path) -> None:
    ((_, reason),) = named(tmp_path, "a.jsonl", "[" * 100_000)
    assert reason == "nested too deeply to be a conversation"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((f"a{suffix}", suffix) for suffix in FORMATS),
        ("a.v2.JSON", ".json"),
        ("a.csv.gz", ".csv"),
        ("a.jsonl.zst", ".jsonl"),
        ("a.parquet.gz", ""),
        ("a.gz", ""),
        ("a.txt", ""),
        ("jsonl", ""),
    ],
)
def test_a_format_is_known_by_its_name(name: str, kind: str) -> None:
    assert format_of(Path(name)) == kind


def test_a_file_of_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text("stages:\n  hash_data:\n    deps: [data]\n", encoding="utf-8")
    Path("data").mkdir()
    Path("data/a.jsonl").write_text("{}\n", encoding="utf-8")
    assert input_files("data", "data.path") == [Path("data/a.jsonl")]
    Path("data/b.xlsx").write_text("", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        input_files("data", "data.path")
    assert str(caught.value) == (
        "data/b.xlsx (data.path) is of a kind that cannot be read; use .parquet, or .jsonl, "
        ".ndjson, .json, .csv, plain or with .gz or .zst behind it"
    )
