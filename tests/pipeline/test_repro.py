"""`dvc repro` from data to model, and again, with the same bits."""

import pytest

from ..project import Project
from .imports import ENTRY_MODULES

GATES = ("hash_data", "mask_report", "overfit_gate", "gradient_probe")
STEPS = list(range(8))


def test_every_gate_passes_and_a_model_is_trained(cleared: Project) -> None:
    for gate in GATES:
        verdict = cleared.json(f"gates/{gate}.json")
        assert (verdict["gate"], verdict["passed"]) == (gate, True), verdict["causes"]
    for stage in ENTRY_MODULES:
        assert cleared.exists(f"reports/{stage}/index.html")
    for file in ("model.safetensors", "config.json", "tokenizer.json", "README.md"):
        assert cleared.exists(f"models/final/{file}")
    assert cleared.computed_steps() == STEPS
    assert not list((cleared.path / "checkpoints").iterdir())


def test_the_model_card_names_the_digest_of_the_manifest(cleared: Project) -> None:
    digest = cleared.json("training_manifest.json")["digest"]
    assert f"`{digest}`" in cleared.read("models/final/README.md")


def test_nothing_is_left_to_do_and_status_is_clean(cleared: Project) -> None:
    assert cleared.ran(cleared.repro()) == []
    assert cleared.run("dvc", "status", "-q").returncode == 0


@pytest.mark.matrix
def test_a_forced_run_computes_every_step_again_and_gives_the_same_bits(cleared: Project) -> None:
    lock = cleared.read("dvc.lock")
    cleared.commit("Keep the results")
    records = [cleared.read(path) for path in ("training_manifest.json", "clearance.json")]
    output = cleared.repro("-f")
    assert cleared.ran(output) == list(ENTRY_MODULES)
    assert cleared.read("dvc.lock") == lock
    assert [cleared.read(path) for path in ("training_manifest.json", "clearance.json")] == records
    assert cleared.computed_steps() == STEPS + STEPS
    assert cleared.git("status", "--porcelain") == ""


def test_no_artefact_holds_a_path_a_host_or_a_time(cleared: Project) -> None:
    home = str(cleared.path)
    host = cleared.run("uname", "-n").stdout.strip()
    kept = ("gates", "metrics", "reports", "models", "training_manifest.json", "clearance.json")
    files = [
        file
        for name in kept
        for file in [cleared.path / name, *(cleared.path / name).rglob("*")]
        if file.is_file()
    ]
    assert len(files) > 20
    for file in files:
        content = file.read_bytes()
        assert home.encode() not in content, file
        assert len(host) < 4 or host.encode() not in content, file


def test_the_numbers_reach_dvc(cleared: Project) -> None:
    shown = cleared.run("dvc", "metrics", "show", "--md").stdout
    assert "overfit_gate.passed" in shown
    assert "full_train.exact_match" in shown
    graph = cleared.run("dvc", "dag", "--mermaid").stdout
    assert graph.count("-->") == 9
    plots = cleared.run("dvc", "plots", "show", "--json").stdout
    for title in ("Overfit a handful of rows", "Learning rate", "Training and validation loss"):
        assert title in plots


def test_the_manifest_says_what_is_trained_and_what_it_will_cost(cleared: Project) -> None:
    config = cleared.json("reports/manifest/adapter_training_config.json")
    manifest = cleared.json("training_manifest.json")
    trained = cleared.json("metrics/full_train.json")["full_train"]
    assert config["budget"] == manifest["budget"]
    assert config["adapter"] is None
    assert config["trainable_parameters"] == trained["trainable_parameters"] == 193408
    assert config["training"]["steps"] == 8
    assert manifest["budget"]["not_estimated"] == []
    assert manifest["budget"]["memory_bytes"]["weights"] == 4 * 193408
    page = cleared.read("reports/manifest/index.html")
    assert "memory: at the peak" in page


def test_another_machine_in_the_budget_runs_the_manifest_alone(cleared: Project) -> None:
    cleared.set_params(run__hardware="h100_80gb")
    again = cleared.repro()
    assert cleared.ran(again) == ["manifest"]
    assert cleared.json("training_manifest.json")["budget"]["hours_at_most"] > 0


def test_the_manifest_records_what_the_protocol_asks(cleared: Project) -> None:
    manifest = cleared.json("training_manifest.json")
    data = manifest["data"]
    assert data["files"] == {"data/incidents.jsonl": data["sha256"]}
    assert set(manifest["tokenizer"]) == {"sha256", "vocabulary_sha256", "chat_template_sha256"}
    for key in ("train.learning_rate", "train.warmup_ratio", "run.seed", "model.d_model"):
        assert key in manifest["params"]
    for fact in ("torch_build", "cuda", "cpu_capability", "cpu_threads", "precision", "gpu"):
        assert fact in manifest["environment"]
    for fact in ("python_version", "driver", "gpus", "cpu_model"):
        assert fact in manifest["recorded"]
    assert set(manifest["gates"]) == set(GATES)
    assert set(manifest["code"]) == set(ENTRY_MODULES)
    assert len(manifest["git"]["commit"]) == 40
    edited = {edit["key"] for edit in manifest["params_edited"]}
    assert "train.max_steps" in edited
    assert "train.learning_rate" not in edited
