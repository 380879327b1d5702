"""Start the ranks of a training on this machine, as torchrun does, and end with their exit code."""

import logging
import os
import sys
import tempfile
import uuid

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..config.errors import Refusal, UserError

TIME_TO_SAVE = 3600
"""Seconds that ranks may take for the step under way and a checkpoint after a signal."""


def run_ranks(stage: str, num_processes: int, device: str, *arguments: str) -> int:
    """Run `python -m stages.<stage>` as `num_processes` ranks; 0, or the code of the first to fail.

    arguments: for the command line of each rank.

    SIGINT and SIGTERM go on to the ranks. Raises UserError when there are fewer GPUs than ranks,
    and Refusal when a rank was killed.
    """
    if device == "cuda" and torch.cuda.device_count() < num_processes:
        raise UserError(
            f"params.yaml: 'train.num_processes' is {num_processes}, but this machine has "
            f"{torch.cuda.device_count()} GPUs; lower it, or start the ranks on several machines "
            "yourself (README, More than one GPU)"
        )
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the ranks speak themselves
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of what `join` asks of it
    with tempfile.TemporaryDirectory() as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            signals_to_handle="SIGTERM,SIGINT",
            shutdown_timeout=TIME_TO_SAVE,
        )
        try:
            elastic_launch(config, sys.executable)("-m", f"stages.{stage}", *arguments)
        except SignalException as signalled:
            return 128 + signalled.sigval.value
        except ChildFailedError as failed:
            return _exit_code(failed)
    return 0


def _exit_code(failed: ChildFailedError) -> int:
    """That of the rank that failed first by itself. Raises Refusal when none did."""
    ended = sorted(failed.failures.values(), key=lambda failure: failure.timestamp)
    for failure in ended:
        if failure.exitcode > 0:
            return failure.exitcode
    first = ended[0]
    raise Refusal(
        f"rank {failed.get_first_failure()[0]} was ended by {first.signal_name()}, and the others "
        "were stopped. No model was written; `dvc repro` goes on from the last checkpoint"
    )
