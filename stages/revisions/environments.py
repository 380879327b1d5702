"""An environment of its own for a revision: what its requirements.lock pins, made once and kept.

Kept below `$XDG_CACHE_HOME/holdshort/environments` (`~/.cache/...`), by the sha256 of the lock and
the version of Python. What pip printed lies beside it.
"""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ..config.errors import UserError
from ..config.lock import holding
from ..provenance.base_model import cache_directory
from ..provenance.environment import Environment
from ..report.terminal import console
from .comparison import REQUIREMENTS, requirements
from .record import Record
from .scratch import environment_for, started

MADE = ".holdshort-installed"
PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--retries", "2", "--no-input")
OFFLINE = ("Failed to establish a new connection", "connection broken by", "name resolution")
ASK = (
    "import json, sys; from stages.provenance.environment import compute_environment; "
    "print(json.dumps(compute_environment(*json.loads(sys.argv[1]))))"
)


def environment_directory(lock: bytes) -> Path:
    """Where the environment of a requirements.lock lies, made or not."""
    name = f"{hashlib.sha256(lock).hexdigest()[:16]}-{sys.implementation.cache_tag}"
    return cache_directory().absolute() / "environments" / name


@contextmanager
def installed(record: Record, project: Path) -> Iterator[Path]:
    """Python of an environment with what a revision pins, and with `project`, its checkout.

    Raises UserError when it cannot be made, or while another process uses it.
    """
    lock = record.read(REQUIREMENTS)
    if lock is None:
        raise UserError(
            f"{record.name} has no {REQUIREMENTS} that says what to install; leave out --venv"
        )
    directory = environment_directory(lock)
    python = directory / "bin" / "python"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with held(directory.with_suffix(".lock")):
        if (directory / MADE).is_file():
            console.print(f"environment of {record.name}: {directory}, made before")
        else:
            begun = time.monotonic()
            number = len(requirements(record))
            console.print(f"installing {number} packages for {record.name} in {directory}")
            _venv(directory)
            _pip(python, project, "-r", REQUIREMENTS)
            (directory / MADE).touch()
            console.print(f"installed in {time.monotonic() - begun:.0f} s")
        _pip(python, project, "--no-deps", "--no-build-isolation", "-e", ".")
        yield python


def held(path: Path) -> AbstractContextManager[None]:
    """Hold the environment for this process: in it lies the checkout of one revision at a time."""
    busy = f"another `holdshort reproduce --venv` uses this environment (it holds {path})"
    return holding(path, UserError(f"{busy}; wait for it, or stop it"))


def _venv(directory: Path) -> None:
    command = [sys.executable, "-m", "venv", "--clear", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())
        raise UserError(f"no environment could be made in {directory}: {reason}")


def _pip(python: Path, project: Path, *arguments: str) -> None:
    """Install; what pip prints goes to a log, and what it is at to the terminal."""
    log = python.parent.parent.with_suffix(".log")
    command = [str(python), *PIP, *arguments]
    with (
        log.open("w", encoding="utf-8") as written,
        console.status("installing") as status,
        started(command, project, python, subprocess.PIPE, subprocess.STDOUT) as running,
    ):
        assert running.stdout is not None
        for line in running.stdout:
            written.write(line)
            if line.startswith(("Collecting", "Downloading", "Installing", "Building")):
                status.update(line.strip()[:100])
    if running.returncode:
        raise UserError(f"{_why(log.read_text(encoding='utf-8').splitlines())}; pip's log is {log}")


def _why(printed: Sequence[str]) -> str:
    """What pip failed over, in one sentence."""
    if any(words in line for line in printed for words in OFFLINE):
        return (
            "the package registry cannot be reached, so the environment was not made; run this "
            "again with a network, or without --venv"
        )
    errors = [line for line in printed if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else "\n".join(printed[-3:])
    return f"the environment could not be made ({' '.join(reason.split())})"


def environment_in(
    python: Path, project: Path, device: str, precision: str, cpu_threads: int
) -> Environment | None:
    """What computes in an environment; None where the code of the revision does not tell."""
    command = [str(python), "-c", ASK, json.dumps([device, precision, cpu_threads])]
    done = subprocess.run(
        command,
        cwd=project,
        env=environment_for(python),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return dict(json.loads(done.stdout)) if done.returncode == 0 else None
    except ValueError:
        return None
