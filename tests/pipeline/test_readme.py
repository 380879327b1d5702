"""Every command of the README works, in the order in which it stands there."""

import json
import re
import shlex

import pyarrow as pa
import pytest

from ..conftest import ROOT
from ..project import SMALL, Project

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = ("make", "dvc", "holdshort", "git", "source", "openssl")
ELSEWHERE = {
    # what these do is the subject of tests of their own
    "make repro": "test_default.py",
    "make test": "the suite itself",
    "make test-slow": "the suite itself",
    "make test-all": "the suite itself",
    "make lint types": ".ci/run",
    "make test-browser": ".ci/run",
    "make test-network": ".ci/run",
    "make test-model": "test_smollm2.py",
    "make bench": "tests/benchmarks",
    "source .venv/bin/activate": "test_setup.py",
    "make base-model": "test_smollm2.py",
    "holdshort compose +experiment=smollm2_135m_lora": "test_smollm2.py",
    "dvc exp run -S train.learning_rate=0.001": "test_experiments.py",
    "dvc exp run --queue -S train.learning_rate=0.001,0.002": "test_experiments.py",
    "dvc queue start": "test_experiments.py",
    "holdshort compose run=cuda train.num_processes=8": "test_ranks.py",
    "dvc commit full_train": "test_ranks.py",
    "holdshort seeds 1 2 3": "test_seeds.py",
    "holdshort replay": "test_replay.py",
    "holdshort reproduce HEAD": "test_reproduce.py",
    "holdshort explain HEAD~1 HEAD": "test_explain.py",
    "holdshort selftest --quick": "test_outcomes.py",
    "holdshort compare loss_spike": "test_compare.py",
    "holdshort compare fp16_underflow": "test_compare.py",
    "holdshort compare fp16_overflow": "test_compare.py",
    "holdshort compare digits": "test_compare.py",
    "holdshort compare seed_spread": "test_compare.py",
    "holdshort verify --deep": "test_verify.py",
    "holdshort lr-range": "test_lr_range.py",
}


def commands() -> list[str]:
    """The lines of fenced blocks that start with a program."""
    found, fenced = [], False
    for line in README.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced and line.split(" ")[0] in PROGRAMS:
            found.append(line)
    return found


def run(project: Project, command: str) -> str:
    program, *arguments = shlex.split(command)
    if program == "holdshort":
        done = project.holdshort(*arguments, *SMALL if "compose" in arguments else ())
    else:
        done = project.run(program, *arguments)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}"
    return done.stdout


def test_every_command_is_run_by_some_test() -> None:
    assert len(commands()) > 15
    assert set(ELSEWHERE) <= set(commands())


def test_every_make_target_exists(fresh: Project) -> None:
    for command in commands():
        if command.startswith("make"):
            done = fresh.run("make", "-n", *shlex.split(command)[1:])
            assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_commands_work_in_their_order(cleared: Project) -> None:
    cleared.commit("Keep the results")
    rows = cleared.read("data/incidents.jsonl").splitlines(keepends=True)
    cleared.write("data/mine.jsonl", "".join(rows[:200]))
    for command in commands():
        if command in ELSEWHERE:
            continue
        if "audit-labels" in command:
            write_labels(cleared)
        if "diagnose" in command:
            write_trainer_state(cleared)
        run(cleared, command)


def write_labels(project: Project) -> None:
    """labels.jsonl, as another trainer might write it, of the rows that the project trains on."""
    with pa.memory_map(str(project.path / "artifacts/tokens/train.arrow")) as file:
        rows = pa.ipc.open_file(file).read_all().select(["input_ids", "labels"]).to_pylist()
    project.write("labels.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def write_trainer_state(project: Project) -> None:
    """trainer_state.json, as transformers writes it, of a run that went well."""
    history = [
        {"step": step, "loss": 0.5 + 2.0 * 0.9**step, "learning_rate": 1e-4 * (40 - step)}
        for step in range(1, 41)
    ]
    state = {"max_steps": 40, "log_history": [*history, {"step": 40, "train_runtime": 1.0}]}
    project.write("trainer_state.json", json.dumps(state))


def test_the_refusal_shown_is_the_one_printed(refused: Project) -> None:
    printed = refused.repro(code=255)
    (shown,) = (block for block in README.split("```") if "training is not cleared" in block)
    for line in shown.strip().splitlines():
        pattern = re.sub(r"\d+", r"\\d+", re.escape(line.strip()))
        assert re.search(pattern, printed), line
