"""The conversations that labels were made from: what cannot be one is refused in a sentence."""

import json
import os
from pathlib import Path

import pytest

from stages.config import UserError
from stages.foreign.source import read_source

ROW = json.dumps({"prompt": "Which?", "completion": "This."}) + "\n"


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_source(path, "auto")
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_the_kind_of_a_source_is_told_by_its_suffix_in_any_case(tmp_path: Path) -> None:
    path = tmp_path / "ROWS.JSONL"
    path.write_text(ROW + "{}\n", encoding="utf-8")
    source = read_source(path, "auto")
    assert [one.source for one in source.conversations] == ["ROWS.JSONL:1"]
    assert [one.partition(": ")[0] for one in source.unreadable] == ["ROWS.JSONL:2"]


def test_what_is_no_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.jsonl") == "none.jsonl (--source) does not exist"
    (tmp_path / "rows.jsonl").mkdir()
    assert refusal(tmp_path / "rows.jsonl") == (
        "rows.jsonl (--source) is a directory; name one file with the conversations"
    )
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert refusal(tmp_path / "pipe.jsonl") == (
        "pipe.jsonl (--source) is no regular file; write its content to one"
    )
    (tmp_path / "rows.txt").write_text(ROW, encoding="utf-8")
    assert "is of a kind that cannot be read; use .jsonl" in refusal(tmp_path / "rows.txt")
