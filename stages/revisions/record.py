"""What is recorded of a run? dvc.lock, the manifest, and every file: committed, cached or on disk.

A revision is read through DVC's own file system, from git and from DVC's cache or remote; nothing
is checked out. A directory in which the pipeline has run answers the same questions.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Self

from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException
from dvc_data.index import DataIndexDirError
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ..config.errors import UserError
from ..config.load import PARAMS_FILE, flatten
from ..provenance.git import commit_of, committed_files, refuse_elsewhere
from ..provenance.records import metrics_path
from ..verdict.clearance import MANIFEST
from ..verdict.record import GATES, verdict_path

LOCK = "dvc.lock"
SHOWN_DIGITS = 12
"""Of a commit that is named by all its digits."""
BLOCKS = {"code", "data", "environment", "gates", "params", "recorded", "tokenizer", "tokens"}
"""Of a manifest: what is compared."""
IN_VERDICTS = {
    "data": ("hash_data", "inputs"),
    "tokens": ("mask_report", "outputs"),
    "environment": ("gradient_probe", "environment"),
}
"""Parts of a manifest that a verdict holds too: of which gate, and where in it."""
UNAVAILABLE = (OSError, DvcException, DataIndexDirError)
"""What reading raises when a file is not there, not in DVC's cache and not to be had remotely."""
Lock = Mapping[str, Mapping[str, Any]]
"""By stage: what dvc.lock holds of it."""


def is_below(path: str, other: str) -> bool:
    """Is a path the other one, or below it?"""
    return path == other or path.startswith(f"{other}/")


def overlap(one: str, other: str) -> bool:
    """Is one of two paths the other, or below it?"""
    return is_below(one, other) or is_below(other, one)


def outputs(lock: Lock, stage: str) -> dict[str, str]:
    """Path -> md5 of every output of a stage."""
    return {out["path"]: out["md5"] for out in lock.get(stage, {}).get("outs", ())}


def same_output(one: Lock, other: Lock, path: str) -> bool:
    """Do both record the same bits of the output that is, or holds, `path`?"""
    digests = [
        {md5 for stage in lock for out, md5 in outputs(lock, stage).items() if overlap(out, path)}
        for lock in (one, other)
    ]
    return bool(digests[0]) and digests[0] == digests[1]


def in_order(lock: Lock) -> list[str]:
    """The stages, each behind those whose outputs it reads."""
    graph = {
        name: [
            other
            for other in lock
            if other != name
            and any(
                overlap(dep["path"], path)
                for dep in stage.get("deps", ())
                for path in outputs(lock, other)
            )
        ]
        for name, stage in lock.items()
    }
    return list(TopologicalSorter(graph).static_order())


def source_deps(lock: Lock) -> dict[str, list[str]]:
    """Path of every dependency that no stage makes -> the stages that depend on it."""
    made = [path for stage in lock for path in outputs(lock, stage)]
    found: dict[str, list[str]] = {}
    for name in in_order(lock):
        for dep in lock[name].get("deps", ()):
            if not any(overlap(dep["path"], path) for path in made):
                found.setdefault(dep["path"], []).append(name)
    return found


@dataclass(frozen=True)
class Record:
    """What `fs`, with the project at its root, holds of a run. name: for the reader.

    commit: which code it is of; directory: where it lies, if on disk.
    """

    name: str
    fs: Any
    commit: str | None = None
    directory: Path | None = None

    @classmethod
    def of_run(cls, revision: str) -> Self:
        """What a revision of this project records. Raises UserError when that is nothing."""
        refuse_elsewhere()
        commit = commit_of(revision)
        name = commit[:SHOWN_DIGITS] if commit == revision else revision
        record = cls(name, DVCFileSystem(".", rev=commit), commit)
        if not record.lock:
            state = "the one here is not committed" if Path(LOCK).is_file() else "none was made yet"
            raise UserError(
                f"nothing is recorded at {name}: it has no {LOCK} ({state}); commit what "
                "`dvc repro` writes"
            )
        return record

    @classmethod
    def of_directory(cls, directory: Path, name: str, commit: str | None = None) -> Self:
        """What has been computed in a directory."""
        return cls(name, DirFileSystem(str(directory), LocalFileSystem()), commit, directory)

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None when it is not there, or not in DVC's cache or remote."""
        with self.open(path) as file:
            return None if file is None else bytes(file.read())

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        """The file for reading; None when it is not there, or not in DVC's cache or remote."""
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self.fs.open(path, "rb"))
            except UNAVAILABLE:
                file = None
            yield file

    def fetch(self, path: str, target: Path) -> bool:
        """Copy a file or a directory to `target`; False when not all of it can be had."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.fs.get(path, str(target), recursive=self.fs.isdir(path))
        except UNAVAILABLE:
            return False
        return True

    def on_disk(self, path: str, scratch: Path) -> Path | None:
        """Where the file lies, perhaps a copy below `scratch`; None when it is not to be had."""
        if self.directory is not None:
            return self.directory / path
        copy = scratch / path
        return copy if self.fetch(path, copy) else None

    def json(self, path: str) -> Any:
        """A JSON file; an empty mapping when it is not there. Raises UserError when damaged."""
        content = self.read(path)
        try:
            return json.loads(content) if content is not None else {}
        except ValueError as error:
            raise UserError(f"{path} of {self.name} is not JSON: {error}") from None

    def files(self, path: str) -> dict[str, str | None]:
        """Name -> md5 of the file at `path`, or of all below it; None where it cannot be read."""
        try:
            names = sorted(self.fs.find(path)) if self.fs.isdir(path) else [path]
        except UNAVAILABLE:
            return {}
        return {name: self._md5(name) for name in names if self.fs.exists(name)}

    def _md5(self, path: str) -> str | None:
        if known := self.fs.info(path).get("md5"):
            return str(known)
        md5 = partial(hashlib.md5, usedforsecurity=False)  # DVC's: for content, not for security
        with self.open(path) as file:
            return None if file is None else hashlib.file_digest(file, md5).hexdigest()

    def sha256(self, path: str) -> str | None:
        """Of the bytes of a file; None where it cannot be read."""
        with self.open(path) as file:
            return None if file is None else hashlib.file_digest(file, "sha256").hexdigest()

    @cached_property
    def lock(self) -> Lock:
        """dvc.lock by stage; empty without one. Raises UserError when it is damaged."""
        try:
            stages: Lock = self._yaml(LOCK).get("stages", {})
            for stage in in_order(stages):
                outputs(stages, stage)
        except (KeyError, TypeError, AttributeError, CycleError) as error:
            raise UserError(f"{LOCK} of {self.name} is damaged ({error!r})") from None
        return stages

    @cached_property
    def params_file(self) -> Mapping[str, Any]:
        """params.yaml as it lies there, whatever was run. Raises UserError when it is damaged."""
        content = self._yaml(PARAMS_FILE.name)
        return content if isinstance(content, dict) else {}

    def _yaml(self, path: str) -> Any:
        content = self.read(path)
        try:
            return YAML(typ="safe", pure=True).load(content) if content is not None else {}
        except (YAMLError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path} of {self.name} is damaged ({reason})") from None

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest; empty when the run was never cleared. Raises UserError when it is none."""
        found = self.json(str(MANIFEST))
        if not isinstance(found, dict) or (found and not found.keys() >= BLOCKS):
            raise UserError(f"{MANIFEST} of {self.name} is no record of this project")
        return found

    def part(self, name: str) -> dict[str, Any]:
        """A part of the manifest; of a run that was refused, what its verdicts have of it."""
        if self.manifest:
            block = self.manifest.get(name, {})
            return dict(block["files"] if name in ("data", "tokens") else block)
        if name == "gates":
            verdicts = {gate: self._verdict(gate) for gate in GATES}
            return {
                gate: {
                    "status": verdict["status"],
                    "checks": {check["id"]: check["value"] for check in verdict["checks"]},
                }
                for gate, verdict in verdicts.items()
                if verdict
            }
        gate, key = IN_VERDICTS.get(name, ("", ""))
        return dict(self._verdict(gate).get(key, {})) if gate else {}

    def _verdict(self, gate: str) -> Any:
        return self.json(verdict_path(gate).as_posix())

    def params(self, stages: Iterable[str]) -> dict[str, Any]:
        """Dotted key -> value with which stages ran."""
        read = (self.lock[stage].get("params", {}).get(PARAMS_FILE.name, {}) for stage in stages)
        return {key: value for tree in read for key, value in flatten(tree)}

    @cached_property
    def training_params(self) -> Sequence[str]:
        """Keys and groups of keys that full_train reads."""
        declared = self.lock.get("full_train", {}).get("params", {})
        return list(declared.get(PARAMS_FILE.name, {}))

    def metrics(self, stage: str) -> dict[str, Any]:
        """Dotted name -> number of metrics/<stage>.json."""
        return dict(flatten(self.json(metrics_path(stage).as_posix())))

    @cached_property
    def committed(self) -> dict[str, str]:
        """Path -> git's digest of every file of the commit; empty without one."""
        return committed_files(self.commit) if self.commit else {}
