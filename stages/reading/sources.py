"""Input files: found by their kind, and hashed as they are read."""

import hashlib
import io
from pathlib import Path

from ..config.errors import UserError
from ..config.load import PIPELINE_FILE, is_watched
from ..provenance.hashing import files_below

TEXT_FORMATS = (".jsonl", ".ndjson", ".json", ".csv")
FORMATS = (*TEXT_FORMATS, ".parquet")
CODECS = {".gz": "gzip", ".zst": "zstd"}


def input_files(location: str, key: str) -> list[Path]:
    """The data files at or below `location`, which is the value of the params key `key`.

    Raises UserError when it is missing, when hash_data does not depend on it (DVC would not see it
    change), or when it holds no file or one of another kind.
    """
    path = Path(location)
    if not is_watched(location, "hash_data"):
        raise UserError(
            f"{key} is {location!r}, which hash_data does not depend on; move it below data/, or "
            f"add it to the deps of hash_data in {PIPELINE_FILE}"
        )
    try:
        exists = path.exists()
    except OSError as error:
        raise UserError(f"{path} ({key}) cannot be read: {error.strerror}") from None
    if not exists:
        raise UserError(
            f"{path} ({key}) does not exist; `dvc pull` brings tracked data, or set {key} to a "
            "file or directory of yours"
        )
    files = [file for file in files_below(path) if file.suffix != ".dvc"]
    if not files:
        raise UserError(f"{path} ({key}) holds no file")
    for file in files:
        if file.exists() and not file.is_file():
            raise UserError(f"{file} ({key}) is no regular file; write its content to one")
        if not format_of(file):
            raise UserError(
                f"{file} ({key}) is of a kind that cannot be read; use .parquet, or "
                f"{', '.join(TEXT_FORMATS)}, plain or with {' or '.join(CODECS)} behind it"
            )
    return files


def codec_of(path: Path) -> str | None:
    """What a file is compressed with, by its name, as pyarrow calls it."""
    return CODECS.get(path.suffix.lower())


def format_of(path: Path) -> str:
    """The one of FORMATS that a file is of, by its name; empty when it is of none."""
    inner = path.with_suffix("") if codec_of(path) else path
    known = TEXT_FORMATS if codec_of(path) else FORMATS
    suffix = inner.suffix.lower()
    return suffix if suffix in known else ""


class HashingReader(io.RawIOBase):
    """A raw file whose bytes pass through sha256, and are counted, on their way to the reader."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._digest = hashlib.sha256()
        self.passed = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        size = self._file.readinto(buffer) or 0
        self._digest.update(memoryview(buffer)[:size])
        self.passed += size
        return size

    def close(self) -> None:
        self._file.close()
        super().close()

    def hexdigest(self) -> str:
        """sha256 of what was read so far: of the whole file once it is exhausted."""
        return self._digest.hexdigest()
