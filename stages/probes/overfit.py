"""Can the model, with this very step, learn a handful of rows by heart?

If it cannot, something between data and optimizer is broken, and no amount of training will help
(Karpathy, "A Recipe for Training Neural Networks": overfit one batch). The rate is the gate's own:
at a fine-tuning rate this would be a test of the rate.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ..chat.collator import Batch
from ..chat.token_store import TokenMeta, TokenStore, read_meta
from ..config import Params, UserError, load_params
from ..models.build import build_model, without_dropout
from ..training.determinism import make_deterministic, seed_everything
from ..training.evaluation import mean_loss, to_device
from ..training.optimizer import build_optimizer
from ..training.schedule import constant_schedule
from ..training.setup import (
    Trainer,
    hooked_collator,
    hooked_loss,
    hooked_step,
    make_autocast,
)
from .fingerprint import (
    RunTrace,
    changed_shares,
    frozen_state,
    optimizer_sha256,
    weights_sha256,
)
from .fresh_process import in_fresh_processes
from .initial_loss import InitialLoss, measure_initial_loss


@dataclass(frozen=True)
class OverfitRun:
    """losses: nats per supervised token, before step 0, 1, ... and after the last.

    frozen: how many tensors must not change; frozen_changed: names of those that did.
    """

    initial: InitialLoss
    losses: list[float]
    trace: RunTrace
    rows: list[str]
    frozen: int
    frozen_changed: list[str]


def choose_rows(store: TokenStore, count: int, seed: int) -> list[int]:
    """Row numbers of the handful: drawn without replacement by the seed.

    Raises UserError when there are fewer rows than that.
    """
    if len(store) < count:
        raise UserError(
            f"the training split has {len(store)} rows, but gates.overfit.num_samples is {count}; "
            "add data, or lower it"
        )
    drawn = np.random.default_rng(seed).permutation(len(store))[:count]
    return sorted(int(row) for row in drawn)


def blank_inputs(batch: Batch, pad_token_id: int) -> Batch:
    """The same targets after inputs that say nothing: every id is the pad id."""
    return {**batch, "input_ids": torch.full_like(batch["input_ids"], pad_token_id)}


def build_overfit_trainer(params: Params, meta: TokenMeta, device: torch.device) -> Trainer:
    """Production model, loss, step and optimizer; without dropout, decay and schedule."""
    model = without_dropout(build_model(params.model, meta.vocab_size, device))
    optimizer = build_optimizer(
        model,
        params.train.optimizer,
        learning_rate=params.gates.overfit.learning_rate,
        weight_decay=0.0,
    )
    return Trainer(
        model=model,
        optimizer=optimizer,
        scheduler=constant_schedule(optimizer),
        step_fn=hooked_step(params.train),
        loss_fn=hooked_loss(params.train),
        max_grad_norm=params.train.max_grad_norm,
        autocast=make_autocast(params.run),
    )


def run_overfit(params: Params, seed: int, *, blank: bool = False) -> OverfitRun:
    """Build everything under `seed` and take gates.overfit.max_steps steps on one batch."""
    device = make_deterministic(params.run)
    store, meta = TokenStore("train"), read_meta()
    rows = store.rows(choose_rows(store, params.gates.overfit.num_samples, params.run.seed))
    seed_everything(seed)
    trainer = build_overfit_trainer(params, meta, device)
    batch = to_device(hooked_collator(params.data)(rows, meta.pad_token_id), device)
    if blank:
        batch = blank_inputs(batch, meta.pad_token_id)
    initial = measure_initial_loss(
        trainer.model, batch, trainer.loss_fn, trainer.autocast, meta.vocab_size
    )
    before = frozen_state(trainer.model)
    steps = [trainer.step([batch]) for _ in range(params.gates.overfit.max_steps)]
    final, _ = mean_loss(trainer.model, [batch], trainer.loss_fn, trainer.autocast)
    frozen = changed_shares(before, trainer.model)
    losses = [step.loss for step in steps]
    return OverfitRun(
        initial=initial,
        losses=[*losses, final],
        trace=RunTrace(
            losses,
            [step.grad_norm for step in steps],
            weights_sha256(trainer.model),
            optimizer_sha256(trainer.optimizer),
        ),
        rows=[row.source for row in rows],
        frozen=len(frozen),
        frozen_changed=[name for name, share in frozen.items() if share],
    )


def replay(seed: int) -> RunTrace:
    """The overfit run in a process of its own, which reads params.yaml itself."""
    return run_overfit(load_params("overfit_gate"), seed).trace


def replay_in_fresh_processes(seeds: list[int]) -> list[RunTrace]:
    """One new interpreter for each seed."""
    return in_fresh_processes(replay, seeds)
