"""A training over several processes: through accelerate, with replicas (DDP) or shards (FSDP2).

The micro-batches of a step are dealt to the ranks, and each rank's loss is divided by the
supervised tokens of the whole step. So gradients are summed over the ranks, not averaged: a step is
the same whether one process takes all its micro-batches or several share them.

FSDP2 and NCCL are guarded and have not been run on a GPU; both wrappers are tested with gloo.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..config.errors import Refusal, UserError
from ..config.schema import Run, Train
from .determinism import seed_everything
from .ranks import gather, rank, world_size

if TYPE_CHECKING:
    from accelerate import Accelerator

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others, for instance while rank 0 writes a checkpoint."""


@dataclass(frozen=True)
class Team:
    """How this process trains with others; without an accelerator it trains alone.

    launcher: the process that started this rank, where there are others.
    """

    accelerator: "Accelerator | None" = None
    sharded: bool = False
    launcher: int | None = None

    def has_lost_launcher(self) -> bool:
        """Nobody would end this rank with the others any more."""
        return self.launcher is not None and os.getppid() != self.launcher

    def device(self, alone: torch.device) -> torch.device:
        """This rank's device; `alone` where there are no others."""
        return alone if self.accelerator is None else self.accelerator.device

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to be trained by: `model` itself, a replica around it, or `model` sharded.

        Call it before the optimizer is built: FSDP2 puts other parameters into `model`.
        """
        if self.accelerator is None:
            return model
        if self.sharded:
            return _shard(model, self.accelerator)
        replica: DistributedDataParallel = self.accelerator.prepare_model(model)
        replica.register_comm_hook(None, lambda _, bucket: _sum_bucket(bucket))
        _kept.append(replica)
        return replica


ALONE = Team()
_kept: list[nn.Module] = []
"""Replicas, to the end of the process: one that is freed waits for gloo's thread (see ranks.leave).
"""


def join(train: Train, run: Run) -> Team:
    """Meet the other ranks that the launcher started, as its environment variables say.

    Raises UserError when they are not train.num_processes.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != train.num_processes:
        raise UserError(
            f"params.yaml: 'train.num_processes' is {train.num_processes}, but the launcher "
            f"started {started} (WORLD_SIZE); compose with train.num_processes={started}, or start "
            f"{train.num_processes}"
        )
    if started == 1:
        return ALONE
    from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    from accelerate.utils import FullyShardedDataParallelPlugin

    sharded = train.distributed == "fsdp2"
    # DDP sorts its buckets anew after the first step unless it looks for unused parameters: a
    # resumed run would then add up in another order than one that was never broken off
    replicas = DistributedDataParallelKwargs(find_unused_parameters=True)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, reshard_after_forward=True, cpu_ram_efficient_loading=False
    )
    accelerator = Accelerator(
        cpu=run.device == "cpu",
        mixed_precision="no",  # the step's own autocast is that of the gates
        kwargs_handlers=[replicas, InitProcessGroupKwargs(timeout=PATIENCE)],
        fsdp_plugin=plugin if sharded else None,
    )
    accelerator.state.fsdp_plugin = plugin if sharded else None  # it sets none on a CPU
    return Team(accelerator, sharded, os.getppid())


def seed_rank(seed: int) -> None:
    """Give every rank random numbers of its own, once the model is built; rank 0 keeps its own."""
    if rank() > 0:
        seed_everything((seed + rank()) % 2**32)


def _shard(model: nn.Module, accelerator: "Accelerator") -> nn.Module:
    from accelerate.utils import fsdp2_prepare_model

    sharded: nn.Module = fsdp2_prepare_model(accelerator, model)
    for module in sharded.modules():
        if is_sharded(module):
            module.set_gradient_divide_factor(1.0)  # type: ignore[operator]
            module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    return sharded


def is_sharded(model: nn.Module) -> bool:
    """Does each rank hold a part of the weights only?"""
    if world_size() == 1:
        return False
    from torch.distributed.fsdp import FSDPModule  # a second of imports

    return isinstance(model, FSDPModule)


def _sum_bucket(bucket: Any) -> Any:
    """What DDP does with a bucket of gradients: add it up over the ranks."""
    work = distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


@contextmanager
def reducing(model: nn.Module, now: bool) -> Iterator[None]:
    """In here, a forward and backward pass reduces gradients over the ranks only if `now`.

    Those of the others are kept, and go with the next that does.
    """
    if isinstance(model, DistributedDataParallel) and not now:
        with model.no_sync():
            yield
        return
    if is_sharded(model):
        model.set_requires_gradient_sync(now)  # type: ignore[operator]
    yield


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor, put together where every rank holds a shard of it. Every rank has to ask."""
    put_together: torch.Tensor = getattr(tensor, "full_tensor", lambda: tensor)()
    return put_together


def model_state(model: nn.Module) -> dict[str, Any]:
    """model.state_dict(); of shards, put together on the CPU of rank 0. Every rank has to ask."""
    if not is_sharded(model):
        return model.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)


def load_model_state(model: nn.Module, state: dict[str, Any]) -> set[str]:
    """What `model_state` gave to rank 0, read on every rank, back into the model.

    Returns the names of tensors that only one of the two has.
    """
    if not is_sharded(model):
        missing, unexpected = model.load_state_dict(state, strict=False)
        return {*missing, *unexpected}
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True, strict=False)
    missing, unexpected = set_model_state_dict(model, state, options=options)
    return {*missing, *unexpected}


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """optimizer.state_dict(), as `model_state`; of shards with the names of the parameters."""
    if not is_sharded(model):
        return optimizer.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_optimizer_state_dict(model, optimizer, options=options)


def load_optimizer_state(model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """What `optimizer_state` gave to rank 0, read on every rank, back into the optimizer."""
    if not is_sharded(model):
        optimizer.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer, state, options=options)


def check_replicas(model: nn.Module, step: int) -> None:
    """Raise Refusal when the trainable weights are not the same on every rank.

    Shards are no replicas: of FSDP2 there is nothing to compare.
    """
    if world_size() == 1 or is_sharded(model):
        return
    digest = sha256()
    for parameter in model.parameters():
        if parameter.requires_grad:
            flat = parameter.detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    digests = gather(digest.hexdigest())
    others = [number for number, other in enumerate(digests) if other != digests[0]]
    if others:
        raise Refusal(
            f"training stopped after {step} steps: the weights of rank {others[0]} are not those "
            "of rank 0. No model was written; look for code of your own that changes weights "
            "outside the optimizer or differs between ranks, or for a faulty device"
        )
