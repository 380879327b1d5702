"""dvc.lock is read in the order of the pipeline; what a stage wrote is told from what it read."""

from pathlib import Path
from typing import Any

import pytest

from stages.config import UserError
from stages.revisions.record import Record, in_order, outputs, source_deps


def stage(deps: list[str], outs: dict[str, str]) -> dict[str, Any]:
    return {
        "deps": [{"path": path, "md5": "0"} for path in deps],
        "outs": [{"path": path, "md5": md5} for path, md5 in outs.items()],
    }


LOCK = {
    "train": stage(["made/rows", "code"], {"model": "3"}),
    "gate": stage(["made", "code", "data"], {"verdict.json": "2"}),
    "prepare": stage(["data"], {"made": "1"}),
}


def test_stages_stand_behind_those_whose_outputs_they_read() -> None:
    assert in_order(LOCK) == ["prepare", "train", "gate"]
    assert source_deps(LOCK) == {"data": ["prepare", "gate"], "code": ["train", "gate"]}
    assert outputs(LOCK, "gate") == {"verdict.json": "2"}
    assert outputs(LOCK, "nobody") == {}


def test_a_directory_without_a_run_records_nothing(tmp_path: Path) -> None:
    record = Record.of_directory(tmp_path, "here")
    assert (record.lock, record.manifest, record.params([])) == ({}, {}, {})
    assert [record.part(name) for name in ("data", "gates", "code", "environment")] == [{}] * 4
    assert (record.read("a"), record.files("a"), record.metrics("a")) == (None, {}, {})


@pytest.mark.parametrize("text", ["stages: [", "[]", "stages: 1", "stages: {a: {outs: [b]}}"])
def test_a_damaged_lock_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "dvc.lock").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"dvc\.lock of here is damaged"):
        _ = Record.of_directory(tmp_path, "here").lock
