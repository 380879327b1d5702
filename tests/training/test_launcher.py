"""Ranks are started only where each has a device, and end with one code."""

import signal
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from stages.config import Refusal, UserError
from stages.training.launcher import _exit_code, run_ranks


def failed(*exit_codes: int) -> ChildFailedError:
    """Ranks that ended one after the other with these codes; negative: by a signal."""
    failures = {}
    for rank, code in enumerate(exit_codes):
        failures[rank] = ProcessFailure(rank, 100 + rank, code, error_file="none")
        failures[rank].timestamp = 1000 + rank
    return ChildFailedError("stage", failures)


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        UserError, match=r"'train\.num_processes' is 2, but this machine has 1 GPUs"
    ):
        run_ranks("full_train", 2, "cuda")


def test_the_code_is_that_of_the_rank_that_failed_by_itself() -> None:
    assert _exit_code(failed(2, 1)) == 2
    assert _exit_code(failed(-signal.SIGTERM, 1)) == 1


def test_ranks_that_were_killed_are_a_refusal() -> None:
    with pytest.raises(Refusal, match="rank 0 was ended by SIGKILL"):
        _exit_code(failed(-signal.SIGKILL, -signal.SIGTERM))


@pytest.mark.parametrize("code", [0, 3])
def test_ranks_run_the_stage_and_give_back_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/__init__.py").touch()
    source = f"""import os, pathlib, sys
pathlib.Path(os.environ["RANK"]).write_text(os.environ["WORLD_SIZE"])
sys.exit({code})
"""
    (tmp_path / "stages/echo.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert run_ranks("echo", 2, "cpu") == code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code == 0:
        assert [(tmp_path / rank).read_text() for rank in "01"] == ["2", "2"]
