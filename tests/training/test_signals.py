"""A signal asks a training to stop; a second one stops it at once."""

import os
import signal
from pathlib import Path

import pytest

from stages.training.signals import StopRequest, catching_stop_signals

from ..settings import run_python

TRAINING = """
import signal, sys
from stages.training.signals import catching_stop_signals
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
number, times = signal.Signals[sys.argv[1]], int(sys.argv[2])
with catching_stop_signals() as request:
    for step in range(3):
        if step == 1:
            for _ in range(times):
                signal.raise_signal(number)
        print("step", step, flush=True)
        if request.signal is not None:
            print("saved", flush=True)
            sys.exit(request.exit_code)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_becomes_a_request(number: signal.Signals, code: int) -> None:
    with catching_stop_signals() as request:
        assert request.signal is None
        os.kill(os.getpid(), number)
        assert request.signal == number
    assert request.exit_code == code


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_the_step_under_way_ends_and_the_exit_code_is_the_shells(
    tmp_path: Path, name: str, code: int
) -> None:
    done = run_python(TRAINING, name, "1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "step 0\nstep 1\nsaved\n")


def test_a_second_interrupt_ends_the_process_at_once(tmp_path: Path) -> None:
    done = run_python(TRAINING, "SIGINT", "2", cwd=tmp_path)
    assert done.returncode != 0
    assert done.stdout == "step 0\n"
    assert "KeyboardInterrupt" in done.stderr


def test_a_second_termination_ends_the_process_at_once(tmp_path: Path) -> None:
    done = run_python(TRAINING, "SIGTERM", "2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "step 0\n")


def test_the_handlers_from_before_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ZeroDivisionError), catching_stop_signals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_request_that_never_came_has_no_exit_code() -> None:
    with pytest.raises(AssertionError):
        StopRequest().exit_code  # noqa: B018
