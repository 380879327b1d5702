"""Training starts only on verdicts that pass, chained, made from what is here."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from stages.config import Refusal
from stages.provenance.hashing import sha256_file
from stages.provenance.records import write_json
from stages.verdict.clearance import (
    AFTER_REFUSAL,
    CLEARANCE,
    MANIFEST,
    Objection,
    authorise,
    changed_values,
    clearance_of,
    find_objections,
    read_verdicts,
    run_digest,
)
from stages.verdict.judging import Measured, judge
from stages.verdict.record import (
    bind,
    blocked_verdict,
    read_verdict,
    verdict_path,
    write_verdict,
)
from stages.verdict.rules.overfit_gate import RULES as OVERFIT_RULES

from .conftest import ClearedProject


def objections() -> list[str]:
    verdicts, found = read_verdicts()
    return [str(objection) for objection in [*found, *find_objections(verdicts)]]


def refusal(cleared: ClearedProject) -> list[str]:
    """The lines between the first and the last of the refusal."""
    with pytest.raises(Refusal) as caught:
        authorise(cleared.environment)
    lines = str(caught.value).splitlines()
    assert lines[:2] == ["full training is refused", ""]
    assert lines[-2:] == ["", AFTER_REFUSAL]
    return lines[2:-2]


def test_an_objection_names_gate_reason_and_remedy() -> None:
    assert str(Objection("mask_report", "failed", "mend it")) == (
        "mask_report: failed\n    -> mend it"
    )
    assert str(Objection("mask_report", "blocked", "")) == "mask_report: blocked"


def test_a_project_whose_gates_passed_is_cleared(cleared: ClearedProject) -> None:
    assert objections() == []
    clearance = json.loads(CLEARANCE.read_text())
    assert authorise(cleared.environment) == run_digest(clearance)


def test_the_clearance_holds_what_decides_the_bits(cleared: ClearedProject) -> None:
    clearance = json.loads(CLEARANCE.read_text())
    assert set(clearance) == {
        *("schema", "gates_passed", "tokens_sha256", "tokenizer_sha256"),
        *("base_weights_sha256", "environment_sha256", "seed"),
    }
    assert clearance["seed"] == 42


@pytest.mark.parametrize("gate", ["hash_data", "mask_report", "overfit_gate", "gradient_probe"])
def test_a_missing_verdict_is_an_objection(cleared: ClearedProject, gate: str) -> None:
    verdict_path(gate).unlink()
    assert objections() == [f"{gate}: gates/{gate}.json is missing; run `dvc repro {gate}`"]
    assert refusal(cleared) == objections()


def test_a_blocked_gate_is_an_objection(cleared: ClearedProject) -> None:
    write_verdict(blocked_verdict(bind("overfit_gate", cleared.environment), "mask_report"))
    assert objections() == [
        "overfit_gate: blocked: 'mask_report' did not pass: see reports/mask_report/index.html"
    ]


def test_a_failing_check_is_an_objection_with_its_remedy(cleared: ClearedProject) -> None:
    verdict = read_verdict("overfit_gate")
    rule = next(rule for rule in OVERFIT_RULES if rule.id == "frozen_changed")
    failing = judge(rule, Measured(2), verdict.params, 42)
    checks = [failing if check.id == rule.id else check for check in verdict.checks]
    cleared.alter("overfit_gate", checks=checks, status="fail", passed=False)
    assert objections() == [
        "overfit_gate: frozen_changed: frozen weights are bit-identical afterwards: "
        f"2 parameters (must be 0)\n    -> {rule.remedy}"
    ]


def test_a_changed_limit_is_named_with_both_values(cleared: ClearedProject) -> None:
    cleared.set_params(data__path="data/rows", gates__mask__print_rows=99)
    assert objections() == [
        "mask_report: judged with gates.mask.print_rows = 8, but params.yaml has 99\n"
        "    -> dvc repro"
    ]


def test_a_changed_learning_rate_concerns_the_probe_and_the_manifest_alone(
    cleared: ClearedProject,
) -> None:
    cleared.set_params(data__path="data/rows", train__learning_rate=0.02)
    assert objections() == [
        "gradient_probe: judged with train.learning_rate = 0.01, but params.yaml has 0.02\n"
        "    -> dvc repro"
    ]


def test_changed_code_is_an_objection(cleared: ClearedProject) -> None:
    cleared.write("stages/probes/__init__.py", "VALUE = 2\n")
    assert objections() == [
        f"{gate}: made by other code than is here\n    -> dvc repro"
        for gate in ("overfit_gate", "gradient_probe")
    ]


def test_a_comment_is_no_objection(cleared: ClearedProject) -> None:
    cleared.write("stages/probes/__init__.py", '"""Words."""\n\nVALUE = 1  # more words\n')
    assert objections() == []


def test_changed_training_code_is_refused_by_the_manifest(cleared: ClearedProject) -> None:
    cleared.write("stages/full_train.py", "VALUE = 2\n")
    assert objections() == []
    assert refusal(cleared) == [
        "manifest: training_manifest.json was made for other data, params or training code",
        "    -> dvc repro",
    ]


@pytest.mark.parametrize("gate", ["hash_data", "mask_report", "overfit_gate", "gradient_probe"])
def test_a_verdict_from_another_environment_is_an_objection(
    cleared: ClearedProject, gate: str
) -> None:
    made = read_verdict(gate).environment
    here = made["packages"]["numpy"]
    cleared.alter(gate, environment={**made, "packages": {**made["packages"], "numpy": "1.0"}})
    found = [line for line in objections() if "1.0; here it is" in line]
    assert found == [
        f"{gate}: made where packages.numpy is 1.0; here it is {here}\n"
        f"    -> dvc repro -f -s {gate}"
    ]


def test_other_threads_than_the_gates_had_are_refused(cleared: ClearedProject) -> None:
    cleared.environment = {**cleared.environment, "cpu_threads": 8}
    assert refusal(cleared) == [
        "overfit_gate: made where cpu_threads is 1; here it is 8",
        "    -> dvc repro -f -s overfit_gate",
        "gradient_probe: made where cpu_threads is 1; here it is 8",
        "    -> dvc repro -f -s gradient_probe",
    ]


@pytest.mark.parametrize("gate", ["overfit_gate", "gradient_probe"])
def test_of_two_gates_the_one_that_computed_elsewhere_is_an_objection(
    cleared: ClearedProject, gate: str
) -> None:
    made = read_verdict(gate).environment
    cleared.alter(gate, environment={**made, "gpu": "H"})
    assert objections() == [
        f"{gate}: made where gpu is H; here it is None\n    -> dvc repro -f -s {gate}"
    ]


def test_where_no_gpu_tells_which_of_two_holds_both_gates_are_named(
    cleared: ClearedProject,
) -> None:
    """The records of two GPUs, neither of which has run them."""
    cleared.set_params(data__path="data/rows", run__device="cuda")
    cleared.judge()
    for gate, gpu in (("overfit_gate", "NVIDIA A100"), ("gradient_probe", "NVIDIA H100")):
        made = read_verdict(gate).environment
        cleared.alter(gate, environment={**made, "device": "cuda", "gpu": gpu})
    assert objections() == [
        "gradient_probe: gpu is NVIDIA H100, but for 'overfit_gate' it was NVIDIA A100\n"
        "    -> dvc repro -f -s overfit_gate gradient_probe (on the machine that shall train)"
    ]


def test_on_another_gpu_each_gate_is_named_with_both(cleared: ClearedProject) -> None:
    """The records of two GPUs, neither of which has run them."""
    facts = {"device": "cuda", "gpu": "NVIDIA A100", "torch_build": "2.13.0+cu130", "cuda": "13.0"}
    for gate in ("overfit_gate", "gradient_probe"):
        cleared.alter(gate, environment={**cleared.environment, **facts})
    cleared.environment = {**cleared.environment, **facts, "gpu": "NVIDIA H100"}
    assert refusal(cleared) == [
        "overfit_gate: made where gpu is NVIDIA A100; here it is NVIDIA H100",
        "    -> dvc repro -f -s overfit_gate",
        "gradient_probe: made where gpu is NVIDIA A100; here it is NVIDIA H100",
        "    -> dvc repro -f -s gradient_probe",
    ]


def test_digests_that_do_not_belong_to_what_they_digest_are_found(
    cleared: ClearedProject,
) -> None:
    cleared.alter("mask_report", params_sha256="0" * 64, environment_sha256="0" * 64)
    assert objections() == [
        "mask_report: its params_sha256 does not belong to its params\n"
        "    -> dvc repro -f -s mask_report",
        "mask_report: its environment_sha256 does not belong to its environment\n"
        "    -> dvc repro -f -s mask_report",
    ]


def test_changed_data_is_an_objection(cleared: ClearedProject) -> None:
    cleared.write("data/rows/a.jsonl", "other\n")
    assert objections() == ["hash_data: judged on another data/rows/a.jsonl\n    -> dvc repro"]


def test_missing_data_is_an_objection(cleared: ClearedProject) -> None:
    Path("data/rows/b.jsonl").unlink()
    assert objections() == [
        "hash_data: data/rows/b.jsonl is missing\n    -> dvc checkout, or dvc repro"
    ]


def test_a_shard_that_was_added_to_the_data_is_an_objection(cleared: ClearedProject) -> None:
    cleared.write("data/rows/c.jsonl", "a new shard\n")
    assert objections() == [
        "hash_data: data/rows/c.jsonl was not there when the data was hashed\n    -> dvc repro"
    ]


def test_changed_tokens_are_an_objection_of_all_that_wrote_or_read_them(
    cleared: ClearedProject,
) -> None:
    cleared.write("artifacts/tokens/train.arrow", "other\n")
    path = "artifacts/tokens/train.arrow"
    assert objections() == [
        f"mask_report: {path} is not what it wrote\n    -> dvc repro -f -s mask_report",
        f"overfit_gate: judged on another {path}\n    -> dvc repro",
        f"gradient_probe: judged on another {path}\n    -> dvc repro",
    ]


def test_a_gate_that_judged_something_else_than_was_written_breaks_the_chain(
    cleared: ClearedProject,
) -> None:
    inputs = read_verdict("overfit_gate").inputs
    del inputs["artifacts/tokens/meta.json"]
    cleared.alter("overfit_gate", inputs=inputs)
    assert objections() == [
        "overfit_gate: judged another artifacts/tokens/meta.json than 'mask_report' wrote\n"
        "    -> dvc repro -f -s overfit_gate"
    ]


@pytest.mark.parametrize("gate", ["hash_data", "mask_report"])
def test_a_verdict_that_names_no_output_is_no_link_of_the_chain(
    cleared: ClearedProject, gate: str
) -> None:
    cleared.alter(gate, outputs={})
    assert objections() == [
        f"{gate}: its verdict names nothing that it wrote\n    -> dvc repro -f -s {gate}"
    ]


def test_a_verdict_on_no_data_is_an_objection(cleared: ClearedProject) -> None:
    cleared.alter("hash_data", inputs={})
    assert objections() == [
        f"hash_data: data/rows/{name}.jsonl was not there when the data was hashed\n"
        "    -> dvc repro"
        for name in ("a", "b")
    ]


@pytest.mark.parametrize(
    ("changes", "recorded"),
    [
        ({"status": "fail"}, "fail"),
        ({"passed": False}, "pass"),
        ({"status": "fail", "passed": False}, "fail"),
        ({"status": "warn"}, "warn"),
    ],
)
def test_a_verdict_that_says_it_failed_is_believed(
    cleared: ClearedProject, changes: dict[str, Any], recorded: str
) -> None:
    cleared.alter("gradient_probe", **changes)
    assert objections() == [
        f"gradient_probe: recorded as {recorded}, which its checks are not\n"
        "    -> dvc repro -f -s gradient_probe"
    ]


def test_a_verdict_of_another_form_is_an_objection(cleared: ClearedProject) -> None:
    cleared.alter("gradient_probe", schema=2)
    assert objections() == [
        "gradient_probe: its file holds a verdict of gradient_probe in form 2\n"
        "    -> dvc repro -f -s gradient_probe"
    ]


def test_a_verdict_under_the_name_of_another_gate_is_an_objection(
    cleared: ClearedProject,
) -> None:
    verdict_path("mask_report").write_bytes(verdict_path("hash_data").read_bytes())
    assert (
        "mask_report: its file holds a verdict of hash_data in form 1\n"
        "    -> dvc repro -f -s mask_report"
    ) in objections()


def test_a_verdict_of_a_gate_that_does_not_exist_is_an_objection(cleared: ClearedProject) -> None:
    record = json.loads(verdict_path("mask_report").read_text())
    verdict_path("mask_report").write_text(json.dumps({**record, "gate": "other_gate"}))
    assert [line for line in objections() if "other_gate" in line] != []


def test_an_environment_that_is_none_is_an_objection(cleared: ClearedProject) -> None:
    made = read_verdict("overfit_gate").environment
    cleared.alter("overfit_gate", environment={**made, "packages": "all"})
    assert [line for line in objections() if line.startswith("overfit_gate: ")] != []


@pytest.mark.parametrize("path", [MANIFEST, CLEARANCE])
def test_without_manifest_or_clearance_nothing_is_trained(
    cleared: ClearedProject, path: Path
) -> None:
    path.unlink()
    assert refusal(cleared) == [
        f"manifest: {path} is missing; the run was never cleared",
        "    -> dvc repro manifest",
    ]


@pytest.mark.parametrize(
    ("path", "content"),
    [(MANIFEST, []), (MANIFEST, {"seeds": []}), (CLEARANCE, None), (CLEARANCE, {})],
)
def test_a_manifest_of_something_else_is_refused(
    cleared: ClearedProject, path: Path, content: Any
) -> None:
    write_json(path, content)
    assert refusal(cleared) == [
        "manifest: training_manifest.json or clearance.json is no record of this project",
        "    -> dvc repro -f -s manifest",
    ]


@pytest.mark.parametrize(
    ("key", "value"), [("seed", 43), ("tokens_sha256", "0" * 64), ("gates_passed", False)]
)
def test_a_forged_clearance_is_refused(cleared: ClearedProject, key: str, value: Any) -> None:
    clearance = json.loads(CLEARANCE.read_text())
    write_json(CLEARANCE, {**clearance, key: value})
    assert refusal(cleared) == [
        "manifest: clearance.json is not what the verdicts give",
        "    -> dvc repro -f -s manifest",
        "manifest: training_manifest.json was made for other data, params or training code",
        "    -> dvc repro",
    ]


def test_a_verdict_that_was_judged_again_after_the_manifest_is_refused(
    cleared: ClearedProject,
) -> None:
    cleared.alter("mask_report", not_covered=["more"])
    assert refusal(cleared) == [
        "manifest: training_manifest.json records another verdict of 'mask_report'",
        "    -> dvc repro -f -s manifest",
    ]


def test_the_same_objection_is_made_once(cleared: ClearedProject) -> None:
    made = cleared.environment
    cleared.environment = {**made, "packages": {**made["packages"], "torch": "9.9"}}
    lines = refusal(cleared)
    assert len(lines) == len(set(lines)) == 4


def test_a_looser_limit_does_not_change_the_run(cleared: ClearedProject) -> None:
    clearance = json.loads(CLEARANCE.read_text())
    before = run_digest(clearance)
    cleared.set_params(data__path="data/rows", gates__overfit__max_loss=0.5)
    assert run_digest(clearance) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [("train__learning_rate", 0.02), ("run__seed", 43), ("model__d_model", 32)],
)
def test_what_decides_the_bits_changes_the_run(
    cleared: ClearedProject, key: str, value: Any
) -> None:
    clearance = json.loads(CLEARANCE.read_text())
    before = run_digest(clearance)
    cleared.set_params(data__path="data/rows", **{key: value})
    assert run_digest(clearance) != before


def test_the_tokens_digest_follows_the_tokens(cleared: ClearedProject) -> None:
    verdicts, _ = read_verdicts()
    one = clearance_of(verdicts, "f" * 64, 42)
    outputs = {"artifacts/tokens/train.arrow": sha256_file(Path("dvc.yaml"))}
    verdicts["mask_report"] = dataclasses.replace(verdicts["mask_report"], outputs=outputs)
    other = clearance_of(verdicts, "f" * 64, 42)
    assert [key for key in one if one[key] != other[key]] == ["tokens_sha256"]


def test_changed_values_are_named_with_both_values() -> None:
    assert changed_values({"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3, "d": 4}) == [
        ("b", 2, 3),
        ("d", None, 4),
    ]
