"""Kill a training at a moment that matters."""

import os
import signal
import subprocess
import time
from typing import Any

from ..project import Project


def wait_for_step(project: Project, training: subprocess.Popen[Any], step: int) -> None:
    """Wait until `training`, which was just started, has itself computed `step` or a later one."""
    before = len(project.computed_steps())
    while not any(one >= step for one in project.computed_steps()[before:]):
        assert training.poll() is None, "the training ended before it was stopped"
        time.sleep(0.005)


def stop_inside_write(project: Project, training: subprocess.Popen[Any], writer: int) -> None:
    """Halt the process `writer` (SIGSTOP) while half of a checkpoint is on the disk.

    A small model is written within milliseconds: a write that was seen too late is let go, and the
    next one is waited for.
    """
    checkpoints = project.path / "checkpoints"
    while True:
        assert training.poll() is None, "the training ended before it was stopped"
        if any(checkpoints.glob("*/*.partial")):
            os.kill(writer, signal.SIGSTOP)
            if any(checkpoints.glob("*/*.partial")):
                return
            os.kill(writer, signal.SIGCONT)
