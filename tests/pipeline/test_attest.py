"""`holdshort attest` writes what was recorded, in forms that others validate, and nothing else."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

from stages.attestation.bill_of_materials import bill_of_materials
from stages.attestation.facts import Facts, gather, read_requirements
from stages.attestation.statements import gates_statement, provenance_statement
from stages.commands.attest import attest
from stages.config import Refusal, UserError
from stages.models.record import ModelRecord, read_record
from stages.provenance.hashing import sha256_file
from stages.provenance.records import sealed
from stages.verdict.judging import Status

from ..hardening.outcome import assert_refused, holdshort, inside
from ..project import Project
from ..test_signing import write_key

MODEL, OUTPUT = Path("models/final"), Path("attestations")
Result = test_result_pb2.TestResult  # whose own name pytest would collect
PREDICATES = {"gates.intoto.json": Result, "provenance.intoto.json": Provenance}
Change = Callable[[Project], object]


@pytest.fixture(scope="module")
def attested(cleared_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = cleared_template.copy(tmp_path_factory.mktemp("attested") / "project")
    with inside(project.path):
        attest(MODEL, OUTPUT)
    return project


@pytest.fixture(scope="module")
def facts(attested: Project) -> Facts:
    with inside(attested.path):
        return gather(MODEL, read_record(MODEL), attested.json("training_manifest.json"))


def read(project: Project, name: str) -> Any:
    return project.json(f"{OUTPUT}/{name}")


def assert_valid_statement(document: Any, predicate: Any) -> None:
    """As in-toto's own messages have it: no field is unknown, and each of its type."""
    message = json_format.ParseDict(document, StatementMessage())
    Statement.copy_from_pb(message).validate()
    found = json_format.ParseDict(document["predicate"], predicate())
    parts = getattr(found, "configuration", None) or found.build_definition.resolved_dependencies
    assert len(parts) >= 4
    for part in parts:
        ResourceDescriptor.copy_from_pb(part).validate()
        assert part.uri or part.digest


def assert_valid_materials(document: Any) -> None:
    """As the published schema of CycloneDX 1.6 has it, and each reference leads somewhere."""
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document))
    assert error is None, error
    model = document["metadata"]["component"]
    there = [part["bom-ref"] for part in (model, *document["components"])]
    assert len(there) == len(set(there))
    (tree,) = document["dependencies"]
    assert {tree["ref"], *tree["dependsOn"]} == set(there)
    assert {data["ref"] for data in model["modelCard"]["modelParameters"]["datasets"]} < set(there)


@pytest.mark.parametrize("name", PREDICATES)
def test_statements_are_those_of_in_toto(attested: Project, name: str) -> None:
    assert_valid_statement(read(attested, name), PREDICATES[name])


def test_the_bill_of_materials_is_one_of_cyclonedx(attested: Project) -> None:
    assert_valid_materials(read(attested, "model.cdx.json"))


def test_the_validators_can_fail(attested: Project) -> None:
    document = read(attested, "model.cdx.json")
    document["metadata"]["component"]["type"] = "model"
    with pytest.raises(AssertionError):
        assert_valid_materials(document)
    statement = read(attested, "provenance.intoto.json")
    statement["predicate"]["runDetails"]["host"] = "x"
    with pytest.raises(json_format.ParseError):
        assert_valid_statement(statement, Provenance)


def on_disk(project: Project, files: dict[str, str]) -> dict[str, str]:
    """What the files that a document names are now."""
    return {name: hashlib.sha256((project.path / name).read_bytes()).hexdigest() for name in files}


def digests(descriptors: list[Any], prefix: str = "") -> dict[str, str]:
    """Of in-toto's descriptors that have a sha256."""
    return {
        prefix + one["name"]: one["digest"]["sha256"]
        for one in descriptors
        if "sha256" in one.get("digest", {})
    }


def test_the_provenance_is_of_the_files_of_the_model(attested: Project) -> None:
    document = read(attested, "provenance.intoto.json")
    named = digests(document["subject"], "models/final/")
    assert named == on_disk(attested, named)
    files = [path for path in (attested.path / MODEL).rglob("*") if path.is_file()]
    assert len(named) == len(files)
    definition = document["predicate"]["buildDefinition"]
    read_files = digests(definition["resolvedDependencies"])
    assert read_files == on_disk(attested, read_files)
    assert {"data/incidents.jsonl", "data/tokenizer/tokenizer.json"} < set(read_files)
    assert {"artifacts/tokens/train.arrow", "requirements.lock", "clearance.json"} < set(read_files)
    assert definition["externalParameters"]["train.learning_rate"] == 0.003
    commit = attested.json("training_manifest.json")["git"]["commit"]
    assert {
        "name": "code",
        "digest": {"gitCommit": commit},
        "annotations": {"dirty": []},
    } in definition["resolvedDependencies"]
    details = document["predicate"]["runDetails"]
    digest = attested.json("training_manifest.json")["digest"]
    assert details["metadata"] == {"invocationId": digest}


def test_every_check_of_every_gate_is_named_once(attested: Project) -> None:
    document = read(attested, "gates.intoto.json")
    result = document["predicate"]
    statuses = {
        f"{gate}/{check['id']}": check["status"]
        for gate in ("hash_data", "mask_report", "overfit_gate", "gradient_probe")
        for check in attested.json(f"gates/{gate}.json")["checks"]
    }
    for name, status in (("passedTests", "pass"), ("warnedTests", "warn"), ("failedTests", "fail")):
        assert result[name] == [test for test, found in statuses.items() if found == status]
    assert len(result["passedTests"]) > 60
    assert result["result"] == ("WARNED" if result["warnedTests"] else "PASSED")
    subjects = digests(document["subject"])
    assert subjects == on_disk(attested, subjects)
    provenance = read(attested, "provenance.intoto.json")["predicate"]["buildDefinition"]
    assert subjects.items() <= digests(provenance["resolvedDependencies"]).items()


def test_the_bill_names_files_data_libraries_and_results(attested: Project) -> None:
    document = read(attested, "model.cdx.json")
    model = document["metadata"]["component"]
    parts = {part["bom-ref"]: part for part in document["components"]}
    assert parts["data/incidents.jsonl"]["hashes"] == [
        {"alg": "SHA-256", "content": sha256_file(attested.path / "data/incidents.jsonl")}
    ]
    installed = attested.json("training_manifest.json")["recorded"]["packages"]
    assert parts["pkg:pypi/torch"]["purl"] == f"pkg:pypi/torch@{installed['torch']}"
    assert "pkg:pypi/bitsandbytes" not in parts  # it is not installed
    pins = re.findall(r"^([A-Za-z][^=]*)==", attested.read("requirements.lock"), re.MULTILINE)
    assert len([name for name in parts if name.startswith("pkg:pypi/")]) >= len(pins) > 100
    metrics = attested.json("metrics/full_train.json")["full_train"]
    measured = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert {"type": "validation_loss", "value": str(metrics["validation_loss"])} in measured
    for reference in model["externalReferences"]:
        digest = reference["hashes"][0]["content"]
        assert digest == sha256_file(attested.path / OUTPUT / reference["url"])


def test_the_same_run_gives_the_same_bytes(attested: Project, cleared: Project) -> None:
    with inside(cleared.path):
        attest(MODEL, OUTPUT)
    for name in (*PREDICATES, "model.cdx.json"):
        assert cleared.read(f"{OUTPUT}/{name}") == attested.read(f"{OUTPUT}/{name}")
        assert str(cleared.path) not in cleared.read(f"{OUTPUT}/{name}")


def test_a_base_model_is_a_part_of_what_was_trained(facts: Facts) -> None:
    name, file = "mine@" + "0" * 64, "model.safetensors"
    base = replace(
        facts,
        manifest={**facts.manifest, "base_model": {"name": name}},
        base_model={f"{name}/{file}": "1" * 64},
    )
    document = bill_of_materials(base, {})
    assert_valid_materials(document)
    (part,) = (one for one in document["components"] if one["bom-ref"] == name)
    assert (part["name"], part["version"]) == ("mine", "0" * 64)
    model = document["metadata"]["component"]
    assert (model["name"], model["version"]) == ("mine", facts.digest)
    assert "modelArchitecture" not in model["modelCard"]["modelParameters"]
    for statement, predicate in (
        (gates_statement(base), Result),
        (provenance_statement(base), Provenance),
    ):
        assert_valid_statement(statement, predicate)
        assert f"{name}/{file}" in json.dumps(statement)


def test_a_warning_is_told(facts: Facts) -> None:
    def with_first(status: Status) -> Any:
        verdict = facts.verdicts["hash_data"]
        checks = [replace(verdict.checks[0], status=status), *verdict.checks[1:]]
        found = gates_statement(
            replace(facts, verdicts={"hash_data": replace(verdict, checks=checks)})
        )
        return found["predicate"]

    first = f"hash_data/{facts.verdicts['hash_data'].checks[0].id}"
    passed, warned = with_first("pass"), with_first("warn")
    assert (passed["result"], first in passed["passedTests"]) == ("PASSED", True)
    assert (warned["result"], warned["warnedTests"]) == ("WARNED", [first])


def rewrite(path: str, change: Callable[[Any], object]) -> Change:
    """Change a record; its seal is made anew where it has one, as a forger would."""

    def edit(project: Project) -> None:
        content = project.json(path)
        change(content)
        if content.pop("record_sha256", None):
            content = sealed(content)
        (project.path / path).unlink()  # DVC may have linked it to its cache
        project.write(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    return edit


def break_seal(project: Project) -> None:
    content = project.json("training_manifest.json")
    content["recorded"]["cpu_model"] = "Z80"
    project.write("training_manifest.json", json.dumps(content))


def append(path: str, text: str) -> Change:
    return lambda project: project.write(path, project.read(path) + text)


def replace_weights(project: Project) -> None:
    path = project.path / MODEL / "model.safetensors"
    spoiled = path.read_bytes()[:-1] + b"\x7f"
    path.unlink()
    path.write_bytes(spoiled)


def train_again_elsewhere(project: Project) -> None:
    """Other weights with a record of their own, under another manifest."""
    replace_weights(project)
    (project.path / MODEL / "provenance.json").unlink()
    ModelRecord.of(
        project.path / MODEL, manifest="ab", clearance={}, environment={}, params={}
    ).write(project.path / MODEL)


def forge_verdict(project: Project) -> None:
    """A check that fails is recorded as one that passed, and the manifest with it."""
    path = "gates/overfit_gate.json"

    def change(verdict: Any) -> None:
        (check,) = (one for one in verdict["checks"] if one["id"] == "overfit_loss")
        check["value"] = 3.0

    rewrite(path, change)(project)
    digest = sha256_file(project.path / path)

    def follow(manifest: Any) -> None:
        manifest["gates"]["overfit_gate"]["sha256"] = digest
        manifest["gates"]["overfit_gate"]["checks"]["overfit_loss"] = 3.0

    rewrite("training_manifest.json", follow)(project)


REFUSED: dict[str, tuple[Change, str]] = {
    "data": (append("data/incidents.jsonl", "\n"), "data data/incidents.jsonl"),
    "weights": (replace_weights, "model models/final/model.safetensors"),
    "another model": (train_again_elsewhere, "model manifest"),
    "manifest": (break_seal, "manifest its text"),
    "digest": (
        rewrite("training_manifest.json", lambda manifest: manifest.update(digest="0" * 64)),
        "manifest digest",
    ),
    "verdict": (
        rewrite("gates/hash_data.json", lambda verdict: verdict.update(not_covered=[])),
        "verdict hash_data",
    ),
    "forged verdict": (forge_verdict, "overfit_gate: check 'overfit_loss' is recorded as pass"),
    "params": (lambda project: project.set_params(train__learning_rate=0.0015), "learning_rate"),
    "requirements": (
        append("requirements.lock", "evil==1.0\n"),
        "requirements.lock is not the one",
    ),
    "metrics": (
        rewrite(
            "metrics/full_train.json", lambda metrics: metrics["full_train"].update(exact_match=1.0)
        ),
        "metrics/full_train.json is not the one",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_attested_of_what_is_not_as_recorded(cleared: Project, name: str) -> None:
    change, word = REFUSED[name]
    change(cleared)
    with inside(cleared.path), pytest.raises(Refusal, match=re.escape(word)):
        attest(MODEL, OUTPUT)
    assert not cleared.exists(str(OUTPUT))


def test_a_refusal_says_what_is_not_as_recorded_and_what_brings_it_back(
    cleared: Project,
) -> None:
    cleared.set_params(train__learning_rate=0.0015)
    with inside(cleared.path):
        done = holdshort("attest")
    assert done.code == 1, str(done)
    first, param, last = done.errors.splitlines()
    assert first.endswith("so nothing is attested: params")
    assert "train.learning_rate" in param
    assert "`git checkout -- params.yaml`" in last
    assert "`dvc repro`" in last


def test_a_machine_without_the_device_may_attest(
    cleared: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*facts: object) -> NoReturn:
        raise UserError("torch sees no GPU here")

    monkeypatch.setattr("stages.commands.verify.compute_environment", refuse)
    with inside(cleared.path):
        attest(MODEL, OUTPUT)


def test_a_model_alone_is_not_attested(cleared: Project, tmp_path: Path) -> None:
    with inside(tmp_path):
        assert_refused(holdshort("attest", cleared.path / MODEL), "attest a model in its project")
    with inside(cleared.path):
        assert_refused(holdshort("attest", "data"), "data is no model that full_train wrote")


def test_a_copy_of_the_model_is_attested_in_its_project(attested: Project, tmp_path: Path) -> None:
    (attested.path / MODEL).rename(tmp_path / "copy")
    try:
        with inside(attested.path):
            done = holdshort("attest", tmp_path / "copy", "--output", tmp_path / "out")
    finally:
        (tmp_path / "copy").rename(attested.path / MODEL)
    assert done.code == 0, str(done)
    for name in (*PREDICATES, "model.cdx.json"):
        assert (tmp_path / "out" / name).read_text() == attested.read(f"{OUTPUT}/{name}")


def test_the_documents_can_be_signed(attested: Project, tmp_path: Path) -> None:
    key = write_key(tmp_path / "mine.key", ec.generate_private_key(ec.SECP256R1()))
    output = tmp_path / "shown"
    with inside(attested.path):
        done = holdshort("attest", "--output", output, "--key", key)
        assert done.code == 0, str(done)
        public = key.with_suffix(".pub")
        assert holdshort("verify", output, "--key", public).code == 0
        assert_refused(
            holdshort("verify", output),
            "by its signature, and holds no model: give --key PUBLIC_KEY",
        )
        (output / "gates.intoto.json").write_text("{}")
        done = holdshort("verify", output, "--key", public)
        assert (done.code, "gates.intoto.json" in done.output) == (1, True), str(done)
        for directory in (tmp_path, MODEL, Path("data")):
            before = sorted(directory.iterdir())
            assert_refused(holdshort("attest", "--output", directory, "--key", key), "holds")
            assert_refused(holdshort("attest", "--output", directory), "holds")
            assert sorted(directory.iterdir()) == before
        done = holdshort("attest", "--output", tmp_path / "none", "--key", public)
        assert_refused(done, "mine.pub holds a public key")
    assert not (tmp_path / "none").exists()


def test_a_requirement_that_names_no_package_is_named(tmp_path: Path) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text("# a comment\n--index-url https://x\ntorch==2.13.0 # the CPU build\n\n")
    assert [str(one) for one in read_requirements(path)] == ["torch==2.13.0"]
    path.write_text("torch==2.13.0\n?!\n")
    with pytest.raises(UserError, match=r"requirements.lock:2: names no package"):
        read_requirements(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"requirements.lock cannot be read as text"):
        read_requirements(path)


@pytest.mark.slow
def test_nothing_that_dvc_or_git_keeps_changes(cleared: Project, tmp_path: Path) -> None:
    cleared.commit("Keep the results")
    key = write_key(cleared.path / "signing.key", ec.generate_private_key(ec.SECP256R1()))
    (cleared.path / "signing.pub").rename(tmp_path / "signing.pub")
    verifying = ("verify", "models/final", "--key", str(tmp_path / "signing.pub"))
    for command in (("attest",), ("sign", "--key", str(key)), verifying):
        done = cleared.holdshort(*command)
        assert done.returncode == 0, done.stdout
    assert "up to date" in cleared.run("dvc", "status").stdout
    assert cleared.git("status", "--porcelain").split() == ["??", "attestations/", "??", "models/"]
    cleared.run("dvc", "config", "cache.type", "symlink")
    cleared.run("dvc", "checkout", "--relink", "models/final")
    assert (cleared.path / MODEL / "model.safetensors").is_symlink()
    done = cleared.holdshort(*verifying)
    assert done.returncode == 0, done.stdout
