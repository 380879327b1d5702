"""A base model is found by its name and revision, and is exactly what was kept."""

import os
import time
from pathlib import Path

import huggingface_hub
import pytest

from stages.cli import main
from stages.config import UserError
from stages.provenance import base_model
from stages.provenance.base_model import find_base_model, is_reference, keep, resolve_file
from stages.provenance.hashing import sha256_files

COMMIT = "12fd25f77366fa6b3b4b768ec3050bf629380bac"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDSHORT_MODELS", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "model/sub").mkdir(parents=True)
    (tmp_path / "model/config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model/sub/weights.bin").write_bytes(b"abc")
    return tmp_path / "model"


def test_what_is_kept_is_found_by_its_sha256(directory: Path, store: Path) -> None:
    revision = keep(directory, "mine")
    found = find_base_model(f"mine@{revision}", "model.name_or_path")
    assert found.sha256 == revision
    assert found.directory.is_relative_to(store)
    assert sorted(found.inputs()) == [
        f"mine@{revision}/config.json",
        f"mine@{revision}/sub/weights.bin",
    ]
    assert keep(directory, "mine") == revision


def test_a_name_in_a_verdict_leads_to_the_file(directory: Path) -> None:
    revision = keep(directory, "mine")
    assert resolve_file(f"mine@{revision}/sub/weights.bin").read_bytes() == b"abc"
    assert resolve_file("data/rows.jsonl") == Path("data/rows.jsonl")
    assert not resolve_file(f"org/name@{COMMIT}/config.json").exists()


def test_a_kept_model_that_was_changed_is_refused(directory: Path) -> None:
    reference = f"mine@{keep(directory, 'mine')}"
    (find_base_model(reference, "k").directory / "sub/weights.bin").write_bytes(b"abd")
    with pytest.raises(UserError, match=r"was changed: its sha256 is not [0-9a-f]{64}; keep it"):
        find_base_model(reference, "k")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files were read, each time that some were."""
    counts: list[int] = []

    def counting(paths: list[Path]) -> dict[str, str]:
        counts.append(len(paths))
        return sha256_files(paths)

    monkeypatch.setattr(base_model, "sha256_files", counting)
    return counts


def test_files_that_were_written_long_ago_are_read_once(
    directory: Path, hashed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_model, "SETTLED_NS", 0)
    reference = f"mine@{keep(directory, 'mine')}"
    hashed.clear()
    found = [find_base_model(reference, "k") for _ in range(3)]
    assert hashed == [2]
    assert len({one.sha256 for one in found}) == 1


def test_files_that_were_just_written_are_read_each_time(
    directory: Path, hashed: list[int]
) -> None:
    reference = f"mine@{keep(directory, 'mine')}"
    hashed.clear()
    for _ in range(3):
        find_base_model(reference, "k")
    assert hashed == [2, 2, 2]


def test_a_change_that_keeps_size_and_time_is_seen_by_a_process_that_read_the_files_before(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_model, "SETTLED_NS", 0)
    reference = f"mine@{keep(directory, 'mine')}"
    weights = find_base_model(reference, "k").directory / "sub/weights.bin"
    before = weights.stat()
    time.sleep(0.05)  # a tick of the file system's clock
    weights.write_bytes(b"abd")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match="was changed"):
        find_base_model(reference, "k")


def test_a_file_more_is_seen_by_a_process_that_read_the_files_before(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_model, "SETTLED_NS", 0)
    reference = f"mine@{keep(directory, 'mine')}"
    (find_base_model(reference, "k").directory / "more").touch()
    with pytest.raises(UserError, match="was changed"):
        find_base_model(reference, "k")


def test_a_model_that_is_not_kept_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"model\.x names mine .+ does not keep .+holdshort keep"):
        find_base_model(f"mine@{'0' * 64}", "model.x")


@pytest.mark.parametrize("revision", ["main", "v1", "None", "abc123", COMMIT[:12]])
def test_a_revision_that_can_change_is_refused(revision: str) -> None:
    with pytest.raises(UserError, match="give name@revision, with the 40 hex digits of a commit"):
        find_base_model(f"org/name@{revision}", "model.name_or_path")


def test_the_hub_out_of_reach_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"names org/name at 12fd25f77366\.\.\., which cannot be"):
        find_base_model(f"org/name@{COMMIT}", "model.name_or_path")


@pytest.mark.parametrize("name", ["a/b", "", "..", "a b", "-a"])
def test_a_name_that_is_no_name_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(UserError, match="is no name for a model"):
        keep(directory, name)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (None, "is no directory; give the directory of a model"),
        ((), "holds no weights"),
        (("config.json", "README.md"), "holds no weights"),
        (("adapter_config.json", "adapter_model.safetensors"), "has no config.json, as a model"),
    ],
)
def test_what_is_no_model_is_not_kept(
    tmp_path: Path, store: Path, files: tuple[str, ...] | None, words: str
) -> None:
    if files is not None:
        (tmp_path / "given").mkdir()
        for name in files:
            (tmp_path / "given" / name).touch()
    with pytest.raises(UserError, match=words):
        keep(tmp_path / "given", "mine")
    assert not store.exists()


def test_the_command_prints_what_to_write_and_ends_with_2_on_a_mistake(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        main(["keep", str(directory), "mine"])
    assert done.value.code == 0
    revision = capsys.readouterr().out.splitlines()[-1].removeprefix("model.revision: ")
    assert find_base_model(f"mine@{revision}", "k").sha256 == revision
    for wrong in ((str(directory), "my/model"), (str(directory / "absent"), "mine")):
        with pytest.raises(SystemExit) as refused:
            main(["keep", *wrong])
        assert refused.value.code == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("error: ")
        assert len(printed.err.splitlines()) == 1


def test_a_file_of_gguf_is_a_model_without_a_config(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed/model.gguf").touch()
    assert len(keep(tmp_path / "packed", "mine")) == 64


def test_a_kept_model_that_was_changed_is_kept_anew(directory: Path, store: Path) -> None:
    reference = f"mine@{keep(directory, 'mine')}"
    weights = find_base_model(reference, "k").directory / "sub/weights.bin"
    weights.write_bytes(b"abd")
    assert reference == f"mine@{keep(directory, 'mine')}"
    assert find_base_model(reference, "k").directory == weights.parent.parent
    assert weights.read_bytes() == b"abc"
    assert len(list(store.iterdir())) == 1


def test_a_path_is_no_reference() -> None:
    assert is_reference(f"org/name@{COMMIT}")
    assert not is_reference("data/tokenizer")
