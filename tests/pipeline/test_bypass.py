"""Commands with which DVC walks past a stage that failed, and forgeries: none writes a model."""

import hashlib
import json
from collections.abc import Callable

import pytest

from ..project import Project

REFUSED = "full training is refused"


def assert_no_model(project: Project) -> None:
    assert not project.exists("models/final")
    assert project.computed_steps() == []


@pytest.mark.parametrize(
    "command",
    [
        ["dvc", "repro", "-s", "full_train"],
        ["dvc", "repro", "--downstream", "full_train"],
        ["dvc", "repro", "--ignore-errors"],
        ["dvc", "repro", "-f", "full_train"],
        ["dvc", "repro", "-f", "-s", "full_train"],
        ["python", "-m", "stages.full_train"],
    ],
    ids=" ".join,
)
def test_no_command_trains_after_a_refusal(refused: Project, command: list[str]) -> None:
    refused.run(*command)
    assert_no_model(refused)


def test_training_says_why_it_refuses_and_what_to_run(refused: Project) -> None:
    done = refused.stage("full_train")
    assert done.returncode == 1
    assert REFUSED in done.stdout
    assert "mask_report: collated_stop_masked" in done.stdout
    assert "Traceback" not in done.stdout
    assert len(done.stdout.splitlines()) < 40


def test_a_failing_verdict_that_is_committed_by_force_stays_refused(refused: Project) -> None:
    assert refused.run("dvc", "commit", "-f", "mask_report").returncode == 0
    refused.repro(code=255)
    assert_no_model(refused)


def edit_verdict(project: Project, gate: str, edit: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    path = f"gates/{gate}.json"
    (project.path / path).chmod(0o644)
    verdict = project.json(path)
    edit(verdict)
    (project.path / path).unlink()
    project.write(path, json.dumps(verdict, indent=2))


def pass_everything(verdict: dict) -> None:  # type: ignore[type-arg]
    verdict["status"], verdict["passed"] = "pass", True
    for check in verdict["checks"]:
        check["status"] = "pass"


def drop_failures(verdict: dict) -> None:  # type: ignore[type-arg]
    pass_everything(verdict)
    verdict["checks"] = [check for check in verdict["checks"] if not check["remedy"]]


def forge_values(verdict: dict) -> None:  # type: ignore[type-arg]
    pass_everything(verdict)
    for check in verdict["checks"]:
        check["value"] = 0 if check["remedy"] else check["value"]


@pytest.mark.parametrize("forgery", [pass_everything, drop_failures, forge_values])
def test_a_verdict_edited_by_hand_does_not_clear(
    refused: Project,
    forgery: Callable[[dict], None],  # type: ignore[type-arg]
) -> None:
    edit_verdict(refused, "mask_report", forgery)
    refused.run("dvc", "commit", "-f", "mask_report")
    refused.repro("-s", "manifest", code=255)
    refused.repro("-s", "full_train", code=255)
    assert_no_model(refused)


def test_freeze_force_and_unfreeze_do_not_launder_a_verdict(cleared: Project) -> None:
    cleared.run("rm", "-r", "models", "logs")
    for gate in ("overfit_gate", "gradient_probe"):
        cleared.run("dvc", "freeze", gate)
    cleared.set_params(gates__overfit__max_loss=1e-9)
    cleared.run("dvc", "repro", "-f")
    for gate in ("overfit_gate", "gradient_probe"):
        cleared.run("dvc", "unfreeze", gate)
    done = cleared.run("dvc", "repro", "-s", "full_train")
    assert done.returncode != 0
    assert_no_model(cleared)


def test_a_verdict_from_other_params_is_refused_by_name(cleared: Project) -> None:
    cleared.run("rm", "-r", "models", "logs")
    cleared.set_params(train__learning_rate=0.1)
    output = cleared.repro("-s", "full_train", code=255)
    assert "judged with train.learning_rate = 0.003, but params.yaml has 0.1" in output
    assert_no_model(cleared)


def test_data_changed_after_hashing_is_refused_by_name(cleared: Project) -> None:
    cleared.run("rm", "-r", "models", "logs")
    lines = cleared.read("data/incidents.jsonl").splitlines(keepends=True)
    cleared.write("data/incidents.jsonl", "".join(lines[1:]))
    done = cleared.stage("full_train")
    assert done.returncode == 1
    assert "hash_data: judged on another data/incidents.jsonl" in done.stdout
    assert_no_model(cleared)


def test_other_code_is_refused_by_name(cleared: Project) -> None:
    cleared.run("rm", "-r", "models", "logs")
    source = cleared.read("stages/probes/overfit.py")
    cleared.write("stages/probes/overfit.py", f"{source}\nSOMETHING_NEW = 1\n")
    done = cleared.stage("full_train")
    assert "overfit_gate: made by other code than is here" in done.stdout
    assert_no_model(cleared)


def test_another_environment_is_refused_with_field_values_and_command(cleared: Project) -> None:
    cleared.run("rm", "-r", "models", "logs")

    def from_elsewhere(verdict: dict) -> None:  # type: ignore[type-arg]
        verdict["environment"]["gpu"] = "NVIDIA A100"
        canonical = json.dumps(verdict["environment"], sort_keys=True, separators=(",", ":"))
        verdict["environment_sha256"] = hashlib.sha256(canonical.encode()).hexdigest()

    for gate in ("overfit_gate", "gradient_probe"):
        edit_verdict(cleared, gate, from_elsewhere)
    done = cleared.stage("full_train")
    assert done.returncode == 1
    assert "overfit_gate: made where gpu is NVIDIA A100; here it is None" in done.stdout
    assert "dvc repro -f -s overfit_gate" in done.stdout
    assert_no_model(cleared)


def test_a_manifest_of_another_run_does_not_clear(cleared: Project) -> None:
    cleared.run("rm", "-r", "models", "logs")
    manifest = cleared.json("training_manifest.json")
    manifest["digest"] = "0" * 64
    cleared.write("training_manifest.json", json.dumps(manifest))
    done = cleared.stage("full_train")
    assert done.returncode == 1
    assert "made for other data, params or training code" in done.stdout
    assert_no_model(cleared)


@pytest.mark.slow
def test_the_earlier_model_comes_back_after_a_refusal(cleared: Project) -> None:
    weights = (cleared.path / "models/final/model.safetensors").read_bytes()
    cleared.commit("Keep the results")
    cleared.set_params(gates__overfit__max_loss=1e-9)
    output = cleared.repro(code=255)
    assert "bring the earlier manifest and model back" in output
    cleared.git("checkout", "--", "params.yaml", "dvc.lock", "metrics")
    cleared.git("checkout", "--", "training_manifest.json", "clearance.json")
    assert cleared.run("dvc", "checkout").returncode == 0
    assert (cleared.path / "models/final/model.safetensors").read_bytes() == weights
    assert cleared.run("dvc", "status", "-q").returncode == 0
