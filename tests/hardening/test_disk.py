"""A disk that refuses, is full or read only: one sentence, and nothing half written."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stages.config.launch import pinned_environment

from ..project import Project
from .corpus import curve_csv
from .outcome import assert_refused, holdshort, inside, stage

pytestmark = pytest.mark.slow

NOBODY = 65534


@pytest.fixture(scope="module", autouse=True)
def imported(fresh_template: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All modules that the commands need, some of which nobody else may read."""
    project = fresh_template.copy(tmp_path_factory.mktemp("imported") / "project")
    with inside(project.path):
        assert stage("hash_data").code == 0
        assert holdshort("compose", "--check").code in (0, 1)


@pytest.fixture
def project(fresh: Project) -> Project:
    return fresh


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may read all: let the file system take this thread for nobody's."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid():
        yield
        return
    libc.setfsuid(NOBODY)
    try:
        yield
    finally:
        libc.setfsuid(0)


def forbid(path: Path, mode: int = 0) -> None:
    """Of root's own directories nobody may enter a temporary one, so it is opened to all."""
    for parent in path.parents:
        if parent.stat().st_uid == os.geteuid() and len(parent.parts) > 2:
            parent.chmod(parent.stat().st_mode | 0o055)
    path.chmod(mode)


@pytest.mark.parametrize(
    "name", ["data/incidents.jsonl", "params.yaml", "dvc.yaml", "conf/config.yaml"]
)
def test_a_file_that_may_not_be_read_is_named(project: Project, name: str) -> None:
    project.run("chmod", "-R", "a+rwX", ".")
    forbid(project.path / name)
    with inside(project.path), without_privileges():
        done = holdshort("compose", "--check") if "conf" in name else stage("hash_data")
    assert_refused(done, Path(name).name)
    assert "ermission" in done.sentence


@pytest.mark.parametrize("name", ["artifacts", "reports", "metrics", "gates"])
def test_a_directory_that_may_not_be_written_is_named(project: Project, name: str) -> None:
    project.run("chmod", "-R", "a+rwX", ".")
    directory = project.path / name
    directory.mkdir(exist_ok=True)
    forbid(directory, 0o555)
    with inside(project.path), without_privileges():
        done = stage("hash_data")
    directory.chmod(0o755)
    assert_refused(done, name)
    assert not project.exists("gates/hash_data.json")


@pytest.mark.parametrize("name", ["artifacts", "reports", "metrics", "gates"])
def test_a_file_where_a_directory_should_be_is_named(project: Project, name: str) -> None:
    project.run("rm", "-rf", name)
    project.write(name, "a file where a directory should be")
    with inside(project.path):
        done = stage("hash_data")
    assert_refused(done, name)
    assert not project.exists("gates/hash_data.json")


TRAIN = """
import ctypes
libc = ctypes.CDLL(None)
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(header, sets) == 0
sets[0] &= ~0b110
assert libc.capset(header, sets) == 0
from stages import full_train
from stages.config.launch import run_stage
run_stage("full_train", full_train.main)
"""
"""Without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, modes hold for root too."""


@pytest.mark.parametrize("obstacle", ["file", "read_only"])
@pytest.mark.parametrize("name", ["checkpoints", "models", "reports"])
def test_a_training_that_may_not_write_says_where_and_keeps_what_it_has(
    cleared: Project, name: str, obstacle: str
) -> None:
    """In a process of its own, pinned as a training is."""
    cleared.run("rm", "-r", "models", "logs", "reports/full_train")
    taken = cleared.path / name
    if obstacle == "file":
        cleared.run("rm", "-rf", name)
        taken.touch()
    else:
        taken.mkdir(exist_ok=True)
        taken.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-B", "-c", TRAIN],
        cwd=cleared.path,
        env={**os.environ, **pinned_environment(1)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert name in line
    assert not cleared.exists("models/final")
    if name != "checkpoints":
        assert list(cleared.path.glob("checkpoints/*/step-6-*.pt"))


@pytest.mark.parametrize("command", ["diagnose", "budget", "keep"])
def test_a_place_for_a_report_that_is_none_is_named(project: Project, command: str) -> None:
    project.write("log.csv", curve_csv().decode())
    project.write("taken", "a file where a directory should be")
    arguments = {
        "diagnose": ("diagnose", "log.csv", "--report", "taken/report"),
        "budget": ("budget", "--output", "taken/file.json"),
        "keep": ("keep", "taken", "name"),
    }[command]
    with inside(project.path):
        assert_refused(holdshort(*arguments), "taken")


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import runpy
runpy.run_module("stages.{stage}", run_name="__main__")
"""


@pytest.mark.parametrize("size", [0, 100, 5000, 20000])
def test_a_full_disk_leaves_no_verdict(project: Project, size: int) -> None:
    """In a process of its own: the limit holds for all that it writes."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", FULL.format(size=size, stage="hash_data")],
        cwd=project.path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
    assert "File too large" in done.stderr
    assert not project.exists("gates/hash_data.json")
