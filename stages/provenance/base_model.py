"""Where does a base model lie on this machine? Found by name and revision, never by a local path.

`name@revision`: a revision of 64 hex digits is the sha256 of a directory that `holdshort keep` has
put into the store; one of 40 is a commit on the hub. So params.yaml holds no path of one machine,
and a changed model is a changed param, which DVC sees.
"""

import contextlib
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ..config.errors import UserError
from ..config.load import is_watched
from .hashing import files_below, inside, sha256_files, total_sha256

REFERENCE = re.compile(
    r"\A(?P<name>[^@]+)@(?P<revision>[0-9a-f]{64}|[0-9a-f]{40})(?:/(?P<file>.+))?\Z"
)
NAME = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z")
SHA256_DIGITS = 64
SETTLED_NS = 2_000_000_000
"""A file that was written this long ago would show another write: file systems' clocks are coarse,
the coarsest tick every two seconds."""
WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


@dataclass(frozen=True)
class BaseModel:
    """A directory of model files. digests: name of a file below it -> sha256."""

    reference: str
    directory: Path
    digests: dict[str, str]

    @property
    def sha256(self) -> str:
        """One digest of all files."""
        return total_sha256(self.digests.values())

    def inputs(self) -> dict[str, str]:
        """`name@revision/file` -> sha256, the same on every machine."""
        return {f"{self.reference}/{name}": digest for name, digest in self.digests.items()}


def cache_directory() -> Path:
    """Below the user's cache: what every project on this machine shares."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "holdshort"


def store_directory() -> Path:
    """Where kept models lie: `$HOLDSHORT_MODELS`, else below the user's cache."""
    if chosen := os.environ.get("HOLDSHORT_MODELS"):
        return Path(chosen)
    return cache_directory() / "models"


def is_reference(text: str) -> bool:
    """Is it `name@revision`, rather than a path?"""
    return REFERENCE.match(text) is not None


def kept_path(name: str, revision: str) -> Path:
    """Raises UserError for a name that `keep` would refuse: it could lead out of the store."""
    refuse_name(name)
    return store_directory() / f"{name}-{revision[:16]}"


def refuse_name(name: str) -> None:
    if not NAME.match(name):
        raise UserError(f"{name!r} is no name for a model; use letters, digits, '.', '_' and '-'")


def keep(directory: Path, name: str) -> str:
    """Copy a directory into the store, and return the revision under which it is found.

    A copy that was changed since is replaced. Raises UserError for an impossible name and for a
    directory that holds no model.
    """
    refuse_name(name)
    _refuse_no_model(directory)
    revision = total_sha256(_digests(directory).values())
    target = kept_path(name, revision)
    if not target.is_dir() or total_sha256(_digests(target).values()) != revision:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            staged = Path(scratch) / "model"
            for file in files_below(directory):
                copy = staged / file.relative_to(directory)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, copy)
            if target.is_dir():
                target.rename(Path(scratch) / "changed")
            staged.rename(target)
    return revision


def _refuse_no_model(directory: Path) -> None:
    if not directory.is_dir():
        raise UserError(f"{directory} is no directory; give the directory of a model")
    suffixes = {path.suffix for path in files_below(directory)}
    if not suffixes & set(WEIGHT_SUFFIXES):
        raise UserError(
            f"{directory} holds no weights ({', '.join(WEIGHT_SUFFIXES)}); give the directory of a "
            "model"
        )
    if not (directory / "config.json").is_file() and ".gguf" not in suffixes:
        raise UserError(
            f"{directory} has no config.json, as a model of transformers has; an adapter alone is "
            "no model: keep the merged one"
        )


def find_base_model(reference: str, key: str) -> BaseModel:
    """The files of `name@revision`, hashed now. key: the params key that names it.

    Raises UserError when they are not on this machine and cannot be fetched, or are not those.
    """
    match = REFERENCE.match(reference)
    if match is None:
        raise UserError(
            f"params.yaml: {key} is {reference!r}; give name@revision, with the 40 hex digits of a "
            "commit on the hub, or the 64 that `holdshort keep DIRECTORY NAME` prints"
        )
    name, revision = match["name"], match["revision"]
    if len(revision) == SHA256_DIGITS:
        return _kept_model(reference, name, revision, key)
    directory = _hub_snapshot(name, revision, key)
    return BaseModel(reference, directory, _digests(directory))


def _kept_model(reference: str, name: str, revision: str, key: str) -> BaseModel:
    directory = kept_path(name, revision)
    if not directory.is_dir():
        raise UserError(
            f"params.yaml: {key} names {name} with the sha256 {revision[:16]}..., which this "
            f"machine does not keep in {store_directory()}; `make base-model` fetches SmolLM2, and "
            "`holdshort keep DIRECTORY NAME` keeps a directory of yours"
        )
    digests = _digests(directory)
    if total_sha256(digests.values()) != revision:
        raise UserError(f"{directory} was changed: its sha256 is not {revision}; keep it anew")
    return BaseModel(reference, directory, digests)


def _hub_snapshot(name: str, revision: str, key: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, ignore_patterns=["*.pt", "*.h5"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"params.yaml: {key} names {name} at {revision[:12]}..., which cannot be had from the "
            f"hub ({reason}); fetch it where there is a network, or keep a copy of it with "
            "`holdshort keep DIRECTORY NAME`"
        ) from None


def _digests(directory: Path) -> dict[str, str]:
    """Name below the directory -> sha256. A process reads files again only if they may differ."""
    files = files_below(directory)
    before = [_identity(file) for file in files]
    if directory not in _read or _read[directory][0] != before:
        digests = sha256_files(files)
        _read.pop(directory, None)
        if all(seen is not None and seen.is_settled() for seen in before):
            _read[directory] = before, digests
    else:
        digests = _read[directory][1]
    return {Path(path).relative_to(directory).as_posix(): one for path, one in digests.items()}


@dataclass(frozen=True)
class _Identity:
    """What tells a file from what it was: size and times, of which nobody can set back the last.

    modified_ns, changed_ns: st_mtime_ns and st_ctime_ns.
    """

    path: Path
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    def is_settled(self) -> bool:
        """Would a write from now on show?"""
        return time.time_ns() - self.changed_ns > SETTLED_NS


_read: dict[Path, tuple[list[_Identity | None], dict[str, str]]] = {}


def _identity(file: Path) -> _Identity | None:
    """None for a link to nothing, which is for whoever reads it to name."""
    try:
        found = file.stat()
    except OSError:
        return None
    return _Identity(
        file, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


def resolve_file(path: str) -> Path:
    """The file on this machine that an input of a verdict names: a path, or a file of a model.

    Raises UserError for a name that leads out of the model, or of the project and what its data
    stages depend on.
    """
    match = REFERENCE.match(path)
    if match is None or match["file"] is None:
        elsewhere = Path(path).is_absolute() and any(
            is_watched(path, stage) for stage in ("hash_data", "mask_report")
        )
        return Path(path) if elsewhere else inside(Path(), path)
    name, revision = match["name"], match["revision"]
    if len(revision) == SHA256_DIGITS:
        return inside(kept_path(name, revision), match["file"])
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    inside(Path(), match["file"])
    with contextlib.suppress(HFValidationError):
        cached = try_to_load_from_cache(name, match["file"], revision=revision)
        if isinstance(cached, str):
            return Path(cached)
    return Path(path)
