"""sha256 of files and of sets of files, independent of their order and of where they lie."""

import hashlib
import os
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..config.errors import UserError

CHUNK_BYTES = 1 << 20


def sha256_file(path: Path) -> str:
    """Hex sha256 of one file, read in chunks of 1 MiB into one buffer.

    Raises UserError where it cannot be read, and for what would be read for ever: pipes, devices.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UserError(f"{path} is no regular file; take it away, or write its content to one")
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(buffer[:size])
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def sha256_files(paths: Iterable[Path]) -> dict[str, str]:
    """Path (posix) -> sha256, computed side by side: hashlib releases the interpreter lock."""
    paths = list(paths)
    with ThreadPoolExecutor(max_workers=min(len(paths), os.cpu_count() or 1) or 1) as pool:
        digests = pool.map(sha256_file, paths)
        return {path.as_posix(): digest for path, digest in zip(paths, digests, strict=True)}


def total_sha256(digests: Iterable[str]) -> str:
    """One digest for a set of files, whatever their names and order.

    Of one file: its own sha256. Of several: what
    `sha256sum FILES | cut -c1-64 | sort | sha256sum` prints.
    """
    ordered = sorted(digests)
    if len(ordered) == 1:
        return ordered[0]
    return hashlib.sha256("".join(f"{digest}\n" for digest in ordered).encode()).hexdigest()


def files_below(path: Path) -> list[Path]:
    """The file itself, or every file below a directory, sorted; hidden ones are left out.

    Links are followed. A link to nothing is listed like a file, so that reading it fails by name.
    """
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    entered: set[str] = set()
    for directory, subdirectories, names in os.walk(path, followlinks=True):
        entered.add(os.path.realpath(directory))
        subdirectories[:] = [
            name
            for name in subdirectories
            if not name.startswith(".")
            and os.path.realpath(os.path.join(directory, name)) not in entered  # noqa: PTH118
        ]
        found += [Path(directory) / name for name in names if not name.startswith(".")]
    return sorted(found)


def inside(directory: Path, name: str) -> Path:
    """The file `name` at or below `directory`, as a record from outside names it.

    Raises UserError for a name that leads out: absolute, with `..`, or no name of a file at all.
    """
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        where = "the project" if directory == Path() else str(directory)
        raise UserError(f"{name!r} does not lie in {where}; a record that names it is damaged")
    return directory / name


def sha256_tree(paths: Iterable[Path]) -> dict[str, str]:
    """Path (posix) -> sha256 of every file at or below `paths`."""
    return sha256_files(file for path in paths for file in files_below(path))
