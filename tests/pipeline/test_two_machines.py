"""Gates of another machine, from a pulled run or the run-cache, are refused; what is named helps.

The other machine is this one with another instruction set, which every computing gate records.
"""

import re
import shutil
from pathlib import Path

import pytest
import torch

from ..project import Project
from .test_remotes import clone_of

pytestmark = pytest.mark.slow

REMEDY = re.compile(r"^ +-> (.*)$", re.MULTILINE)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """From now on, what computes does it with another instruction set; the one until now."""
    until_now = str(torch.backends.cpu.get_cpu_capability())
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert until_now != "DEFAULT"
    return until_now


def run_what_is_named(project: Project, refusal: str) -> list[str]:
    """The commands that a refusal names, after they have been run."""
    commands = list(dict.fromkeys(REMEDY.findall(refusal)))
    for command in commands:
        done = project.run(*command.split(" "))
        assert done.returncode == 0, done.stdout[-3000:]
    return commands


def assert_trains(project: Project) -> None:
    assert project.ran(project.repro()) == ["manifest", "full_train"]
    assert project.computed_steps() == list(range(8))
    verified = project.holdshort("verify")
    assert verified.returncode == 0, verified.stdout


def test_gates_that_the_run_cache_brings_are_refused_until_they_ran_here(
    cleared: Project, elsewhere: str, tmp_path: Path
) -> None:
    """A changed file of the training alone: all gates are those of the other machine."""
    clone = clone_of(cleared, tmp_path / "clone")
    shutil.copytree(cleared.path / ".dvc/cache", clone.path / ".dvc/cache")
    assert not clone.exists("dvc.lock")
    clone.write("stages/curves/more.py", "ANSWER = 42\n")
    refusal = clone.repro(code=255)
    assert clone.ran(refusal) == ["manifest", "full_train"]
    for gate in ("overfit_gate", "gradient_probe"):
        reason = f"{gate}: made where cpu_capability is {elsewhere}; here it is DEFAULT\n"
        assert f"{reason}    -> dvc repro -f -s {gate}\n" in refusal
    assert clone.computed_steps() == []
    assert run_what_is_named(clone, refusal) == [
        "dvc repro -f -s overfit_gate",
        "dvc repro -f -s gradient_probe",
    ]
    assert_trains(clone)


def test_a_gate_that_ran_here_is_not_mixed_with_one_that_was_pulled(
    cleared: Project, elsewhere: str, tmp_path: Path
) -> None:
    """A changed learning rate: gradient_probe runs here, overfit_gate is that of the other."""
    assert cleared.run("dvc", "remote", "add", "--default", "team", "../team").returncode == 0
    cleared.commit("Keep the results")
    assert cleared.run("dvc", "push").returncode == 0
    clone = clone_of(cleared, tmp_path / "clone")
    assert clone.run("dvc", "pull").returncode == 0
    verified = clone.holdshort("verify")
    assert verified.returncode == 1
    assert f"cpu_capability: {elsewhere} (then) -> DEFAULT (now); other bits" in verified.stdout
    clone.set_params(train__learning_rate=0.002)
    refusal = clone.repro(code=255)
    assert clone.ran(refusal) == ["gradient_probe", "manifest"]
    reason = f"overfit_gate: made where cpu_capability is {elsewhere}; here it is DEFAULT\n"
    assert f"{reason}    -> dvc repro -f -s overfit_gate\n" in refusal
    assert run_what_is_named(clone, refusal) == ["dvc repro -f -s overfit_gate"]
    assert_trains(clone)
