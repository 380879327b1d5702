"""Run a command as `main` runs it, in this process, and see what its user would see."""

import contextlib
import importlib
import io
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from stages.cli import main
from stages.config.launch import run_stage

SECONDS, SECONDS_OF_WAITING = 10, 60
"""What computes, or waits, for longer hangs."""


class Hung(BaseException):
    """The command did not end in time; no handler of an Exception can swallow this."""


@dataclass(frozen=True)
class Outcome:
    """code: the exit code, None where the process would have died with a traceback."""

    code: int | None
    output: str
    errors: str
    trace: str = ""

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.errors}\n{self.trace}\n{self.output[-2000:]}"

    @property
    def sentence(self) -> str:
        """What `error: ` says; fails unless it is one line and no traceback."""
        assert self.code in (1, 2), str(self)
        lines = [line for line in self.errors.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, str(self)
        return lines[0]


def assert_refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2, and one sentence that holds all of `words`."""
    assert outcome.code == 2, str(outcome)
    assert "Traceback" not in outcome.errors, str(outcome)
    assert [word for word in words if word not in outcome.sentence] == [], str(outcome)


def holdshort(*arguments: str | Path) -> Outcome:
    """`holdshort ARGUMENTS`."""
    return observe(lambda: main([str(one) for one in arguments]))


def stage(name: str) -> Outcome:
    """`python -m stages.NAME` in the current directory."""
    module = importlib.import_module(f"stages.{name}")
    return observe(lambda: run_stage(name, module.main))


def observe(work: Callable[[], Any]) -> Outcome:
    """What becomes of `work`, which has SECONDS seconds."""
    output, errors, code, trace = io.StringIO(), io.StringIO(), None, ""
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        limited(),
    ):
        try:
            work()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except Hung:
            trace = f"hung for more than {SECONDS} s:\n{traceback.format_exc()}"
        except BaseException:
            trace = traceback.format_exc()
    return Outcome(code, output.getvalue(), errors.getvalue(), trace)


@contextmanager
def limited() -> Iterator[None]:
    """Raise Hung after SECONDS of computing, or much longer of waiting, on however busy a machine.

    SIGVTALRM is left to the product.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hung

    signals = (signal.SIGPROF, signal.SIGUSR1)
    before = [signal.signal(number, stop) for number in signals]
    waiting = threading.Timer(SECONDS_OF_WAITING, os.kill, (os.getpid(), signal.SIGUSR1))
    waiting.start()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        waiting.cancel()
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def inside(directory: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
