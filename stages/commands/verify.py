"""Is everything here what the manifest records? What drifted, and what does that mean?

Reads training_manifest.json (of the work tree, of a git revision, or of a model directory), hashes
again what it names, and compares field by field. Writes nothing. Exit code: 0 the same bits are
expected, 1 they are not, 2 it could not be told.

    holdshort verify [REV | DIRECTORY] [--deep]
"""

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..chat.token_store import TOKENS
from ..config import UserError, load_params, read_yaml
from ..config.errors import reading, visible
from ..config.load import PARAMS_FILE, declared_keys, declared_values
from ..models.record import MODEL, RECORD, ModelRecord, read_record
from ..provenance.base_model import resolve_file
from ..provenance.code import code_sha256
from ..provenance.drift import (
    ABSENT,
    MISSING,
    Drift,
    Meaning,
    compare,
    compare_environment,
    compare_gates,
    compare_params,
    compare_recorded,
    promise,
)
from ..provenance.environment import compute_environment, recorded_facts
from ..provenance.git import lineage
from ..provenance.hashing import files_below, inside, sha256_files
from ..provenance.records import is_sealed, read_json
from ..report.terminal import console
from ..revisions.printing import line, shorten
from ..verdict.clearance import CLEARANCE, MANIFEST, gate_digests, read_verdicts, run_digest
from ..verdict.record import Verdict, verdict_path

LOCK = Path("dvc.lock")
SHOWN = 3
"""Files that are missing and named; the others are counted."""
NEW_FILE = "(new file)"
NO_MANIFEST = "run `dvc repro`, or `git checkout` the commit that has it"


@dataclass(frozen=True)
class Verified:
    """What was compared, and what differs of it."""

    subject: str
    drifts: list[Drift]


def refuse_missing(files: Iterable[str | Path]) -> None:
    """Raises UserError, which says how they come back, when outputs of the run are not here."""
    gone = [str(file) for file in files if not Path(file).exists()]
    if gone:
        more = f" and {len(gone) - SHOWN} more" if gone[SHOWN:] else ""
        raise UserError(
            f"not all outputs of this run are here: {', '.join(gone[:SHOWN])}{more} missing; "
            "`dvc pull` brings them from a remote (what it lacks, after `dvc push` where the run "
            "was made), `dvc checkout` what DVC's cache has, and `dvc repro` computes them again"
        )


def is_trained() -> bool:
    """Does dvc.lock record a model?"""
    stages = read_yaml(LOCK).get("stages") if LOCK.is_file() else None
    return isinstance(stages, dict) and "full_train" in stages


def hashes_here(files: Mapping[str, Path]) -> dict[str, str]:
    """sha256 of each file that is there, under the name that the record has for it."""
    found = sha256_files(file for file in files.values() if file.is_file())
    return {path: found.get(file.as_posix(), MISSING) for path, file in files.items()}


def compare_files(kind: str, recorded: Mapping[str, str]) -> Iterator[Drift]:
    here = hashes_here({name: resolve_file(name) for name in recorded})
    yield from compare(kind, recorded, here, "another run")


def new_data(recorded: Mapping[str, str], params: Mapping[str, Any]) -> Iterator[Drift]:
    """Files below data.path that the manifest does not know."""
    places = (params.get(key) for key in ("data.path", "data.validation_path"))
    for place in filter(None, places):
        for file in files_below(Path(place)):
            name = file.as_posix()
            if name not in recorded and file.suffix != ".dvc":
                yield Drift("data", name, ABSENT, NEW_FILE, "another run")


def find_drifts(manifest: Mapping[str, Any], *, machine: bool = True) -> list[Drift]:
    """Everything that the manifest records and that is another here.

    machine: whether what computes here is compared too; the device of the run must be there.

    Raises UserError when the manifest is no record of this project.
    """
    try:
        return list(_find_drifts(manifest, machine))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{MANIFEST} is no record of this project ({error!r}); bring it back with "
            f"`git checkout -- {MANIFEST}` or `dvc repro`"
        ) from None


def _find_drifts(manifest: Mapping[str, Any], machine: bool) -> Iterator[Drift]:
    refuse_missing([*map(verdict_path, manifest["gates"]), *manifest["tokens"]["files"]])
    if not is_sealed(manifest):
        yield Drift("manifest", "its text", "as written", "changed since", "nothing")
    params = load_params("manifest").run
    here = declared_values("manifest")
    yield from compare_files("data", manifest["data"]["files"])
    yield from new_data(manifest["data"]["files"], here)
    yield from compare_files("tokens", manifest["tokens"]["files"])
    yield from compare_params(manifest["params"], here, declared_keys("full_train"))
    for stage, digest in manifest["code"].items():
        meaning: Meaning = "another run" if stage == "full_train" else "nothing"
        yield from compare("code", {stage: digest}, {stage: code_sha256(stage)}, meaning)
    if machine:
        environment = compute_environment(params.device, params.precision, params.cpu_threads)
        yield from compare_environment(manifest["environment"], environment)
    yield from compare_verdicts(manifest)
    yield from compare_recorded(manifest["recorded"], recorded_facts())
    yield from compare_commit(manifest["git"], manifest["params"])


def compare_verdicts(manifest: Mapping[str, Any]) -> Iterator[Drift]:
    """The verdicts, what the manifest says of them, and the digest that follows from all."""
    recorded = {gate: facts["sha256"] for gate, facts in manifest["gates"].items()}
    yield from compare("verdict", recorded, gate_digests(), "another run")
    verdicts, objections = read_verdicts()
    for verdict in verdicts.values():
        yield from compare_inputs(verdict)
    for objection in objections:
        yield Drift("verdict", objection.gate, "whole", objection.reason, "another run")
    judged = {
        gate: {
            "status": verdict.status,
            "checks": {check.id: check.value for check in verdict.checks},
        }
        for gate, verdict in verdicts.items()
    }
    yield from compare_gates({gate: manifest["gates"][gate] for gate in verdicts}, judged)
    clearance = read_json(CLEARANCE, "run `dvc repro manifest`")
    digest = {"digest": manifest["digest"]}
    yield from compare("manifest", digest, {"digest": run_digest(clearance)}, "another run")


def compare_inputs(verdict: Verdict) -> Iterator[Drift]:
    """What a gate read and the manifest names by one digest: rows, tokenizer, base weights."""

    def inputs(made: bool) -> dict[str, str]:
        below = {name: Path(name).is_relative_to(TOKENS.parent) for name in verdict.inputs}
        return {name: verdict.inputs[name] for name in below if below[name] == made}

    if verdict.gate == "mask_report":
        yield from compare_files("rows", inputs(made=True))
        yield from compare_files("tokenizer", inputs(made=False))
    if verdict.gate == "overfit_gate":
        yield from compare_files("base model", inputs(made=False))


def compare_commit(recorded: Mapping[str, Any], params: Mapping[str, Any]) -> Iterator[Drift]:
    paths = (params["data.path"], params["data.validation_path"])
    pointers = [f"{path}.dvc" for path in paths if path]
    here = lineage(pointers)
    flat = {name: str(recorded[name]) for name in ("commit", "dirty")}
    yield from compare("git", flat, {name: str(here[name]) for name in flat}, "nothing")


def compare_model(directory: Path, record: ModelRecord) -> list[Drift]:
    """The files of a model directory, none missing, none changed, none added."""
    files = {(file := inside(directory, name)).as_posix(): file for name in record.files}
    recorded = dict(zip(files, record.files.values(), strict=True))
    drifts = list(compare("model", recorded, hashes_here(files), "another run"))
    known = {*recorded, (directory / RECORD).as_posix()}
    strangers = (file.as_posix() for file in files_below(directory))
    return drifts + [
        Drift("model", name, ABSENT, NEW_FILE, "another run")
        for name in strangers
        if name not in known
    ]


def verify_model(directory: Path, record: ModelRecord) -> list[Drift]:
    """A model directory by itself: its files, and what would compute with it here."""
    drifts = compare_model(directory, record)
    environment = record.environment
    here = compute_environment("cpu", environment["precision"], environment["cpu_threads"])
    if environment["device"] == "cpu":
        drifts += compare_environment(environment, here)
    return drifts


def manifest_of(revision: str) -> Any:
    """training_manifest.json of a git revision. Raises UserError when it has none."""
    command = ["git", "show", "--end-of-options", f"{revision}:{MANIFEST}"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise UserError(
            f"{revision} is neither a directory with {RECORD} nor a revision at which {MANIFEST} "
            "was committed"
        )
    with reading(f"{MANIFEST} of {revision}", "JSON", "name another revision"):
        return json.loads(done.stdout)


def verify(target: str | None) -> Verified:
    """Compare what is here with the manifest of the work tree, of a revision, or of a model."""
    if target is not None and Path(target).is_dir():
        directory = Path(target)
        return Verified(target, verify_model(directory, read_record(directory)))
    if not PARAMS_FILE.is_file():
        raise UserError(
            f"{PARAMS_FILE} is not here; run this in a project, or name a model directory"
        )
    if target is not None:
        return Verified(f"{MANIFEST} of {target}", find_drifts(manifest_of(target)))
    manifest = read_json(MANIFEST, NO_MANIFEST)
    drifts = find_drifts(manifest)
    if is_trained():
        refuse_missing([MODEL / RECORD])
    if (MODEL / RECORD).is_file():
        drifts += compare_trained(MODEL, read_record(MODEL), manifest)
    return Verified(str(MANIFEST), drifts)


def compare_trained(
    directory: Path, record: ModelRecord, manifest: Mapping[str, Any]
) -> list[Drift]:
    """Are these the files of a model that was trained under this manifest?"""
    then, now = {"manifest": record.manifest}, {"manifest": str(manifest["digest"])}
    return compare_model(directory, record) + list(compare("model", then, now, "another run"))


def told(drift: Drift) -> str:
    """A line for the terminal; what is new or missing is called so."""
    if drift.now == NEW_FILE:
        return visible(f"{drift.kind} {drift.name}: new file")
    if drift.now == MISSING:
        return visible(f"{drift.kind} {drift.name}: missing ({shorten(drift.then)} then)")
    return line(drift)


def run(target: str | None, deep: bool = False) -> int:
    """Exit code: 0 the same bits are expected, 1 they are not.

    deep: compute the numbers of models/final again, which takes an evaluation.
    """
    with console.status("hashing"):
        verified = verify(target)
    if deep:
        from .recompute import find_other_numbers  # torch: not for hashing alone

        with console.status("computing the model's numbers again"):
            found = find_other_numbers(load_params("full_train"), verified.drifts)
        verified.drifts.extend(found)
        if not found:
            console.print("models/final computes the numbers of metrics/full_train.json")
    if not verified.drifts:
        console.print(f"{verified.subject}: everything is as recorded; {promise([])}")
        return 0
    console.print(f"what differs from {verified.subject}:")
    for drift in verified.drifts:
        console.print(f"  {told(drift)}; {drift.meaning}")
    console.print(promise(verified.drifts))
    return int(any(drift.meaning != "nothing" for drift in verified.drifts))
