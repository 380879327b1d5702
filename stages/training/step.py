"""THE training step: accumulate, backward, unscale, clip, step, schedule, zero.

The overfit gate, the gradient probe and full training all call this function. A step of your own
(`train.step._target_`) takes the same arguments and returns a StepResult; the probes watch the
model and the optimizer from outside, so that they see what it really does.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..chat.collator import Batch
from .loss import LossFunction, count_targets
from .parallel import reducing, whole
from .ranks import sum_over_ranks

Autocast = Callable[[], AbstractContextManager[None]]
Veto = Callable[[float, float], bool]
"""Given the loss and the gradient norm of a step, says whether its update must not be applied."""


@dataclass(frozen=True)
class StepResult:
    """loss: nats per supervised token; grad_norm: global L2 norm before clipping.

    skipped: the optimizer was not called, because a scaled float16 gradient overflowed or the
    step was vetoed.
    """

    loss: float
    grad_norm: float
    learning_rate: float
    supervised_tokens: int
    skipped: bool = False


class TrainStep(Protocol):
    def __call__(
        self,
        model: nn.Module,
        micro_batches: Sequence[Batch],
        *,
        loss_fn: LossFunction,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        max_grad_norm: float,
        autocast: Autocast,
        scaler: GradScaler,
    ) -> StepResult: ...


def train_step(
    model: nn.Module,
    micro_batches: Sequence[Batch],
    *,
    loss_fn: LossFunction,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    max_grad_norm: float,
    autocast: Autocast,
    scaler: GradScaler,
    veto: Veto | None = None,
) -> StepResult:
    """One optimizer step over all micro-batches, as if they were one batch.

    Each micro-batch's loss is divided by the supervised tokens of the whole step, not of its own:
    a mean of means would weight the tokens of short answers more. The scaler does nothing but in
    float16, where a step whose gradients overflow is skipped, and the schedule waits; so it does
    when `veto` forbids the update. Where several ranks share a step, each takes its own
    micro-batches, and all get the same result.
    """
    counted = sum(count_targets(batch["labels"]) for batch in micro_batches)
    supervised_tokens = int(sum_over_ranks(counted))
    learning_rate = float(optimizer.param_groups[0]["lr"])
    loss = torch.zeros((), device=micro_batches[0]["labels"].device)
    for number, batch in enumerate(micro_batches, start=1):
        with reducing(model, number == len(micro_batches)):
            with autocast():
                logits = forward(model, batch)
                part = loss_fn(logits, batch["labels"], supervised_tokens)
            if part.requires_grad:  # a cut graph is for the gradient probe to name
                scaler.scale(part).backward()  # type: ignore[no-untyped-call]
        loss += part.detach()
    trainable = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    scaler.unscale_(optimizer)
    grad_norm = whole(nn.utils.clip_grad_norm_(trainable, max_grad_norm))
    scale = scaler.get_scale()
    total = sum_over_ranks(float(loss))
    skipped = veto is not None and veto(total, float(grad_norm))
    if not skipped:
        scaler.step(optimizer)
    scaler.update()
    skipped = skipped or scaler.get_scale() < scale
    if not skipped:
        scheduler.step()
    optimizer.zero_grad()
    return StepResult(total, float(grad_norm), learning_rate, supervised_tokens, skipped)


def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Logits [B, T, V] of a batch; what is not `labels` goes to the model by its name."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    logits: torch.Tensor = model(**inputs).logits
    return logits
