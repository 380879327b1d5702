"""A pretrained model goes through all gates: fine-tuned whole, kept, then adapted with LoRA."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import ROOT
from ..models.llama import write_llama
from ..project import SMALL, Project, make_project

pytestmark = pytest.mark.slow

TINY = (
    "model=hub",
    *SMALL,
    "run.cpu_threads=1",
    "gates.overfit.learning_rate=0.01",
    # a model of two small blocks is no pretrained one: what it lacks in skill is allowed here
    "gates.overfit.max_loss=2.0",
    "gates.overfit.max_blanked_ratio=1.0",
    "gates.gradient.max_pretrained_update_ratio=1.0",
    "gates.gradient.min_norm=0.001",
    "gates.gradient.max_norm=20.0",
    "gates.gradient.max_clip_excess=20.0",
)


def keep(project: Project, directory: Path, name: str) -> tuple[str, ...]:
    """The overrides that name a kept directory."""
    done = project.holdshort("keep", str(directory), name)
    assert done.returncode == 0, done.stdout
    values = dict(line.split(": ") for line in done.stdout.splitlines()[1:])
    return tuple(f"{key}={value}" for key, value in values.items())


def compose(project: Project, *overrides: str) -> None:
    done = project.holdshort("compose", *overrides)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose base model has random weights."""
    scratch = tmp_path_factory.mktemp("untrained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDSHORT_MODELS", str(scratch / "store"))
        project = make_project(ROOT, scratch / "project")
        base = keep(project, write_llama(scratch / "llama", vocab_size=740), "llama")
        compose(project, *TINY, *base, "model.adapter=none", "train.max_steps=100")
        yield project


@pytest.fixture(scope="module")
def tuned(untrained: Project) -> Project:
    """LoRA over what an allowed training from random weights has made."""
    project = untrained.copy(untrained.path.parent / "tuned")
    project.set_params(
        gates__overfit__max_pretrained_loss_share=2.0,
        gates__overfit__max_loss=5.0,
        train__eval_steps=100,
    )
    project.repro()
    base = keep(project, project.path / "models/final", "tuned")
    lora = ("model.lora.r=32", "model.save_merged=true", "train.learning_rate=0.001")
    compose(project, *TINY, *base, *lora, "train.max_steps=20", "train.eval_steps=20")
    project.commit("Adapt what was tuned")
    project.repro()
    return project


def test_weights_that_were_never_trained_are_refused_and_named(untrained: Project) -> None:
    printed = untrained.repro(code=255)
    assert "pretrained_loss_share" in printed
    assert "the model guesses evenly, as a random one does: its weights are not loaded" in printed
    assert not untrained.exists("models/final")


def test_an_adapter_over_a_pretrained_model_passes_and_learns(tuned: Project) -> None:
    for gate in ("overfit_gate", "gradient_probe"):
        verdict = tuned.json(f"gates/{gate}.json")
        assert verdict["passed"], verdict["causes"]
        assert any(path.startswith("tuned@") for path in verdict["inputs"])
    trained = tuned.json("metrics/full_train.json")["full_train"]
    assert trained["validation_loss"] < trained["untrained_validation_loss"]
    assert trained["saved_logits_difference"] == 0.0
    assert trained["merged_logits_difference"] < 1e-3
    assert trained["base_logits_difference"] > 0.0
    assert trained["trainable_parameters"] < trained["parameters"]
    manifest = tuned.json("training_manifest.json")
    assert manifest["base_model"]["name"].startswith("tuned@")
    assert len(manifest["base_model"]["weights_sha256"]) == 64


def test_a_forced_run_of_an_adapter_gives_the_same_lock(tuned: Project, tmp_path: Path) -> None:
    project = tuned.copy(tmp_path / "project")
    steps = project.computed_steps()
    project.commit("Keep the results")
    lock = project.read("dvc.lock")
    project.repro("-f")
    assert project.read("dvc.lock") == lock
    assert len(project.computed_steps()) == len(steps) + 20
    shutil.rmtree(project.path)


def test_a_base_model_that_changed_after_the_gates_is_refused(tuned: Project) -> None:
    name = tuned.json("training_manifest.json")["base_model"]["name"]
    project = tuned.copy(tuned.path.parent / "changed")
    [directory] = (tuned.path.parent / "store").glob("tuned-*")
    weights = directory / "model.safetensors"
    whole = weights.read_bytes()
    try:
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        done = project.stage("full_train")
        assert done.returncode != 0
        assert "tuned" in name
        assert "was changed" in done.stdout or "judged on another" in done.stdout
    finally:
        weights.write_bytes(whole)
