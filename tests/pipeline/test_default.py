"""The data and the model that come with the repository: all gates pass, the model is worth it."""

import shutil
from pathlib import Path

import pytest

from ..conftest import ROOT
from ..project import Project, copy_repository

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The repository as it is, after `dvc repro` without any cache."""
    project = copy_repository(ROOT, tmp_path_factory.mktemp("default") / "project")
    project.commit("Start")
    project.repro()
    return project


def test_it_ends_with_a_model_that_beats_what_needs_no_model(default: Project) -> None:
    trained = default.json("metrics/full_train.json")["full_train"]
    hashed = default.json("metrics/hash_data.json")["hash_data"]
    assert trained["exact_match"] >= 0.9
    assert trained["stop_rate"] == 1.0
    assert trained["validation_loss"] < 0.1 * trained["untrained_validation_loss"]
    assert hashed["rows"] >= 2000
    assert max(hashed["majority_exact_match"], hashed["keyword_exact_match"]) < 0.3


def test_every_gate_passed_without_a_warning(default: Project) -> None:
    for gate in ("hash_data", "mask_report", "overfit_gate", "gradient_probe"):
        assert default.json(f"gates/{gate}.json")["status"] == "pass"
    assert default.run("dvc", "status", "-q").returncode == 0


def test_a_forced_run_gives_the_same_lock_and_computes_every_step(
    default: Project, tmp_path: Path
) -> None:
    project = default.copy(tmp_path / "project")
    steps = project.computed_steps()
    project.commit("Keep the results")
    lock = project.read("dvc.lock")
    project.repro("-f")
    assert project.read("dvc.lock") == lock
    assert project.computed_steps() == steps + steps
    assert project.git("status", "--porcelain") == ""
    shutil.rmtree(project.path)
