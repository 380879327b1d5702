"""Small JSON files are written whole or not at all, and read back or refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stages.config import UserError
from stages.provenance.records import (
    format_value,
    read_json,
    read_metrics,
    write_json,
    write_metrics,
)

from ..settings import run_python


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_json_is_written_with_these_bytes() -> None:
    write_json(Path("deep/er/a.json"), {"b": [1, 1e-05], "a": "ü", "c": None})
    assert Path("deep/er/a.json").read_bytes() == (
        b'{\n  "b": [\n    1,\n    1e-05\n  ],\n  "a": "\xc3\xbc",\n  "c": null\n}\n'
    )
    assert [path.name for path in Path("deep/er").iterdir()] == ["a.json"]


def test_a_reader_of_the_old_file_never_sees_a_half_written_one() -> None:
    write_json(Path("a.json"), 1)
    with Path("a.json").open() as reader:
        write_json(Path("a.json"), [2] * 1000)
        assert reader.read() == "1\n"


@pytest.mark.parametrize("content", [{"a": math.nan}, {"a": math.inf}, {"a": object()}])
def test_what_json_has_no_word_for_leaves_the_old_file(content: Any) -> None:
    write_json(Path("a.json"), 1)
    with pytest.raises((ValueError, TypeError)):
        write_json(Path("a.json"), content)
    assert Path("a.json").read_text() == "1\n"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(Path("a.json"), 1)
    source = (
        "import resource; from pathlib import Path; from stages.config.launch import guarded;"
        "from stages.provenance.records import write_json;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "guarded(lambda: write_json(Path('a.json'), ['x' * 100000]))"
    )
    done = run_python(source, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: input or output: File too large\n")
    assert Path("a.json").read_text() == "1\n"


def test_a_missing_record_ends_with_the_remedy() -> None:
    with pytest.raises(UserError) as caught:
        read_json(Path("a.json"), "run `dvc repro`")
    assert str(caught.value) == "a.json is missing; run `dvc repro`"


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"{'a': 1}"])
def test_what_is_no_json_is_refused_in_one_line(content: bytes) -> None:
    Path("a.json").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_json(Path("a.json"), "run `dvc repro`")
    message = str(caught.value)
    assert message.startswith("a.json cannot be read as JSON (")
    assert message.endswith("); run `dvc repro`")
    assert "\n" not in message


def test_metrics_stand_under_the_name_of_their_stage() -> None:
    write_metrics("mask_report", {"passed": True, "rows": 3, "loss": 0.5})
    assert json.loads(Path("metrics/mask_report.json").read_text()) == {
        "mask_report": {"passed": True, "rows": 3, "loss": 0.5}
    }
    assert read_metrics("mask_report") == {"passed": True, "rows": 3, "loss": 0.5}


def test_a_number_that_is_not_finite_is_recorded_as_text() -> None:
    write_metrics("probe", {"a": math.nan, "b": math.inf, "c": -math.inf, "d": None})
    assert read_metrics("probe") == {"a": "nan", "b": "inf", "c": "-inf", "d": None}


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"probe": []}', '{"other": {}}'])
def test_metrics_of_something_else_are_refused(content: str) -> None:
    write_json(Path("metrics/probe.json"), json.loads(content))
    with pytest.raises(UserError) as caught:
        read_metrics("probe")
    assert str(caught.value) == (
        "metrics/probe.json does not hold the metrics of 'probe'; run `dvc repro -f -s probe`"
    )


def test_missing_metrics_say_which_stage_writes_them() -> None:
    with pytest.raises(UserError) as caught:
        read_metrics("probe")
    assert str(caught.value) == "metrics/probe.json is missing; run `dvc repro probe`"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (1e-09, "1e-09"),
        (2.0, "2"),
        (math.nan, "nan"),
        (123456, "123456"),
        ("text", "text"),
        (None, "None"),
        (True, "True"),
    ],
)
def test_values_are_shown_with_four_digits(value: Any, text: str) -> None:
    assert format_value(value) == text
