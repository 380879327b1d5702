"""The commands that the README gives for a real model: SmolLM2-135M with LoRA, on a CPU."""

from pathlib import Path

import pytest

from ..conftest import ROOT
from ..project import Project, copy_repository
from ..short_rows import keep_short_rows

pytestmark = [pytest.mark.model, pytest.mark.network, pytest.mark.slow]

ROWS = 40
STEPS = 6
SHORTENED = (
    "data.validation_fraction=0.2",
    "gates.overfit.num_samples=4",
    "gates.gradient.steps=3",
    "gates.mask.print_rows=1",
    f"train.max_steps={STEPS}",
    "train.warmup_steps=1",
    "train.per_device_train_batch_size=2",
    "train.eval_generations=2",
    "train.max_new_tokens=24",
    "train.learning_rate=0.002",
)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The repository after `make base-model` and `dvc exp run`, on few and short rows."""
    project = copy_repository(ROOT, tmp_path_factory.mktemp("smollm2") / "project")
    keep_short_rows(project, ROWS)
    fetched = project.stage("demo.smollm2")
    assert fetched.returncode == 0, fetched.stdout
    project.commit("Start")
    overrides = ("+experiment=smollm2_135m_lora", *SHORTENED)
    done = project.run("dvc", "exp", "run", *(word for one in overrides for word in ("-S", one)))
    assert done.returncode == 0, done.stdout[-6000:]
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


def test_the_overfit_gate_stops_when_the_rows_are_learned(adapted: Project) -> None:
    losses = adapted.read("reports/overfit_gate/curve.csv").splitlines()[1:]
    assert (
        len(losses) < adapted.json("gates/overfit_gate.json")["params"]["gates.overfit.max_steps"]
    )


def test_a_forced_run_gives_the_same_lock(adapted: Project, tmp_path: Path) -> None:
    project = adapted.copy(tmp_path / "project")  # no commit between: the manifest names it
    lock = project.read("dvc.lock")
    done = project.run("dvc", "repro", "-f")
    assert done.returncode == 0, done.stdout[-6000:]
    assert project.read("dvc.lock") == lock
    assert project.computed_steps() == [*range(STEPS), *range(STEPS)]


def test_the_self_test_of_a_real_model_sees_a_fault_of_each_kind(adapted: Project) -> None:
    done = adapted.holdshort("selftest", "--quick")
    assert done.returncode == 0, done.stdout[-6000:]
    assert "faults: 6 caught; the cause is named for 6 of 6" in done.stdout
    assert "false alarms over sound runs: 0 of 5" in done.stdout
