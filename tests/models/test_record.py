"""The record of a model directory names its files, and a damaged one is refused."""

from pathlib import Path

import pytest

from stages.config import UserError
from stages.models.record import ModelRecord, read_record
from stages.provenance.hashing import sha256_file


def write(directory: Path) -> ModelRecord:
    (directory / "merged").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "merged/config.json").write_bytes(b"{}")
    record = ModelRecord.of(
        directory, manifest="ab", clearance={"seed": 1}, environment={}, params={"train": 2}
    )
    record.write(directory)
    return record


def test_it_names_every_file_and_comes_back(tmp_path: Path) -> None:
    directory = tmp_path / "final"
    record = write(directory)
    assert record.files == {
        name: sha256_file(directory / name) for name in ("merged/config.json", "model.safetensors")
    }
    assert read_record(directory) == record


def test_it_does_not_depend_on_where_the_directory_lies(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two/deeper")
    one, two = (tmp_path / name / "provenance.json" for name in ("one", "two/deeper"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"\xff", b'{"manifest": 3}'])
def test_a_damaged_record_is_refused(tmp_path: Path, damage: bytes) -> None:
    write(tmp_path / "final")
    (tmp_path / "final/provenance.json").write_bytes(damage)
    with pytest.raises(UserError, match=r"provenance.json cannot be read as the record"):
        read_record(tmp_path / "final")


def test_another_directory_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no model that full_train wrote"):
        read_record(tmp_path)
