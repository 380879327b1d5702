"""Labels that another trainer made, damaged or made to break a reader."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from stages.chat.tokenizer import ChatTokenizer

from ..chat.tokenizers import TODAY, byte_tokenizer
from ..foreign.test_audit_labels import CONVERSATIONS, token_row, write_source
from ..foreign.token_files import WRITERS, Rows, write_arrow, write_jsonl, write_saved_dataset
from .damage import flips, truncations
from .outcome import Outcome, assert_refused, holdshort

pytestmark = pytest.mark.slow

DEEP = b"[" * 100_000 + b"]" * 100_000

LINES: dict[str, bytes] = {
    "brackets without end": b'{"input_ids": ' + DEEP + b', "labels": [1]}',
    "a number beyond float64": b'{"input_ids": [1e400], "labels": [1]}',
    "texts": b'{"input_ids": ["a"], "labels": [1]}',
    "nothing": b'{"input_ids": [], "labels": []}',
    "fewer labels than tokens": b'{"input_ids": [1, 2], "labels": [1]}',
    "a token beyond int64": b'{"input_ids": [9999999999999999999999], "labels": [1]}',
    "a token of uint64": b'{"input_ids": [18446744073709551615], "labels": [5]}',
    "a list": b"[]",
    "a row that is null": b"null",
    "no UTF-8": b"\xff",
    "NUL": b"\0\0",
    "lengths below 0": b'{"input_ids": [1, 2], "labels": [1, 2], "seq_lengths": [1, -1, 2]}',
    "lengths that wrap around": (
        b'{"input_ids": [1, 2], "labels": [1, 2], '
        b'"seq_lengths": [9223372036854775807, 9223372036854775807, 4]}'
    ),
    "no lengths": b'{"input_ids": [1, 2], "labels": [1, 2], "seq_lengths": []}',
    "padding alone": b'{"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [0, 0]}',
    "nulls": b'{"input_ids": null, "labels": null}',
    "an object": b'{"input_ids": {"a": 1}, "labels": [1]}',
    "lists in lists": b'{"input_ids": [[1], [2]], "labels": [1, 2]}',
    "lists among numbers": b'{"input_ids": [1, [2]], "labels": [1, 2]}',
    "fractions": b'{"input_ids": [1.5], "labels": [1]}',
    "a mask of other numbers": b'{"input_ids": [1, 2], "assistant_masks": [1, 2]}',
    "half a surrogate pair": b'{"\\ud800": 1}',
    "a key that paints the terminal": b'{"a\\nb\\u001b[2J": 1}',
}


class Evil:
    """Its unpickling leaves a file in the current directory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


def saved(state: bytes) -> Callable[[Path, Rows], Path]:
    """A directory of save_to_disk whose state.json is another."""

    def write(directory: Path, rows: Rows) -> Path:
        write_saved_dataset(directory / "saved", rows)
        write_arrow(directory / "outside.arrow", rows)
        (directory / "saved/state.json").write_bytes(state)
        return directory / "saved"

    return write


def listing(name: object) -> bytes:
    return json.dumps({"_data_files": [{"filename": name}]}).encode()


def file(name: str, content: bytes) -> Callable[[Path, Rows], Path]:
    def write(directory: Path, rows: Rows) -> Path:
        (directory / name).write_bytes(content)
        return directory / name

    return write


def tensors(**arrays: Any) -> Callable[[Path, Rows], Path]:
    def write(directory: Path, rows: Rows) -> Path:
        save_file(arrays, directory / "a.safetensors")
        return directory / "a.safetensors"

    return write


def columns(**arrays: Any) -> Callable[[Path, Rows], Path]:
    def write(directory: Path, rows: Rows) -> Path:
        with pa.OSFile(str(directory / "a.arrow"), "wb") as sink:
            table = pa.table(arrays)
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        return directory / "a.arrow"

    return write


REFUSED: dict[str, Callable[[Path, Rows], Path]] = {
    "a file elsewhere": saved(listing("../outside.arrow")),
    "a file at the root": saved(listing("/etc/passwd")),
    "a file that is not there": saved(listing("gone.arrow")),
    "a file that is a number": saved(listing(5)),
    "files that are none": saved(b'{"_data_files": 5}'),
    "no files": saved(b'{"_data_files": []}'),
    "a state of a list": saved(b"[]"),
    "a state of brackets": saved(b"[" * 100_000),
    "a state of nothing": saved(b""),
    "Arrow of nothing": file("a.arrow", b""),
    "Arrow of its mark": file("a.arrow", b"ARROW1\0\0"),
    "Arrow of noise": file("a.arrow", bytes(range(256)) * 8),
    "Arrow of a length without end": file("a.arrow", b"\xff\xff\xff\xff\xff\xff\xff\x7f"),
    "Arrow of texts": columns(input_ids=[["a"]], labels=[[1]]),
    "Arrow of other names": columns(a=[[1]]),
    "safetensors of nothing": file("a.safetensors", b""),
    "safetensors of a header without end": file("a.safetensors", b"\xff" * 64),
    "safetensors of floats": tensors(
        input_ids=np.ones((2, 3), np.float32), labels=np.ones((2, 3), np.int64)
    ),
    "safetensors of one dimension": tensors(
        input_ids=np.ones(3, np.int64), labels=np.ones(3, np.int64)
    ),
    "safetensors of other names": tensors(a=np.ones((2, 3), np.int64)),
    "Parquet of noise": file("a.parquet", b"PAR1" + b"\xff" * 50 + b"PAR1"),
    "a pickle": file("a.pkl", pickle.dumps(Evil())),
    "a pickle of torch": file("a.pt", pickle.dumps(Evil())),
    "a pickle called bin": file("a.bin", pickle.dumps(Evil())),
    "a pickle called safetensors": file("a.safetensors", pickle.dumps(Evil())),
    "a pickle called Arrow": file("a.arrow", pickle.dumps(Evil())),
    "a pickle called Parquet": file("a.parquet", pickle.dumps(Evil())),
    "a pickle called JSON": file("a.jsonl", pickle.dumps(Evil())),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """A directory with a tokenizer and a source, and right rows."""
    path = tmp_path_factory.mktemp("labels")
    byte_tokenizer(path / "tokenizer")
    write_source(path / "source.jsonl", CONVERSATIONS)
    tokenizer = ChatTokenizer(str(path / "tokenizer"), TODAY)
    return path, [token_row(tokenizer, messages) for messages in CONVERSATIONS]


def audit(project: Path, tokens: Path) -> Outcome:
    return holdshort(
        *("audit-labels", "--tokens", tokens, "--source", project / "source.jsonl"),
        *("--tokenizer", project / "tokenizer"),
    )


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_row_is_counted(
    rows: tuple[Path, Rows], tmp_path: Path, name: str
) -> None:
    project, right = rows
    tokens = write_jsonl(tmp_path / "t.jsonl", right)
    with tokens.open("ab") as appended:
        appended.write(LINES[name] + b"\n")
    done = audit(project, tokens)
    assert done.code == 1, str(done)
    assert f"t.jsonl:{len(right) + 1}: " in done.output
    tokens.write_bytes(LINES[name] + b"\n")
    assert_refused(audit(project, tokens), "t.jsonl")


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_holds_no_rows_is_named(
    rows: tuple[Path, Rows], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    project, right = rows
    monkeypatch.chdir(tmp_path)
    assert_refused(audit(project, REFUSED[name](tmp_path, right)), tmp_path.name)
    assert not Path("pwned").exists()


@pytest.mark.parametrize("name", WRITERS)
def test_a_damaged_file_is_refused_or_every_row_is_accounted_for(
    rows: tuple[Path, Rows], tmp_path: Path, name: str
) -> None:
    """A row that is not there leaves a conversation of the source that no row holds."""
    project, right = rows
    tokens = WRITERS[name](tmp_path / name, right)
    files = [tokens] if tokens.is_file() else sorted(tokens.glob("*.arrow"))
    for file in files:
        content = file.read_bytes()
        for what, spoiled in (*truncations(content, 5, 3), *flips(content, 5, 10)):
            file.write_bytes(spoiled)
            done = audit(project, tokens)
            if done.code == 2:
                assert_refused(done)
            assert not done.trace, f"{what}: {done}"
            if done.code == 0:
                read = int(done.output.partition(f"{name}: ")[2].partition(" conversations")[0])
                lost = f"{len(right) - read} " in done.output
                assert read == len(right) or lost, f"{what}: {done}"
        file.write_bytes(content)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(
        st.sampled_from(["input_ids", "labels", "attention_mask", "position_ids", "seq_lengths"]),
        st.none() | st.lists(st.integers() | st.booleans() | st.none(), max_size=4) | st.text(),
    )
)
def test_any_row_is_counted(
    rows: tuple[Path, Rows], tmp_path: Path, row: dict[str, object]
) -> None:
    project, right = rows
    tokens = write_jsonl(tmp_path / "t.jsonl", right)
    with tokens.open("a", encoding="utf-8") as appended:
        appended.write(json.dumps(row) + "\n")
    done = audit(project, tokens)
    if done.code == 2:
        assert_refused(done)
    assert done.code in (0, 1, 2), str(done)
