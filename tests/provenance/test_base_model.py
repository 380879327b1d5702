"""A base model is found by its name and revision, and is exactly what was kept."""

from pathlib import Path

import pytest

from stages.config import UserError
from stages.provenance.base_model import find_base_model, is_reference, keep, resolve_file

COMMIT = "12fd25f77366fa6b3b4b768ec3050bf629380bac"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDSHORT_MODELS", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "model/sub").mkdir(parents=True)
    (tmp_path / "model/config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model/sub/weights").write_bytes(b"abc")
    return tmp_path / "model"


def test_what_is_kept_is_found_by_its_sha256(directory: Path, store: Path) -> None:
    revision = keep(directory, "mine")
    found = find_base_model(f"mine@{revision}", "model.name_or_path")
    assert found.sha256 == revision
    assert found.directory.is_relative_to(store)
    assert sorted(found.inputs()) == [
        f"mine@{revision}/config.json",
        f"mine@{revision}/sub/weights",
    ]
    assert keep(directory, "mine") == revision


def test_a_name_in_a_verdict_leads_to_the_file(directory: Path) -> None:
    revision = keep(directory, "mine")
    assert resolve_file(f"mine@{revision}/sub/weights").read_bytes() == b"abc"
    assert resolve_file("data/rows.jsonl") == Path("data/rows.jsonl")
    assert not resolve_file(f"org/name@{COMMIT}/config.json").exists()


def test_a_kept_model_that_was_changed_is_refused(directory: Path) -> None:
    reference = f"mine@{keep(directory, 'mine')}"
    (find_base_model(reference, "k").directory / "sub/weights").write_bytes(b"abd")
    with pytest.raises(UserError, match=r"was changed: its sha256 is not [0-9a-f]{64}; keep it"):
        find_base_model(reference, "k")


def test_a_model_that_is_not_kept_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"model\.x names mine .+ does not keep .+holdshort keep"):
        find_base_model(f"mine@{'0' * 64}", "model.x")


@pytest.mark.parametrize("revision", ["main", "v1", "None", "abc123", COMMIT[:12]])
def test_a_revision_that_can_change_is_refused(revision: str) -> None:
    with pytest.raises(UserError, match="give name@revision, with the 40 hex digits of a commit"):
        find_base_model(f"org/name@{revision}", "model.name_or_path")


def test_the_hub_out_of_reach_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"names org/name at 12fd25f77366\.\.\., which cannot be"):
        find_base_model(f"org/name@{COMMIT}", "model.name_or_path")


@pytest.mark.parametrize("name", ["a/b", "", "..", "a b", "-a"])
def test_a_name_that_is_no_name_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(UserError, match="is no name for a model"):
        keep(directory, name)


def test_an_empty_directory_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="holds no files"):
        keep(tmp_path / "none", "mine")


def test_a_path_is_no_reference() -> None:
    assert is_reference(f"org/name@{COMMIT}")
    assert not is_reference("data/tokenizer")
