"""May this run be trained? Every verdict judged again, and held against what is here now.

`manifest` asks before it writes clearance.json, and `full_train` asks again before it computes
anything: DVC orders stages, but several of its commands walk past one that failed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Refusal, UserError, declared_values
from ..provenance.base_model import is_reference, resolve_file
from ..provenance.code import code_sha256
from ..provenance.environment import (
    AUDITING_PACKAGES,
    COMPUTING_PACKAGES,
    RENDERING_PACKAGES,
    Environment,
    compute_environment,
    differences,
    software_environment,
)
from ..provenance.hashing import files_below, sha256_file, sha256_files
from ..provenance.records import read_json
from .judging import Rule, overall_status, rejudge
from .record import GATES, Verdict, digest_of, read_verdict, verdict_path
from .record import SCHEMA as VERDICT_SCHEMA
from .rules import gradient_probe, hash_data, mask_report, overfit_gate

MANIFEST = Path("training_manifest.json")
CLEARANCE = Path("clearance.json")
COMPUTING_GATES = ("overfit_gate", "gradient_probe")
RULES: dict[str, Sequence[Rule]] = {
    "hash_data": hash_data.RULES,
    "mask_report": mask_report.RULES,
    "overfit_gate": overfit_gate.RULES,
    "gradient_probe": gradient_probe.RULES,
}
SOFTWARE = {"hash_data": AUDITING_PACKAGES, "mask_report": RENDERING_PACKAGES}
SCHEMA = 1
NEVER_CLEARED = "the run was never cleared"
AFTER_REFUSAL = (
    "Nothing was trained. DVC has removed the earlier model: `dvc checkout models/final` brings it "
    "back."
)


@dataclass(frozen=True)
class Objection:
    """One reason against training, and the command or remedy that answers it."""

    gate: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.gate}: {self.reason}" + (f"\n    -> {self.remedy}" if self.remedy else "")


def read_verdicts() -> tuple[dict[str, Verdict], list[Objection]]:
    """All verdicts that can be read, and an objection for each that cannot."""
    verdicts, objections = {}, []
    for gate in GATES:
        again = f"dvc repro -f -s {gate}"
        try:
            verdict = read_verdict(gate)
        except UserError as error:
            objections.append(Objection(gate, str(error), ""))
            continue
        if (verdict.gate, verdict.schema) == (gate, VERDICT_SCHEMA):
            verdicts[gate] = verdict
        else:
            found = f"{verdict.gate} in form {verdict.schema}"
            objections.append(Objection(gate, f"its file holds a verdict of {found}", again))
    return verdicts, objections


def find_objections(verdicts: Mapping[str, Verdict]) -> list[Objection]:
    """What stands against the verdicts: results, params, code, environment, inputs, their chain."""
    objections = [objection for verdict in verdicts.values() for objection in _object_to(verdict)]
    if len(verdicts) == len(GATES):
        objections += _object_to_chain(verdicts)
    return list(dict.fromkeys(objections))


def _object_to(verdict: Verdict) -> Iterable[Objection]:
    gate = verdict.gate
    again = f"dvc repro -f -s {gate}"
    if verdict.status == "blocked":
        yield Objection(gate, f"blocked: {'; '.join(verdict.causes)}", "")
        return
    values = declared_values(gate)
    faults = rejudge(verdict.checks, RULES[gate], values)
    for reason, remedy in faults:
        yield Objection(gate, reason, remedy)
    if not faults and (verdict.status, verdict.passed) != (
        overall_status(verdict.checks, RULES[gate]),
        True,
    ):
        yield Objection(gate, f"recorded as {verdict.status}, which its checks are not", again)
    for key, made, here in changed_values(verdict.params, values):
        yield Objection(
            gate, f"judged with {key} = {made}, but params.yaml has {here}", "dvc repro"
        )
    if verdict.params_sha256 != digest_of(verdict.params):
        yield Objection(gate, "its params_sha256 does not belong to its params", again)
    if verdict.code_sha256 != code_sha256(gate):
        yield Objection(gate, "made by other code than is here", "dvc repro")
    if verdict.environment_sha256 != digest_of(verdict.environment):
        yield Objection(gate, "its environment_sha256 does not belong to its environment", again)
    yield from _object_to_environment(verdict)
    yield from _object_to_files(gate, verdict.inputs, "judged on another {}", "dvc repro")
    yield from _object_to_files(gate, verdict.outputs, "{} is not what it wrote", again)
    if gate == "hash_data":
        for path in _unhashed_data(verdict, values):
            yield Objection(gate, f"{path} was not there when the data was hashed", "dvc repro")


def _unhashed_data(verdict: Verdict, values: Mapping[str, Any]) -> list[str]:
    """Data files that are there now and that the verdict does not know."""
    locations = (values[key] for key in ("data.path", "data.validation_path"))
    below = (file for place in locations if place for file in files_below(Path(place)))
    found = {file.as_posix() for file in below if file.suffix != ".dvc"}
    return sorted(found - set(verdict.inputs))


def _object_to_environment(verdict: Verdict) -> Iterable[Objection]:
    """Packages and Python, which can be known without torch; full_train compares the rest."""
    gate = verdict.gate
    if gate in SOFTWARE:
        here = software_environment(SOFTWARE[gate])
    else:
        here = {**verdict.environment, **software_environment(COMPUTING_PACKAGES)}
    yield from environment_objections(gate, verdict.environment, here)


def environment_objections(gate: str, made: Environment, here: Environment) -> Iterable[Objection]:
    for fact, then, now in differences(made, here):
        reason = f"made where {fact} is {then}; here it is {now}"
        yield Objection(gate, reason, f"dvc repro -f -s {gate}")


def _object_to_files(
    gate: str, recorded: Mapping[str, str], words: str, remedy: str
) -> Iterable[Objection]:
    files = {path: resolve_file(path) for path in recorded}
    found = sha256_files(file for file in files.values() if file.is_file())
    for path, digest in recorded.items():
        here = found.get(files[path].as_posix())
        if here is None:
            yield Objection(gate, f"{path} is missing", "dvc checkout, or dvc repro")
        elif here != digest:
            yield Objection(gate, words.format(path), remedy)


def _object_to_chain(verdicts: Mapping[str, Verdict]) -> Iterable[Objection]:
    """Each gate must have judged what the gate before it wrote."""
    links = [("hash_data", "mask_report"), *(("mask_report", gate) for gate in COMPUTING_GATES)]
    for writer in ("hash_data", "mask_report"):
        if not verdicts[writer].outputs and verdicts[writer].status != "blocked":
            again = f"dvc repro -f -s {writer}"
            yield Objection(writer, "its verdict names nothing that it wrote", again)
    for writer, reader in links:
        written, read = verdicts[writer].outputs, verdicts[reader].inputs
        broken = sorted(path for path in written if read.get(path) != written[path])
        if broken and verdicts[reader].status != "blocked":
            reason = f"judged another {broken[0]} than '{writer}' wrote"
            yield Objection(reader, reason, f"dvc repro -f -s {reader}")
    if differences(*(verdicts[gate].environment for gate in COMPUTING_GATES)):
        yield from _object_to_machines(verdicts)


def _object_to_machines(verdicts: Mapping[str, Verdict]) -> Iterable[Objection]:
    """Gates that computed in two environments: which of them did not compute in the one here?

    Where that has no GPU and the gates need one, it is not known; then both are named.
    """
    made = {gate: verdicts[gate].environment for gate in COMPUTING_GATES}
    values = declared_values(COMPUTING_GATES[0])
    facts = (values[f"run.{name}"] for name in ("device", "precision", "cpu_threads"))
    try:
        here = compute_environment(*facts)
    except UserError:
        first, second = COMPUTING_GATES
        both = f"dvc repro -f -s {first} {second} (on the machine that shall train)"
        for fact, one, other in differences(made[first], made[second]):
            yield Objection(second, f"{fact} is {other}, but for '{first}' it was {one}", both)
        return
    for gate, environment in made.items():
        yield from environment_objections(gate, environment, here)


def changed_values(made: Mapping[str, Any], here: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, value then, value now) of every value that differs."""
    return [
        (key, made.get(key), here.get(key))
        for key in sorted({*made, *here})
        if made.get(key) != here.get(key)
    ]


def clearance_of(
    verdicts: Mapping[str, Verdict], tokenizer_sha256: str, seed: int
) -> dict[str, Any]:
    """The few facts that decide the bits of the training, all gates having passed."""
    return {
        "schema": SCHEMA,
        "gates_passed": True,
        "tokens_sha256": digest_of(verdicts["mask_report"].outputs),
        "tokenizer_sha256": tokenizer_sha256,
        "base_weights_sha256": base_weights_sha256(verdicts),
        "environment_sha256": verdicts["gradient_probe"].environment_sha256,
        "seed": seed,
    }


def base_weights_sha256(verdicts: Mapping[str, Verdict]) -> str | None:
    """Digest of the files of the base model that the gates have probed; None without one."""
    read = verdicts["gradient_probe"].inputs
    files = {path: digest for path, digest in read.items() if is_reference(path)}
    return digest_of(files) if files else None


def run_digest(clearance: Mapping[str, Any]) -> str:
    """Digest of what decides the bits of the model: clearance, params and code of the training.

    Verdicts, limits and the git block are left out: a looser limit or a comment changes nothing.
    """
    return digest_of([clearance, declared_values("full_train"), code_sha256("full_train")])


def gate_digests() -> dict[str, str]:
    """sha256 of every verdict's file."""
    return {gate: sha256_file(verdict_path(gate)) for gate in GATES}


def authorise(here: Environment) -> str:
    """Verify again, at the last moment, that this very run was cleared; return its digest.

    here: the binding environment of this process. Raises Refusal, in one screen that names each
    objection and what to run.
    """
    verdicts, objections = read_verdicts()
    objections += find_objections(verdicts)
    for gate in COMPUTING_GATES:
        if gate in verdicts:
            objections += environment_objections(gate, verdicts[gate].environment, here)
    if not objections:
        objections += _object_to_manifest(verdicts)
    if objections:
        unique = dict.fromkeys(map(str, objections))
        raise Refusal("\n".join(["full training is refused", "", *unique, "", AFTER_REFUSAL]))
    clearance = read_json(CLEARANCE, NEVER_CLEARED)
    return run_digest(clearance)


def _object_to_manifest(verdicts: Mapping[str, Verdict]) -> list[Objection]:
    """The manifest and the clearance must be those that these verdicts give."""
    try:
        manifest, clearance = (read_json(path, NEVER_CLEARED) for path in (MANIFEST, CLEARANCE))
        tokenizer, seed = clearance["tokenizer_sha256"], manifest["seeds"]["run"]
        recorded = {gate: facts["sha256"] for gate, facts in manifest["gates"].items()}
    except UserError as error:
        return [Objection("manifest", str(error), "dvc repro manifest")]
    except (KeyError, TypeError, AttributeError):
        reason = f"{MANIFEST} or {CLEARANCE} is no record of this project"
        return [Objection("manifest", reason, "dvc repro -f -s manifest")]
    again = "dvc repro -f -s manifest"
    objections = []
    if clearance != clearance_of(verdicts, tokenizer, seed):
        objections.append(
            Objection("manifest", f"{CLEARANCE} is not what the verdicts give", again)
        )
    if manifest.get("digest") != run_digest(clearance):
        reason = f"{MANIFEST} was made for other data, params or training code"
        objections.append(Objection("manifest", reason, "dvc repro"))
    for gate, digest in gate_digests().items():
        if recorded.get(gate) != digest:
            reason = f"{MANIFEST} records another verdict of '{gate}'"
            objections.append(Objection("manifest", reason, again))
    return objections
