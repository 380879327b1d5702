"""provenance.json of a model directory: which run made it, and the digests of its files."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from ..config.errors import UserError, reading
from ..provenance.hashing import files_below, sha256_files
from ..provenance.records import is_sealed, sealed, write_json

MODEL = Path("models/final")
RECORD = "provenance.json"
NO_MODEL = (
    "`dvc pull` brings it from a remote, `dvc checkout` from DVC's cache, and `dvc repro` makes it"
)
"""What is done about a model that is not here."""


@dataclass(frozen=True)
class ModelRecord:
    """manifest: digest of the run; clearance: what decided its bits; files: sha256 by name."""

    manifest: str
    clearance: dict[str, Any]
    environment: dict[str, Any]
    params: dict[str, Any]
    files: dict[str, str]

    @classmethod
    def of(
        cls,
        directory: Path,
        *,
        manifest: str,
        clearance: Mapping[str, Any],
        environment: Mapping[str, Any],
        params: Mapping[str, Any],
    ) -> Self:
        """The record of the files that are in a directory now."""
        found = sha256_files(files_below(directory))
        files = {
            Path(name).relative_to(directory).as_posix(): digest
            for name, digest in sorted(found.items())
        }
        return cls(manifest, dict(clearance), dict(environment), dict(params), files)

    def write(self, directory: Path) -> None:
        write_json(directory / RECORD, sealed(asdict(self)))


def read_record(directory: Path) -> ModelRecord:
    """Raises UserError when it is missing or damaged, or the directory is not here."""
    path = directory / RECORD
    if not directory.exists():
        raise UserError(f"the model {directory} is not here; {NO_MODEL}")
    try:
        with reading(path, "the record of a model", "`dvc checkout` brings it back"):
            content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            record = msgspec.convert(content, ModelRecord)
            if not is_sealed(content):
                raise ValueError("it was changed after it was written")
            return record
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing: {directory} is no model that full_train wrote"
        ) from None
