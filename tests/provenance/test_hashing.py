"""Digests are those that sha256sum prints, whatever the order and the place of the files."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from stages.config import UserError
from stages.provenance.hashing import (
    CHUNK_BYTES,
    files_below,
    sha256_file,
    sha256_files,
    sha256_tree,
    total_sha256,
)

SHARDS = {
    "b.jsonl": b"second\n",
    "a.jsonl": b"first\n",
    "empty.jsonl": b"",
    "same again.jsonl": b"first\n",
    "-dash.jsonl": b"third\n",
    "ünïcode.jsonl": b"\x00\xff" * 1000,
}


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    for name, content in SHARDS.items():
        Path(name).write_bytes(content)
    return [Path(name) for name in SHARDS]


def shell(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("content", "digest"),
    [
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ],
)
def test_the_digest_of_a_file_is_the_standard_one(
    tmp_path: Path, content: bytes, digest: str
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert sha256_file(tmp_path / "file") == digest


@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_file_of_several_chunks_is_hashed_whole(tmp_path: Path, size: int) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert sha256_file(tmp_path / "file") == hashlib.sha256(content[:size]).hexdigest()


def test_the_total_is_what_the_shell_prints(shards: list[Path]) -> None:
    printed = shell("sha256sum -- *.jsonl | cut -c1-64 | sort | sha256sum")
    assert total_sha256(sha256_files(shards).values()) == printed.split()[0]


def test_the_total_of_one_file_is_its_own_digest(shards: list[Path]) -> None:
    assert total_sha256([sha256_file(shards[0])]) == shell("sha256sum b.jsonl").split()[0]


def test_the_total_does_not_depend_on_order_or_names(shards: list[Path]) -> None:
    before = total_sha256(sha256_files(shards).values())
    Path("b.jsonl").rename("z.jsonl")
    renamed = [Path("z.jsonl"), *reversed(shards[1:])]
    assert total_sha256(sha256_files(renamed).values()) == before


def test_the_total_sees_a_file_that_is_there_twice(shards: list[Path]) -> None:
    digests = list(sha256_files(shards).values())
    assert total_sha256(digests) != total_sha256(set(digests))


def test_digests_are_listed_by_path_in_the_order_given(shards: list[Path]) -> None:
    assert list(sha256_files(shards)) == list(SHARDS)


def test_no_files_have_no_digests() -> None:
    assert sha256_files([]) == {}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        sha256_files([tmp_path / "absent"])
    assert str(caught.value) == f"{tmp_path / 'absent'} does not exist"


def test_what_is_no_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        sha256_file(tmp_path)
    assert str(caught.value) == f"{tmp_path} cannot be read: Is a directory"


def test_files_below_are_sorted_and_hidden_ones_left_out(tmp_path: Path) -> None:
    for name in ("b", "a/z", "a/b/c", ".hidden", "a/.git/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)]
    assert found == ["a/b/c", "a/z", "b"]


def test_a_directory_whose_own_path_is_hidden_is_read(tmp_path: Path) -> None:
    (tmp_path / ".data").mkdir()
    (tmp_path / ".data/a").touch()
    assert files_below(tmp_path / ".data") == [tmp_path / ".data/a"]


def test_a_file_stands_for_itself(tmp_path: Path) -> None:
    assert files_below(tmp_path / "a.jsonl") == [tmp_path / "a.jsonl"]


def test_a_tree_is_hashed_by_path(shards: list[Path]) -> None:
    Path("more").mkdir()
    Path("more/c").write_bytes(b"abc")
    assert sha256_tree([Path("more"), Path("a.jsonl")]) == {
        "more/c": hashlib.sha256(b"abc").hexdigest(),
        "a.jsonl": hashlib.sha256(b"first\n").hexdigest(),
    }


def test_a_shard_whose_link_is_broken_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "not fetched")
    with pytest.raises(UserError, match=r"b\.jsonl"):
        sha256_tree([tmp_path])


def test_a_linked_directory_is_not_left_out_in_silence(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/b.jsonl").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/shard").symlink_to(tmp_path / "elsewhere")
    try:
        found = files_below(tmp_path / "data")
    except UserError as error:
        assert "shard" in str(error)
    else:
        assert found == [tmp_path / "data/shard/b.jsonl"]
