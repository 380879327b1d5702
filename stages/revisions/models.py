"""Why do two models differ, by what lies in their directories: their records, cards and weights?

A model directory of full_train says what decided its bits, without the project that made it.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..config.errors import UserError, reading
from ..models.record import RECORD, ModelRecord, read_record
from ..provenance.drift import Drift, compare, compare_environment
from ..provenance.git import commit_of
from ..provenance.hashing import files_below, sha256_files
from .comparison import Comparison, by_kind
from .record import Record
from .training import MODEL, WEIGHTS, first_tensor, one_sided

CARD = "README.md"
CARD_ROW = re.compile(r"^\| (?!measured )([a-z][^|]*) \| ([^|]*) \|$", re.MULTILINE)
DECIDING = ("tokens_sha256", "tokenizer_sha256", "base_weights_sha256")


@dataclass(frozen=True)
class Model:
    """A model directory. files: sha256 of what is there now, by name; name: for the reader."""

    name: str
    directory: Path
    record: ModelRecord
    files: dict[str, str]

    @classmethod
    def of(cls, directory: Path, name: str) -> Self:
        """Raises UserError for a directory without the record of a model."""
        record = read_record(directory)
        found = sha256_files(files_below(directory))
        files = {Path(file).relative_to(directory).as_posix(): one for file, one in found.items()}
        del files[RECORD]
        return cls(name, directory, record, files)

    def card(self) -> dict[str, str]:
        """What the card says was measured, by name."""
        path = self.directory / CARD
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return dict(CARD_ROW.findall(text))


def is_model(target: str) -> bool:
    """Is a directory meant, rather than a revision of the same name?"""
    directory = Path(target)
    if not directory.is_dir() or (directory / RECORD).is_file():
        return directory.is_dir()
    try:
        commit_of(target)
    except UserError:
        return True
    return False


@contextmanager
def opened(target: str) -> Iterator[Model]:
    """The model in a directory, or that of a revision, copied out of DVC's cache or a remote.

    Raises UserError when there is none, or it is not to be had.
    """
    if is_model(target):
        yield Model.of(Path(target), target)
        return
    record = Record.of_run(target)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "model"
        if not record.fetch(MODEL, copy):
            raise UserError(
                f"{MODEL} of {record.name} is not in DVC's cache and cannot be had from a remote; "
                "bring it with `dvc fetch --all-commits`, or give its directory"
            )
        yield Model.of(copy, record.name)


def compare_models(then: Model, now: Model) -> Comparison:
    """Raises UserError when weights are damaged."""
    unknown: list[str] = []
    causes = list(find_causes(then, now, unknown))
    effects = list(find_effects(then, now))
    return Comparison(causes, effects, unknown)


def find_causes(then: Model, now: Model, unknown: list[str]) -> Iterator[Drift]:
    """Tokens, tokenizer, base model, params, code, environment, seed; files that changed since.

    Of the code a model records nothing but the digest of its run, in which all else is too.
    """
    old, new = then.record, now.record
    params = by_kind(compare("params", old.params, new.params, "another run"))
    yield from compare("digest", deciding(old), deciding(new), "another run")
    for kind in ("split", "labels", "params"):
        yield from params[kind]
    if old.manifest != new.manifest:
        if old.params == new.params and old.clearance == new.clearance:
            yield Drift("code", "digest of the run", old.manifest, new.manifest, "another run")
        else:
            unknown.append("code: a model records no digest of it alone; give the revisions")
    yield from compare_environment(old.environment, new.environment)
    yield from params["seed"]
    for model in (then, now):
        for drift in compare("file", model.record.files, model.files, "another run"):
            name = f"{drift.name} of {model.name}, since it was written"
            yield Drift("file", name, drift.then, drift.now, drift.meaning)


def deciding(record: ModelRecord) -> dict[str, Any]:
    """Digests of what it was trained on."""
    return {name: record.clearance.get(name) for name in DECIDING}


def find_effects(then: Model, now: Model) -> Iterator[Drift]:
    """What the cards say was measured, the files, and the first tensor that differs."""
    yield from compare("metric", then.card(), now.card(), "another run")
    yield from compare("output", then.files, now.files, "another run")
    for name in sorted({*then.files, *now.files}):
        if not name.endswith(WEIGHTS) or then.files.get(name) == now.files.get(name):
            continue
        drift = one_sided(name, then.files, now.files)
        if drift is None:
            paths = then.directory / name, now.directory / name
            with reading(" or ".join(map(str, paths)), "weights", "`holdshort verify` names it"):
                drift = first_tensor(*paths, name)
        if drift is not None:
            yield drift
            return
