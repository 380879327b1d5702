"""Checkpoints are whole or ignored, rotated, and locked."""

import hashlib
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.config import Refusal, UserError
from stages.training.checkpoint import CheckpointDirectory, checkpoint_root
from stages.training.determinism import rng_state

from ..settings import ROOT, run_python

CPU = torch.device("cpu")
RUN = "0123456789abcdef" * 4
WEIGHT = torch.arange(64.0)
STATE = {"model": {"weight": WEIGHT + 1}, "telemetry": [{"loss": 0.5, "seen": None}]}
OTHER = {"model": {"weight": WEIGHT}, "telemetry": [{"loss": 0.25, "seen": 3}]}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def checkpoints() -> Iterator[CheckpointDirectory]:
    directory = CheckpointDirectory(RUN, keep=2)
    with directory.locked():
        yield directory


def saved(checkpoints: CheckpointDirectory) -> list[str]:
    """Names of all files but the lock, the digests in them left out."""
    names = (path.name for path in checkpoints.path.iterdir() if path.name != "lock")
    return sorted(re.sub(r"-[0-9a-f]{16}\.pt$", ".pt", name) for name in names)


def file_of(checkpoints: CheckpointDirectory, step: int) -> Path:
    [path] = checkpoints.path.glob(f"step-{step}-*.pt")
    return path


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.equal(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)


def test_a_run_has_a_directory_of_its_own() -> None:
    assert CheckpointDirectory(RUN, 1).path == Path("checkpoints/0123456789abcdef")


def test_a_root_of_its_own_leaves_the_checkpoints_of_the_repository_alone(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(RUN, 1, tmp_path / "elsewhere")
    with checkpoints.locked():
        checkpoints.save(1, STATE)
    assert checkpoints.path == tmp_path / "elsewhere/0123456789abcdef"
    assert equal(checkpoints.load_latest(), STATE)
    assert not Path("checkpoints").exists()


def test_an_experiment_in_the_queue_keeps_its_checkpoints_in_the_main_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "repository/.dvc/tmp/exps/tmpabc/project"
    workspace.mkdir(parents=True)
    monkeypatch.chdir(workspace)
    assert checkpoint_root() == tmp_path / "repository/checkpoints"


def test_a_project_below_a_directory_called_exps_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exps/project").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "exps/project")
    assert checkpoint_root() == Path("checkpoints")


def test_without_a_checkpoint_there_is_nothing_to_resume(
    checkpoints: CheckpointDirectory,
) -> None:
    assert checkpoints.load_latest() is None


def test_the_newest_checkpoint_is_loaded(checkpoints: CheckpointDirectory) -> None:
    checkpoints.save(1, STATE)
    checkpoints.save(2, OTHER)
    loaded = checkpoints.load_latest()
    assert loaded is not None
    assert equal(loaded, OTHER)
    assert saved(checkpoints) == ["step-1.pt", "step-2.pt"]


def test_a_checkpoint_is_named_by_its_step_and_the_digest_of_its_bytes(
    checkpoints: CheckpointDirectory,
) -> None:
    checkpoints.save(50, STATE)
    [path] = checkpoints.path.glob("*.pt")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f"step-50-{digest[:16]}.pt"


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_exactly_so_many_checkpoints_are_kept(keep: int) -> None:
    checkpoints = CheckpointDirectory(RUN, keep)
    with checkpoints.locked():
        for step in range(1, 6):
            checkpoints.save(step, STATE)
            assert len(saved(checkpoints)) == min(step, keep)
    assert saved(checkpoints) == [f"step-{step}.pt" for step in range(6 - keep, 6)]


def test_the_millionth_step_is_newer_than_the_one_before(
    checkpoints: CheckpointDirectory,
) -> None:
    for step, state in ((999_998, STATE), (999_999, STATE), (1_000_000, OTHER)):
        checkpoints.save(step, state)
    loaded = checkpoints.load_latest()
    assert loaded is not None
    assert equal(loaded, OTHER)


def test_states_of_generators_stay_on_the_cpu_whatever_the_device(
    checkpoints: CheckpointDirectory,
) -> None:
    checkpoints.save(1, {"rng": rng_state()})
    with torch.device("meta"):
        loaded = checkpoints.load_latest()
    assert loaded is not None
    assert loaded["rng"]["torch"].device == CPU
    assert loaded["rng"]["numpy"][0].device == CPU


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    match how:
        case "empty":
            content.clear()
        case "cut off":
            del content[len(content) // 2 :]
        case "zeroed tail":
            content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
        case "text":
            content[:] = b"not a checkpoint\n"
        case "weight":
            place = content.index(WEIGHT.numpy().tobytes())
            content[place + 7] ^= 1
        case "name":
            place = content.index(b"telemetry")
            content[place] ^= 0x80
        case "number":
            place = content.index(b"telemetry")
            content[place + 9] = 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    "how", ["empty", "cut off", "zeroed tail", "text", "weight", "name", "number"]
)
def test_a_damaged_checkpoint_falls_back_to_the_older_one_and_says_so(
    checkpoints: CheckpointDirectory, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    checkpoints.save(1, STATE)
    checkpoints.save(2, OTHER)
    path = file_of(checkpoints, 2)
    damage(path, how)
    loaded = checkpoints.load_latest()
    assert loaded is not None
    assert equal(loaded, STATE)
    assert capsys.readouterr().out == (
        f"warning: {path} is damaged and was removed; looking for an older checkpoint\n"
    )


def test_no_flipped_bit_is_loaded_or_ends_in_a_traceback(
    checkpoints: CheckpointDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints.save(1, STATE)
    path = file_of(checkpoints, 1)
    content = path.read_bytes()
    wrong = {}
    for place in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        path.write_bytes(flipped)
        try:
            loaded = checkpoints.load_latest()
        except Exception as error:
            wrong[place] = type(error).__name__
        else:
            if loaded is not None and not equal(loaded, STATE):
                wrong[place] = "other content"
    capsys.readouterr()
    assert wrong == {}


def test_when_every_checkpoint_is_damaged_the_run_starts_anew(
    checkpoints: CheckpointDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        checkpoints.save(step, STATE)
        damage(file_of(checkpoints, step), "cut off")
    assert checkpoints.load_latest() is None
    assert capsys.readouterr().out.count("is damaged") == 2


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("digest", ["its own", "0123456789abcdef"])
def test_a_malicious_checkpoint_is_refused_and_not_executed(
    checkpoints: CheckpointDirectory, zipped: bool, digest: str
) -> None:
    checkpoints.save(1, STATE)
    path = checkpoints.path / "malicious"
    if zipped:
        torch.save({"model": Malicious()}, path)
    else:
        path.write_bytes(pickle.dumps(Malicious(), protocol=2))
    if digest == "its own":
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    path.rename(checkpoints.path / f"step-2-{digest}.pt")
    loaded = checkpoints.load_latest()
    assert loaded is not None
    assert equal(loaded, STATE)
    assert not Path("executed").exists()


def test_a_checkpoint_that_was_never_finished_is_not_loaded(
    checkpoints: CheckpointDirectory,
) -> None:
    checkpoints.save(1, STATE)
    (checkpoints.path / "step-2.partial").write_bytes(b"half")
    loaded = checkpoints.load_latest()
    assert loaded is not None
    assert equal(loaded, STATE)


FULL_DISK = """
import resource, signal, sys, torch
from stages.config.launch import guarded
from stages.training.checkpoint import CheckpointDirectory
checkpoints = CheckpointDirectory(sys.argv[1], 2)
with checkpoints.locked():
    if sys.argv[2] != "none":
        checkpoints.save(1, {"weight": torch.ones(8)})
    if sys.argv[2] == "killed":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
    guarded(lambda: checkpoints.save(2, {"weight": torch.zeros(100000)}))
"""


@pytest.mark.parametrize(
    ("older", "kept", "files"),
    [
        ("older", "the checkpoint before it is kept", ["step-1.pt"]),
        ("none", "none was saved before", []),
    ],
)
def test_a_full_disk_keeps_the_checkpoint_before(
    tmp_path: Path, older: str, kept: str, files: list[str]
) -> None:
    done = run_python(FULL_DISK, RUN, older, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: checkpoints/0123456789abcdef/step-2.pt could not be written ("
    )
    assert done.stderr.endswith(
        f"); {kept}. Free space on the disk, then `dvc repro` goes on from there\n"
    )
    checkpoints = CheckpointDirectory(RUN, 2)
    assert saved(checkpoints) == files
    loaded = checkpoints.load_latest()
    assert loaded is None if not files else equal(loaded, {"weight": torch.ones(8)})


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_python(FULL_DISK, RUN, "killed", cwd=tmp_path)
    assert done.returncode == -signal.SIGXFSZ
    checkpoints = CheckpointDirectory(RUN, 2)
    assert saved(checkpoints) == ["step-1.pt", "step-2.partial"]
    assert equal(checkpoints.load_latest(), {"weight": torch.ones(8)})
    assert capsys.readouterr().out == ""


def test_a_checkpoint_that_cannot_be_written_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"step-1\.pt could not be written \("):
        CheckpointDirectory(RUN, 2).save(1, STATE)


HOLDER = """
import sys
from stages.training.checkpoint import CheckpointDirectory
with CheckpointDirectory(sys.argv[1], 2).locked():
    print("holding", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_cannot_train_the_same_run(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, RUN],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        with pytest.raises(Refusal) as caught, CheckpointDirectory(RUN, 2).locked():
            pass
        assert str(caught.value) == (
            "another process is training this very run (it holds "
            "checkpoints/0123456789abcdef/lock); wait for it, or stop it"
        )
        with CheckpointDirectory("f" * 64, 2).locked():
            assert Path("checkpoints/ffffffffffffffff/lock").exists()
        holder.communicate()
    with CheckpointDirectory(RUN, 2).locked():
        assert holder.returncode == 0


def test_the_lock_of_a_killed_process_does_not_stay(tmp_path: Path) -> None:
    source = HOLDER.replace("sys.stdin.read()", "import os; os.kill(os.getpid(), 9)")
    assert run_python(source, RUN, cwd=tmp_path).returncode == -9
    with CheckpointDirectory(RUN, 2).locked():
        assert Path("checkpoints/0123456789abcdef/lock").exists()


def test_a_finished_run_leaves_nothing(checkpoints: CheckpointDirectory) -> None:
    checkpoints.save(1, STATE)
    (checkpoints.path / "step-2.partial").write_bytes(b"half")
    checkpoints.remove()
    assert not checkpoints.path.exists()
