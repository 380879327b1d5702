"""A change re-runs what it touches, and nothing else."""

import pytest

from ..project import Project

AFTER_DATA = ["mask_report", "overfit_gate", "gradient_probe", "manifest", "full_train"]


def replace(project: Project, path: str, old: str, new: str) -> None:
    text = project.read(path)
    assert old in text
    project.write(path, text.replace(old, new, 1))


def test_a_learning_rate_reruns_the_probe_the_manifest_and_the_training(cleared: Project) -> None:
    cleared.set_params(train__learning_rate=0.002)
    assert cleared.ran(cleared.repro()) == ["gradient_probe", "manifest", "full_train"]


def test_a_comment_in_hash_data_does_not_train(cleared: Project) -> None:
    replace(cleared, "stages/hash_data.py", "FINDINGS_SHOWN = 20\n", "FINDINGS_SHOWN = 20  # few\n")
    assert cleared.ran(cleared.repro()) == ["hash_data", "manifest"]


def test_a_loosened_limit_judges_again_and_does_not_train(cleared: Project) -> None:
    cleared.set_params(gates__gradient__max_norm=6.0)
    assert cleared.ran(cleared.repro()) == ["gradient_probe", "manifest"]
    verdict = cleared.json("gates/gradient_probe.json")
    limits = {check["id"]: check["limit"] for check in verdict["checks"]}
    assert limits["median_norm"] == [0.1, 6.0]


@pytest.mark.parametrize(
    ("file", "old", "new", "rerun"),
    [
        pytest.param(
            "stages/probes/initial_loss.py",
            '"""One forward pass',
            '"""A forward pass',
            ["overfit_gate", "gradient_probe", "manifest"],
            id="probes",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            "stages/verdict/judging.py",
            '"""Is a measured',
            '"""Is the measured',
            ["hash_data", "mask_report", "overfit_gate", "gradient_probe", "manifest"],
            id="verdict",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            "stages/training/loss.py",
            '"""The loss of',
            '"""A loss of',
            ["mask_report", "overfit_gate", "gradient_probe", "manifest", "full_train"],
            id="training",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_package_reruns_the_stages_that_can_import_it(
    cleared: Project, file: str, old: str, new: str, rerun: list[str]
) -> None:
    replace(cleared, file, old, new)
    assert cleared.ran(cleared.repro()) == rerun


@pytest.mark.slow
def test_a_plugin_reruns_what_can_load_it(cleared: Project) -> None:
    cleared.plug_in("ANSWER = 42\n")
    assert cleared.ran(cleared.repro()) == AFTER_DATA


@pytest.mark.slow
def test_new_rows_rerun_everything(cleared: Project) -> None:
    lines = cleared.read("data/incidents.jsonl").splitlines(keepends=True)
    cleared.write("data/incidents.jsonl", "".join(lines[:-1]))
    assert cleared.ran(cleared.repro()) == ["hash_data", *AFTER_DATA]


@pytest.mark.slow
def test_going_back_brings_verdicts_and_model_from_the_run_cache(cleared: Project) -> None:
    weights = (cleared.path / "models/final/model.safetensors").read_bytes()
    cleared.set_params(train__learning_rate=0.002)
    cleared.repro()
    assert (cleared.path / "models/final/model.safetensors").read_bytes() != weights
    cleared.set_params(train__learning_rate=0.003)
    assert cleared.ran(cleared.repro()) == ["manifest"]
    assert (cleared.path / "models/final/model.safetensors").read_bytes() == weights
