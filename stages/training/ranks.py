"""Which process of a training is this, and what do all of them agree on?

The processes of one training are its ranks. A process that has joined no group is rank 0 of 1, and
all functions here give back what they are given: the gates and a training in one process run the
same code.
"""

import io
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

Value = TypeVar("Value")


_parted = False


def rank() -> int:
    """0 for the process that authorises, reports and writes."""
    return distributed.get_rank() if _together() else 0


def world_size() -> int:
    """Processes that train together, on all nodes."""
    return distributed.get_world_size() if _together() else 1


def _together() -> bool:
    return distributed.is_initialized() and not _parted


def sum_over_ranks(value: float) -> float:
    """The sum of every rank's value, in float64."""
    return _reduce(value, distributed.ReduceOp.SUM)


def largest_over_ranks(value: float) -> float:
    """The largest of every rank's value, in float64."""
    return _reduce(value, distributed.ReduceOp.MAX)


def _reduce(value: float, operation: distributed.ReduceOp.RedOpType) -> float:
    if world_size() == 1:
        return value
    on_gpu = distributed.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    total = torch.tensor(value, dtype=torch.float64, device=device)
    distributed.all_reduce(total, operation)
    return float(total)


def gather(value: Value) -> list[Value]:
    """Every rank's value, of what a checkpoint may hold, in their order, on every rank."""
    if world_size() == 1:
        return [value]
    packed = io.BytesIO()
    torch.save(value, packed)  # pickle alone loses tensors of uint32
    gathered: list[Any] = [None] * world_size()
    distributed.all_gather_object(gathered, packed.getvalue())
    return [torch.load(io.BytesIO(one), weights_only=True) for one in gathered]


def on_first_rank(work: Callable[[], Value]) -> Value:
    """Rank 0 does the work; every rank gets its result.

    When it fails, the launcher ends the ranks that wait.
    """
    if world_size() == 1:
        return work()
    result = [work() if rank() == 0 else None]
    distributed.broadcast_object_list(result)
    return result[0]  # type: ignore[return-value]


def first_rank_first(work: Callable[[], Value]) -> Value:
    """Every rank does the work, once rank 0 has done it: what that mended is whole for all."""
    if rank() > 0:
        wait()
        return work()
    result = work()
    wait()
    return result


def wait() -> None:
    """Until every rank is here."""
    if world_size() > 1:
        distributed.barrier()


def leave() -> None:
    """Part from the other ranks: from here on, this process is rank 0 of 1.

    The group is not destroyed: gloo's thread may need the interpreter lock to let go of a hook that
    is written in Python, while the thread that destroys the group holds it and waits.
    """
    global _parted
    if _together():
        distributed.barrier()
        _parted = True
