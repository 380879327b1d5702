"""A training over two processes: started, stopped, killed and resumed as one in one process is."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ..project import Project
from .kills import stop_inside_write, wait_for_step

STEPS = 24
SAVE_STEPS = 3
ONE_RANK_FAILS = """
import os

from stages.chat.collator import collate
from stages.config import UserError

calls = 0

def collator(rows, pad_token_id):
    global calls
    calls += 1
    if os.environ.get("RANK") == "1" and calls > 5:
        raise UserError("data.collator: row 17 is not mine")
    return collate(rows, pad_token_id)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_ranks(cleared_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that trained for 24 steps in two processes and saved every third."""
    project = cleared_template.copy(tmp_path_factory.mktemp("ranks") / "project")
    project.set_params(
        train__max_steps=STEPS,
        train__save_steps=SAVE_STEPS,
        train__num_processes=2,
        train__gradient_accumulation_steps=1,
    )
    shutil.rmtree(project.path / "logs")
    project.repro()
    assert project.computed_steps() == list(range(STEPS))
    return project


@pytest.fixture
def untrained(two_ranks: Project, tmp_path: Path) -> Project:
    """The same project, cleared, with no model, checkpoint or cache to take one from."""
    project = two_ranks.copy(tmp_path / "project")
    for name in ("models", "logs", "reports/full_train", ".dvc/cache/runs"):
        shutil.rmtree(project.path / name)
    project.forget("full_train")
    return project


def weights(project: Project) -> bytes:
    return (project.path / "models/final/model.safetensors").read_bytes()


def start_training(project: Project, command: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command or [sys.executable, "-m", "stages.full_train"],
        cwd=project.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ranks_of(training: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{training.pid}/task/{training.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pids: Sequence[int]) -> None:
    for _ in range(6000):
        if not any(map(is_running, pids)):
            return
        time.sleep(0.01)
    raise AssertionError("a rank is still running")


def finish(project: Project) -> str:
    done = project.stage("full_train")
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_two_processes_train_the_weights_of_one(two_ranks: Project, tmp_path: Path) -> None:
    project = two_ranks.copy(tmp_path / "project")
    project.set_params(train__num_processes=1, train__gradient_accumulation_steps=2)
    project.repro()
    assert weights(project) == weights(two_ranks)


def test_the_same_project_trains_the_same_weights_again(
    untrained: Project, two_ranks: Project
) -> None:
    output = finish(untrained)
    assert output.count(f"computed {STEPS} of {STEPS} steps here") == 1
    assert "Traceback" not in output
    assert weights(untrained) == weights(two_ranks)
    assert untrained.read("metrics/full_train.json") == two_ranks.read("metrics/full_train.json")
    assert not list((untrained.path / "checkpoints").iterdir())


@pytest.mark.matrix
def test_a_launcher_of_ones_own_trains_the_same_weights(
    untrained: Project, two_ranks: Project
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = untrained.run(*torchrun, "--nproc-per-node", "2", "-m", "stages.full_train")
    assert done.returncode == 0, done.stdout
    assert weights(untrained) == weights(two_ranks)
    committed = untrained.run("dvc", "commit", "full_train")
    assert committed.returncode == 0, committed.stdout
    assert untrained.ran(untrained.repro()) == []


def test_kills_of_one_rank_or_all_change_nothing(untrained: Project, two_ranks: Project) -> None:
    generator = random.Random(0)
    for number, step in enumerate(sorted(generator.sample(range(1, STEPS - 2 * SAVE_STEPS), 6))):
        training = start_training(untrained)
        wait_for_step(untrained, training, step)
        ranks = ranks_of(training)
        assert len(ranks) == 2
        time.sleep(generator.uniform(0, 0.05))
        if number % 2:
            stop_inside_write(untrained, training, ranks[0])
        for pid in ranks if number % 2 or number == 4 else [ranks[number // 2]]:
            os.kill(pid, signal.SIGKILL)
        output = training.communicate()[0]
        assert training.returncode == 1, output
        assert output.count("was ended by SIGKILL") == 1
        assert "Traceback" not in output
        wait_for_end(ranks)
    finish(untrained)
    assert untrained.computed_steps()[-1] == STEPS - 1
    assert weights(untrained) == weights(two_ranks)


def test_ranks_whose_launcher_was_killed_stop_with_a_checkpoint(
    untrained: Project, two_ranks: Project
) -> None:
    training = start_training(untrained)
    wait_for_step(untrained, training, 4)
    ranks = ranks_of(training)
    training.kill()
    training.wait()
    wait_for_end(ranks)
    done = len(untrained.computed_steps())
    assert f"resuming after {done} of {STEPS} steps" in finish(untrained)
    assert untrained.computed_steps() == list(range(STEPS))
    assert weights(untrained) == weights(two_ranks)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_reaches_the_ranks_which_save_a_checkpoint(
    untrained: Project, two_ranks: Project, number: signal.Signals, code: int
) -> None:
    training = start_training(untrained)
    wait_for_step(untrained, training, 4)
    training.send_signal(number)
    output = training.communicate()[0]
    assert training.returncode == code, output
    assert output.count("the checkpoint is saved") == 1
    assert "Traceback" not in output
    assert not untrained.exists("models/final")
    done = len(untrained.computed_steps())
    assert f"resuming after {done} of {STEPS} steps" in finish(untrained)
    assert untrained.computed_steps() == list(range(STEPS))
    assert weights(untrained) == weights(two_ranks)


@pytest.mark.matrix
def test_shards_train_and_go_on_with_the_same_bits(untrained: Project) -> None:
    untrained.set_params(train__distributed="fsdp2")
    untrained.repro()
    whole = weights(untrained)
    shutil.rmtree(untrained.path / "models")
    shutil.rmtree(untrained.path / "logs")
    training = start_training(untrained)
    wait_for_step(untrained, training, 4)
    training.send_signal(signal.SIGTERM)
    output = training.communicate()[0]
    assert training.returncode == 143, output
    assert "resuming after" in finish(untrained)
    assert untrained.computed_steps() == list(range(STEPS))
    assert weights(untrained) == whole


def test_a_run_that_is_not_cleared_starts_no_rank(untrained: Project) -> None:
    untrained.set_params(train__weight_decay=0.2)
    done = untrained.stage("full_train")
    assert done.returncode == 1
    assert done.stdout.count("full training is refused") == 1
    assert not untrained.exists("logs/full_train.csv")


@pytest.mark.matrix
def test_a_mistake_on_one_rank_ends_all_with_its_sentence(untrained: Project) -> None:
    untrained.plug_in(ONE_RANK_FAILS)
    untrained.set_params(data__collator={"_target_": "stages.plugins.mine.collator"})
    untrained.repro("manifest")
    done = untrained.stage("full_train")
    assert done.returncode == 2, done.stdout
    assert done.stdout == "error: data.collator: row 17 is not mine\n"


def test_another_number_of_processes_than_params_say_is_refused(untrained: Project) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = untrained.run(*torchrun, "--nproc-per-node", "3", "-m", "stages.full_train")
    assert done.returncode == 1
    sentence = "error: params.yaml: 'train.num_processes' is 2, but the launcher started 3"
    assert done.stdout.count(sentence) == 1
