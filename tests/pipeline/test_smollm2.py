"""The commands that the README gives for a real model: SmolLM2-135M with LoRA, on a CPU."""

from pathlib import Path

import pytest

from ..conftest import ROOT
from ..project import Project, copy_repository

pytestmark = [pytest.mark.model, pytest.mark.network, pytest.mark.slow]

SHORTENED = (
    "gates.data.min_train_rows=8",
    "gates.gradient.steps=3",
    "gates.mask.print_rows=1",
    "train.max_steps=6",
    "train.warmup_steps=1",
    "train.per_device_train_batch_size=2",
    "train.eval_generations=2",
    "train.max_new_tokens=40",
    "train.learning_rate=0.002",
)
ROWS = 80


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The repository after `make base-model`, compose and `dvc repro`, on its shortest rows."""
    project = copy_repository(ROOT, tmp_path_factory.mktemp("smollm2") / "project")
    rows = sorted(project.read("data/incidents.jsonl").splitlines(), key=len)[:ROWS]
    project.write("data/incidents.jsonl", "\n".join(rows) + "\n")
    fetched = project.stage("demo.smollm2")
    assert fetched.returncode == 0, fetched.stdout
    composed = project.holdshort("compose", "+experiment=smollm2_135m_lora", *SHORTENED)
    assert composed.returncode == 0, composed.stdout
    project.commit("Start")
    project.repro()
    return project


def test_every_gate_passes_and_the_adapter_is_better_than_its_base(adapted: Project) -> None:
    for gate in ("hash_data", "mask_report", "overfit_gate", "gradient_probe"):
        verdict = adapted.json(f"gates/{gate}.json")
        assert verdict["passed"], verdict["causes"]
    trained = adapted.json("metrics/full_train.json")["full_train"]
    assert trained["validation_loss"] < trained["untrained_validation_loss"]
    assert trained["saved_logits_difference"] == 0.0
    assert trained["base_logits_difference"] > 0.0
    assert trained["merged_logits_difference"] < 0.01
    assert trained["trainable_parameters"] < 0.05 * trained["parameters"]


def test_a_forced_training_gives_the_same_lock(adapted: Project, tmp_path: Path) -> None:
    project = adapted.copy(tmp_path / "project")
    project.commit("Keep the results")
    lock = project.read("dvc.lock")
    project.repro("-f", "-s", "full_train")
    assert project.read("dvc.lock") == lock
    assert project.computed_steps() == [*range(6), *range(6)]
