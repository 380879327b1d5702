"""`holdshort reproduce` computes a revision again beside the work tree, and says where it parts."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.commands.reproduce import print_environment, run
from stages.config import UserError
from stages.revisions.record import Record
from stages.revisions.scratch import bring_inputs, cloned, forget_results

from ..project import Project
from .imports import ENTRY_MODULES

ROW = 17
WEIGHTS = "models/final/model.safetensors"


@pytest.fixture
def recorded(cleared: Project) -> Project:
    """A project whose last commit holds the results of a run."""
    cleared.commit("Keep the results")
    return cleared


def snapshot(project: Project) -> dict[str, str]:
    """sha256 of every file but those that git and DVC keep for themselves."""
    files = (file for file in project.path.rglob("*") if file.is_file())
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if (name := file.relative_to(project.path).as_posix()).split("/")[0] not in (".git", ".dvc")
        and "__pycache__" not in name
    }


def copies(project: Project) -> list[Path]:
    """What reproduce has left behind."""
    return list((project.path / ".dvc/tmp").glob("reproduce-*"))


def change_row(project: Project) -> None:
    """Change what one row of the data says."""
    lines = project.read("data/incidents.jsonl").splitlines(keepends=True)
    row = json.loads(lines[ROW - 1])
    row["messages"][0]["content"] += " Be quick."
    lines[ROW - 1] = json.dumps(row) + "\n"
    project.write("data/incidents.jsonl", "".join(lines))


@pytest.mark.slow
def test_head_is_computed_again_and_gives_the_same_bits(recorded: Project) -> None:
    before = snapshot(recorded)
    done = recorded.holdshort("reproduce", "HEAD")
    assert done.returncode == 0, done.stdout[-3000:]
    assert recorded.ran(done.stdout) == list(ENTRY_MODULES)
    assert "computed 8 of 8 steps here, from step 0" in done.stdout
    assert "environment: as recorded; the same bits are expected" in done.stdout
    assert "the same bits: 20 outputs of 6 stages are those that HEAD records" in done.stdout
    assert snapshot(recorded) == before
    assert recorded.git("status", "--porcelain") == ""
    assert copies(recorded) == []


@pytest.mark.slow
def test_another_seed_is_named_with_the_first_step_and_tensor(recorded: Project) -> None:
    recorded.set_params(run__seed=43)
    recorded.commit("Change the seed, and do not run it")
    done = recorded.holdshort("reproduce", "HEAD")
    assert done.returncode == 1, done.stdout[-3000:]
    _, _, told = done.stdout.partition("not the same bits: ")
    assert told.startswith("mask_report is the first stage that differs (then overfit_gate, ")
    in_order = (
        "output gates/mask_report.json",
        "because of:",
        "seed run.seed: 42 (recorded) -> 43 (computed)",
        "what came of it:",
        "check overfit_gate: initial_loss_error",
        "metric full_train.train_loss",
        "step 0, loss: ",
        f"of {WEIGHTS}, float32 [",
    )
    places = [told.find(words) for words in in_order]
    assert -1 not in places, told
    assert places == sorted(places)
    (tensor,) = (line for line in told.splitlines() if line.startswith("  tensor "))
    assert "largest difference" in tensor


@pytest.mark.slow
def test_a_changed_row_is_named_also_by_the_first_steps(recorded: Project) -> None:
    change_row(recorded)
    recorded.commit("Change a row, and do not run it")
    done = recorded.holdshort("reproduce", "HEAD", "--steps", "2")
    assert done.returncode == 1, done.stdout[-3000:]
    assert recorded.ran(done.stdout) == list(ENTRY_MODULES[:-1])
    assert "computed 2 of 8 steps" in done.stdout
    _, _, told = done.stdout.partition("not the same bits: ")
    assert told.startswith("hash_data is the first stage that differs")
    assert "240 rows: 1 changed, 0 removed, 0 added, 0 in another split" in told
    (row,) = (line for line in told.splitlines() if line.startswith("  row "))
    assert row.startswith(f"  row data/incidents.jsonl:{ROW}: ")
    read = [
        json.loads(line)
        for split in ("train", "validation")
        for line in recorded.read(f"artifacts/dataset/{split}.jsonl").splitlines()
    ]
    (old,) = (one["id"] for one in read if one["source"] == f"data/incidents.jsonl:{ROW}")
    assert f"{old[:16]}... (recorded)" in row


@pytest.mark.matrix
def test_the_first_steps_are_those_of_the_record(recorded: Project) -> None:
    done = recorded.holdshort("reproduce", "HEAD", "--steps", "3")
    assert done.returncode == 0, done.stdout[-3000:]
    assert recorded.ran(done.stdout) == list(ENTRY_MODULES[:-1])
    assert "computed 3 of 8 steps" in done.stdout
    assert "17 outputs of 5 stages, and the first 3 training steps, are those" in done.stdout
    assert copies(recorded) == []


@pytest.mark.slow
def test_an_old_run_comes_back_in_a_clone_without_its_results(
    cleared: Project, tmp_path: Path
) -> None:
    """The manifest of the old run says that params.yaml was not committed yet: that informs only.

    The clone has no cache: whatever is there afterwards was computed.
    """
    cleared.set_params(train__learning_rate=0.002)
    cleared.repro()
    weights = (cleared.path / WEIGHTS).read_bytes()
    assert cleared.json("training_manifest.json")["git"]["dirty"] == ["params.yaml"]
    cleared.commit("Keep a run")
    old = cleared.git("rev-parse", "HEAD").strip()
    for number, rate in enumerate((0.003, 0.004, 0.005)):
        cleared.set_params(train__learning_rate=rate, run__seed=number)
        cleared.commit("Try something else")
    clone = Project(tmp_path / "elsewhere" / "clone")
    cleared.git("clone", "--quiet", str(cleared.path), str(clone.path))
    clone.write("notes.txt", "not committed\n")
    clone.set_params(train__learning_rate=0.1)
    before, status = snapshot(clone), clone.git("status", "--porcelain")
    done = clone.holdshort("reproduce", old, "--keep")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "computed 8 of 8 steps here, from step 0" in done.stdout
    assert "training_manifest.json differs in what only informs" in done.stdout
    (kept,) = copies(clone)
    assert (kept / WEIGHTS).read_bytes() == weights
    assert f"kept in {kept}" in done.stdout
    assert snapshot(clone) == before
    assert clone.git("status", "--porcelain") == status


def test_a_clone_has_its_inputs_and_nothing_that_was_computed(
    recorded: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded.path)
    monkeypatch.setenv("GIT_DIR", ".git")  # as in a hook
    data = recorded.read("data/incidents.jsonl")
    recorded.write("data/more/rows.jsonl", data)
    assert recorded.run("dvc", "add", "data/more").returncode == 0
    recorded.git("rm", "--quiet", "--cached", "data/incidents.jsonl")
    assert recorded.run("dvc", "add", "data/incidents.jsonl").returncode == 0
    recorded.commit("Let DVC keep the data")
    head = recorded.git("rev-parse", "HEAD")
    recorded.write("README.md", "A line.\n")
    recorded.commit("Go on")
    record = Record.of_run(head.strip())
    with cloned(record, keep=False) as clone:
        assert (clone / "metrics/full_train.json").is_file()
        bring_inputs(record, clone)
        forget_results(record, clone)
        for file in ("data/incidents.jsonl", "data/more/rows.jsonl"):
            assert (clone / file).read_text(encoding="utf-8") == data
        assert (clone / "data/tokenizer/tokenizer.json").is_file()
        left = ("dvc.lock", "metrics", "models", "gates", "artifacts", "clearance.json")
        assert [name for name in left if list(clone.glob(f"{name}*/*"))] == []
        assert not (clone / "clearance.json").exists()
        assert not (clone / ".dvc/cache").exists()
    assert copies(recorded) == []
    assert recorded.git("log", "-1", "--format=%s") == "Go on\n"
    assert recorded.git("status", "--porcelain") == ""


@pytest.mark.slow
def test_a_signal_ends_what_it_started_and_leaves_nothing(recorded: Project) -> None:
    command = [sys.executable, "-m", "stages.cli", "reproduce", "HEAD"]
    with subprocess.Popen(
        command, cwd=recorded.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        assert any("Running stage 'hash_data'" in line for line in running.stdout)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 143
    assert copies(recorded) == []


def test_another_environment_is_named_before_anything_is_computed(
    recorded: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = recorded.json("training_manifest.json")
    manifest["environment"]["cpu_capability"] = "AVX9"
    recorded.write("training_manifest.json", json.dumps(manifest))
    recorded.commit("Come from another machine")
    monkeypatch.chdir(recorded.path)
    print_environment(Record.of_run("HEAD"))
    told = capsys.readouterr().out
    assert "differs; statistically equal results are expected, not the same bits" in told
    assert "environment cpu_capability: AVX9 (recorded) -> " in told


def forget_data(project: Project) -> None:
    """Let DVC keep the data, and lose what it keeps."""
    project.git("rm", "--quiet", "--cached", "data/incidents.jsonl")
    assert project.run("dvc", "add", "data/incidents.jsonl").returncode == 0
    project.commit("Let DVC keep the data")
    shutil.rmtree(project.path / ".dvc/cache")


def edit_lock(project: Project) -> None:
    (project.path / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n", encoding="utf-8")


def commit_damage(project: Project) -> None:
    project.write("dvc.lock", "stages: [")
    project.commit("Damage the record")


Spoil = Callable[[Project], None]
COULD_NOT: dict[str, tuple[Spoil, str, int | None, str]] = {
    "unknown": (lambda project: None, "v1.2", None, "git does not know the revision 'v1.2' here"),
    "option": (lambda project: None, "--all", None, "git does not know the revision '--all'"),
    "nothing": (
        lambda project: None,
        "HEAD~1",
        None,
        "nothing is recorded at HEAD~1: it has no dvc.lock (the one here is not committed)",
    ),
    "uncommitted": (edit_lock, "HEAD", None, "the dvc.lock here is not the one that HEAD records"),
    "damaged": (commit_damage, "HEAD", None, "dvc.lock of HEAD is damaged"),
    "data": (forget_data, "HEAD", None, "data/incidents.jsonl of HEAD is not in DVC's cache"),
    "telemetry": (
        lambda project: shutil.rmtree(project.path / ".dvc/cache"),
        "HEAD",
        3,
        "reports/full_train/telemetry.csv of HEAD is not in DVC's cache",
    ),
    "more steps than there were": (
        lambda project: None,
        "HEAD",
        9,
        "HEAD took 8 training steps, not 9; take --steps 8",
    ),
    "elsewhere": (
        lambda project: shutil.rmtree(project.path / ".git"),
        "HEAD",
        None,
        "this is not the root of a git repository with a DVC project",
    ),
}


@pytest.mark.parametrize("name", COULD_NOT)
def test_what_cannot_be_told_is_said_in_a_sentence(
    recorded: Project, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, revision, steps, words = COULD_NOT[name]
    spoil(recorded)
    monkeypatch.chdir(recorded.path)
    with pytest.raises(UserError) as refused:
        run(revision, steps, keep=False)
    assert words in str(refused.value)
    assert copies(recorded) == []
