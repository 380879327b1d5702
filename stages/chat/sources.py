"""Input files: found, streamed line by line, and hashed in the same pass."""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

from ..config.errors import UserError
from ..config.load import PIPELINE_FILE, stage_deps
from ..provenance.hashing import CHUNK_BYTES, files_below

SUFFIXES = (".jsonl",)
BYTE_ORDER_MARKS = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
UTF8_MARK = b"\xef\xbb\xbf"


def input_files(location: str, key: str) -> list[Path]:
    """The data files at or below `location`, which is the value of the params key `key`.

    Raises UserError when it is missing, when hash_data does not depend on it (DVC would not see it
    change), or when it holds no file or one of another kind.
    """
    path = Path(location)
    deps = [Path(dep) for dep in stage_deps("hash_data")]
    if ".." in path.parts or not any(path.is_relative_to(dep) for dep in deps):
        raise UserError(
            f"{key} is {location!r}, which hash_data does not depend on; move it below data/, or "
            f"add it to the deps of hash_data in {PIPELINE_FILE}"
        )
    if not path.exists():
        raise UserError(
            f"{path} ({key}) does not exist; `dvc pull` brings tracked data, or set {key} to a "
            "file or directory of yours"
        )
    files = files_below(path)
    if not files:
        raise UserError(f"{path} ({key}) holds no file")
    for file in files:
        if file.suffix not in SUFFIXES:
            raise UserError(
                f"{file} ({key}) is of a kind that cannot be read; use {' or '.join(SUFFIXES)}, "
                "one conversation a line"
            )
    return files


class HashingReader(io.RawIOBase):
    """A raw file whose bytes pass through sha256 on their way to the reader."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        size = self._file.readinto(buffer) or 0
        self._digest.update(memoryview(buffer)[:size])
        return size

    def close(self) -> None:
        self._file.close()
        super().close()

    def hexdigest(self) -> str:
        """sha256 of what was read so far: of the whole file once its lines are exhausted."""
        return self._digest.hexdigest()


def numbered_lines(reader: HashingReader, path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line without its end) of every line that is not blank.

    Raises UserError for an empty file and for another encoding than UTF-8.
    """
    lines = io.BufferedReader(reader, CHUNK_BYTES)
    empty = True
    for number, line in enumerate(lines, start=1):
        if number == 1:
            if encoding := BYTE_ORDER_MARKS.get(line[:2]):
                raise UserError(f"{path}:1: the file is {encoding}; save it as UTF-8")
            line = line.removeprefix(UTF8_MARK)
        line = line.strip()
        if line:
            empty = False
            yield number, line
    if empty:
        raise UserError(f"{path} is empty; it must hold one conversation a line")
