"""A training that was killed goes on from its last checkpoint and ends with the same bits."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..project import Project, made_once
from .kills import stop_inside_write, wait_for_step

STEPS = 24
SAVE_STEPS = 3


@pytest.fixture(scope="session")
def long_run(cleared_template: Project, shared: Path) -> Project:
    """A project that trains for 24 steps and saves every third, trained once without a break."""

    def make(path: Path) -> None:
        project = cleared_template.copy(path)
        project.set_params(train__max_steps=STEPS, train__save_steps=SAVE_STEPS)
        shutil.rmtree(project.path / "logs")
        project.repro()
        assert project.computed_steps() == list(range(STEPS))

    return made_once(shared / "long_run", make)


def untrained(long_run: Project, target: Path) -> Project:
    """The same project, cleared, with no model, checkpoint or cache to take one from."""
    project = long_run.copy(target)
    for name in ("models", "logs", "reports/full_train", ".dvc/cache/runs"):
        shutil.rmtree(project.path / name)
    project.forget("full_train")
    return project


def weights(project: Project) -> bytes:
    return (project.path / "models/final/model.safetensors").read_bytes()


def start_training(project: Project) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "stages.full_train"],
        cwd=project.path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def assert_same_end(project: Project, long_run: Project) -> None:
    assert project.computed_steps()[-1] == STEPS - 1
    assert weights(project) == weights(long_run)
    assert project.read("metrics/full_train.json") == long_run.read("metrics/full_train.json")
    for report in ("telemetry.csv", "answers.csv"):
        path = f"reports/full_train/{report}"
        assert project.read(path) == long_run.read(path)
    assert not list((project.path / "checkpoints").iterdir())


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_nothing(long_run: Project, tmp_path: Path) -> None:
    project = untrained(long_run, tmp_path / "project")
    generator = random.Random(0)
    done: list[int] = []
    for step in sorted(generator.sample(range(1, STEPS - 1), 10)):
        training = start_training(project)
        wait_for_step(project, training, step)
        time.sleep(generator.uniform(0, 0.03))
        training.send_signal(signal.SIGKILL)
        training.wait()
        assert_went_on(done, project.computed_steps())
        done = project.computed_steps()
    output = project.repro()
    assert project.ran(output) == ["full_train"]
    assert_went_on(done, project.computed_steps())
    assert_same_end(project, long_run)


@pytest.mark.slow
def test_kills_inside_the_write_of_a_checkpoint_change_nothing(
    long_run: Project, tmp_path: Path
) -> None:
    project = untrained(long_run, tmp_path / "project")
    for step in SAVE_STEPS, 2 * SAVE_STEPS, 4 * SAVE_STEPS, 6 * SAVE_STEPS:
        training = start_training(project)
        if step > SAVE_STEPS:
            wait_for_step(project, training, step - 1)
        stop_inside_write(project, training, training.pid)
        training.kill()
        training.wait()
    project.repro()
    assert_same_end(project, long_run)


def assert_went_on(before: list[int], after: list[int]) -> None:
    """The run went on from the last checkpoint and computed the missing steps once each."""
    computed = after[len(before) :]
    assert computed == list(range(computed[0], computed[-1] + 1))
    last = before[-1] if before else -1
    newest = (last + 1) // SAVE_STEPS * SAVE_STEPS
    assert computed[0] in {newest, max(newest - SAVE_STEPS, 0)}  # killed while it was written


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="SIGINT"),
        pytest.param(signal.SIGTERM, 143, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_a_checkpoint_and_leaves_no_output(
    long_run: Project, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    project = untrained(long_run, tmp_path / "project")
    training = start_training(project)
    wait_for_step(project, training, 4)
    training.send_signal(number)
    assert training.wait() == code
    assert not project.exists("models/final")
    done = len(project.computed_steps())
    output = project.repro()
    assert f"resuming after {done} of {STEPS} steps" in output
    assert project.computed_steps() == list(range(STEPS))
    assert_same_end(project, long_run)


@pytest.mark.slow
def test_a_second_trainer_of_the_same_run_is_refused(long_run: Project, tmp_path: Path) -> None:
    project = untrained(long_run, tmp_path / "project")
    first = start_training(project)
    wait_for_step(project, first, 1)
    os.kill(first.pid, signal.SIGSTOP)
    second = project.stage("full_train")
    os.kill(first.pid, signal.SIGCONT)
    assert second.returncode == 1
    assert "another process is training this very run" in second.stdout
    assert first.wait() == 0
    assert weights(project) == weights(long_run)


def start_repro(project: Project) -> subprocess.Popen[bytes]:
    """`dvc repro` in a process group of its own, with the training that it starts."""
    return subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro"],
        cwd=project.path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_second_repro_is_refused_and_the_first_goes_on(long_run: Project, tmp_path: Path) -> None:
    project = untrained(long_run, tmp_path / "project")
    first = start_repro(project)
    wait_for_step(project, first, 1)
    os.killpg(first.pid, signal.SIGSTOP)
    refused = project.repro(code=255)
    os.killpg(first.pid, signal.SIGCONT)
    assert "is busy, it is being blocked by:" in refused
    assert f"(PID {first.pid}): " in refused
    assert project.ran(refused) == []
    assert first.wait() == 0
    assert project.computed_steps() == list(range(STEPS))
    assert_same_end(project, long_run)
    assert project.ran(project.repro()) == []


@pytest.mark.slow
def test_a_training_outlives_a_killed_repro_and_is_not_disturbed(
    long_run: Project, tmp_path: Path
) -> None:
    """The next `dvc repro` says that it is under way; of its end DVC learns by running it again."""
    project = untrained(long_run, tmp_path / "project")
    first = start_repro(project)
    wait_for_step(project, first, 1)
    os.killpg(first.pid, signal.SIGSTOP)
    first.kill()
    first.wait()
    refused = project.repro(code=255)
    os.killpg(first.pid, signal.SIGCONT)
    assert "another process is training this very run" in refused
    while list((project.path / "checkpoints").iterdir()):
        time.sleep(0.1)
    assert project.computed_steps() == list(range(STEPS))
    assert_same_end(project, long_run)
    assert project.ran(project.repro()) == ["full_train"]
    assert_same_end(project, long_run)


@pytest.mark.slow
def test_a_checkpoint_of_other_params_is_not_resumed(long_run: Project, tmp_path: Path) -> None:
    project = untrained(long_run, tmp_path / "project")
    training = start_training(project)
    wait_for_step(project, training, 4)
    training.send_signal(signal.SIGTERM)
    training.wait()
    shutil.rmtree(project.path / "logs")
    project.set_params(train__weight_decay=0.2)
    project.repro()
    assert project.computed_steps() == list(range(STEPS))
