"""The production objects: everything that a training step needs, built from params in one place."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..chat.collator import Batch, Collator, collate
from ..chat.token_store import TokenMeta, TokenRow, TokenStore
from ..config.hooks import load_hook
from ..config.schema import Data, Model, Params, Run, Train
from ..models.build import build_model, prepare_for_training
from .batches import BatchPlan, Packs, collate_packs
from .evaluation import to_device
from .loss import LossFunction, causal_lm_loss
from .optimizer import BuildOptimizer, build_optimizer
from .packing import pack_by_length
from .parallel import ALONE
from .ranks import rank, world_size
from .schedule import build_scheduler
from .step import Autocast, StepResult, TrainStep, train_step


@dataclass(frozen=True)
class Trainer:
    """A model with all that one step of its training takes.

    wrapped: the module that the step calls in place of `model` where several ranks share the step.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    step_fn: TrainStep
    loss_fn: LossFunction
    max_grad_norm: float
    autocast: Autocast
    scaler: GradScaler
    wrapped: nn.Module | None = None

    def step(self, micro_batches: list[Batch]) -> StepResult:
        """One optimizer step."""
        return self.step_fn(
            self.model if self.wrapped is None else self.wrapped,
            micro_batches,
            loss_fn=self.loss_fn,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            max_grad_norm=self.max_grad_norm,
            autocast=self.autocast,
            scaler=self.scaler,
        )


def make_autocast(run: Run) -> Autocast:
    """The context of every forward pass: plain, or with half precision where torch allows it."""
    if run.precision == "fp32":
        return nullcontext
    dtype = torch.bfloat16 if run.precision == "bf16" else torch.float16
    return partial(torch.autocast, run.device, dtype=dtype)


def make_scaler(run: Run) -> GradScaler:
    """Scales the loss in float16, whose small gradients would be 0; does nothing otherwise."""
    return GradScaler(run.device, enabled=run.precision == "fp16")


def hooked_collator(data: Data) -> Collator:
    return load_hook(data.collator, "data.collator", collate)


def collate_together(
    params: Params, rows: Sequence[TokenRow], meta: TokenMeta, collator: Collator
) -> Batch:
    """All rows in one batch, packed as those of the training are."""
    packs = [[row] for row in rows]
    if params.train.packing:
        packed = pack_by_length(np.array([len(row.input_ids) for row in rows]), meta.max_length)
        packs = [[rows[number] for number in packed[pack]] for pack in range(len(packed))]
    return collate_packs(packs, collator, meta.pad_token_id, packing=params.train.packing)


def hooked_loss(train: Train) -> LossFunction:
    return load_hook(train.loss, "train.loss", causal_lm_loss)


def hooked_step(train: Train) -> TrainStep:
    return load_hook(train.step, "train.step", train_step)


@dataclass(frozen=True)
class Parts:
    """What a training is put together from; the self-test swaps one of them for a faulty one."""

    collator: Collator
    loss: LossFunction
    step: TrainStep
    build_model: Callable[[Model, int, torch.device], nn.Module]
    build_optimizer: BuildOptimizer
    build_scheduler: Callable[[Optimizer, Train, int], LRScheduler]

    @classmethod
    def of(cls, params: Params) -> "Parts":
        """The parts of the real run. Raises UserError for a hook that cannot be loaded."""
        return cls(
            hooked_collator(params.data),
            hooked_loss(params.train),
            hooked_step(params.train),
            build_model,
            build_optimizer,
            build_scheduler,
        )


def build_trainer(
    params: Params,
    model: nn.Module,
    steps: int,
    wrap: Callable[[nn.Module], nn.Module] = ALONE.wrap,
    parts: Parts | None = None,
) -> Trainer:
    """The trainer of the real run over `model`: its rate, decay, schedule, step and loss.

    wrap: makes of `model` what several ranks share (see Team.wrap); parts: without them, those of
    the real run.
    """
    train, parts = params.train, parts or Parts.of(params)
    prepare_for_training(model, train)
    wrapped = wrap(model)
    optimizer = parts.build_optimizer(
        model,
        train.optimizer,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        kind=train.optim,
    )
    return Trainer(
        model=model,
        optimizer=optimizer,
        scheduler=parts.build_scheduler(optimizer, train, steps),
        step_fn=parts.step,
        loss_fn=parts.loss,
        max_grad_norm=train.max_grad_norm,
        autocast=make_autocast(params.run),
        scaler=make_scaler(params.run),
        wrapped=wrapped,
    )


class TrainingBatches:
    """This rank's micro-batches of every training step, as `plan` says."""

    def __init__(
        self,
        store: TokenStore,
        meta: TokenMeta,
        collator: Collator,
        train: Train,
        seed: int,
        device: torch.device,
    ) -> None:
        self._store, self._collator, self._device = store, collator, device
        self._pad_token_id = meta.pad_token_id
        self._packing = train.packing
        self.plan = BatchPlan(store.lengths(), meta.max_length, train, seed)

    def of_step(self, step: int) -> list[Batch]:
        """Collated micro-batches of step 0, 1, ...; the ranks take them in turn."""
        dealt = self.plan.micro_batches(step)[rank() :: world_size()]
        return [self._collate(packs) for packs in dealt]

    def rows_of_step(self, step: int) -> list[TokenRow]:
        """The rows of step 0, 1, ... over all ranks, as the token store has them."""
        packs = chain.from_iterable(self.plan.micro_batches(step))
        return self._store.rows(chain.from_iterable(packs))

    def _collate(self, numbers: Packs) -> Batch:
        packs = [self._store.rows(pack) for pack in numbers]
        batch = collate_packs(packs, self._collator, self._pad_token_id, packing=self._packing)
        return to_device(batch, self._device)
