"""Run a revision again beside the work tree: a clone of its own, its inputs, none of its results.

The clone has a cache of its own, which stays empty: data comes from the project's cache or remote,
and nothing that a stage made comes from anywhere but that stage.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ..config.errors import UserError
from .record import LOCK, Record, outputs, overlap

PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""They would bring packages of this environment into another."""
REPOSITORY_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""A hook of git has them set: they would turn what is meant for the clone to the project."""
HERE = Path(sys.executable)
"""Python of the environment in which this process runs."""
FAILED_STAGE = re.compile(r"failed to reproduce '([^']+)'.*exited with (-?\d+)")


@contextmanager
def cloned(record: Record, keep: bool) -> Iterator[Path]:
    """A clone with the commit of a record checked out; removed at the end unless it is to be kept.

    Also when SIGINT or SIGTERM ends this process. Raises UserError when git cannot make it.
    """
    below = Path(record.fs.repo.tmp_dir)  # ignored by git and DVC, and on the project's disk
    below.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="reproduce-", dir=below))
    with exiting_on_sigterm():
        try:
            _git("clone", "--quiet", "--shared", "--no-checkout", ".", str(path))
            _git("-C", str(path), "checkout", "--quiet", "--detach", str(record.commit))
            yield path
        finally:
            if not keep:
                shutil.rmtree(path, ignore_errors=True)


def _git(*arguments: str) -> None:
    done = subprocess.run(
        ["git", *arguments], env=environment_for(HERE), capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = " ".join(done.stderr.split())
        raise UserError(f"git {arguments[0]} failed, so nothing was run again: {reason}")


def environment_for(python: Path) -> dict[str, str]:
    """This process's own variables, but `python` and `dvc` are those beside `python`."""
    left = REPOSITORY_VARIABLES if python == HERE else (*REPOSITORY_VARIABLES, *PYTHON_VARIABLES)
    kept = {name: value for name, value in os.environ.items() if name not in left}
    return kept | {"PATH": f"{python.parent}{os.pathsep}{kept.get('PATH', os.defpath)}"}


def forget_results(record: Record, project: Path) -> None:
    """Remove dvc.lock and every output of a stage that git brought along."""
    (project / LOCK).unlink()
    for stage in record.lock:
        for path in map(project.joinpath, outputs(record.lock, stage)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def bring_inputs(record: Record, project: Path) -> None:
    """Copy what DVC tracks and a stage depends on; what git tracks is there already.

    Raises UserError, naming it, when it is not in the cache and not in a remote.
    """
    stages = record.fs.repo.index.stages
    deps = [dep.fs_path for stage in stages if stage.cmd for dep in stage.deps]
    tracked = [out.fs_path for stage in stages if not stage.cmd for out in stage.outs]
    for path in (path.lstrip("/") for path in tracked if any(overlap(path, dep) for dep in deps)):
        if not record.fetch(path, project / path):
            raise UserError(
                f"{path} of {record.name} is not in DVC's cache and cannot be had from a remote; "
                "bring it with `dvc fetch --all-commits`, or run this where the data is"
            )


def run_stages(project: Path, stages: Sequence[str], python: Path) -> str | None:
    """Compute stages and what they need, all of it anew; the name of a stage that refused, or None.

    Raises UserError when a stage could not do its work.
    """
    options = ("--force", "--no-run-cache", "--no-commit")
    code, printed = run_here(project, python, "-m", "dvc", "repro", *options, *stages)
    if code == 0:
        return None
    failed = FAILED_STAGE.search(printed)
    if failed and failed[2] == "1":
        return failed[1]
    stage = f"stage '{failed[1]}' (exit code {failed[2]})" if failed else "`dvc repro`"
    raise UserError(f"{stage} could not be run again; what it printed says why")


def run_here(project: Path, python: Path, *arguments: str) -> tuple[int, str]:
    """Run Python in `project`; its exit code and what it printed as errors, which are shown too."""
    command = [str(python), *arguments]
    with started(command, project, python, None, subprocess.PIPE) as running:
        assert running.stderr is not None
        lines = []
        for line in running.stderr:
            sys.stderr.write(line)
            lines.append(line)
    return running.returncode, "".join(lines)


@contextmanager
def started(
    command: Sequence[str], project: Path, python: Path, stdout: int | None, stderr: int
) -> Iterator[subprocess.Popen[str]]:
    """A command that runs in `project`, and is waited for.

    What ends the wait for it ends the command with all that it started.
    """
    with subprocess.Popen(
        command,
        cwd=project,
        env=environment_for(python),
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            yield running
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)  # nothing in there is worth a checkpoint
            raise


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """Have SIGTERM end this process as an exception does: what was begun is cleaned up."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
