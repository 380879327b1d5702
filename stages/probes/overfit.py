"""Can the model, with this very step, learn a handful of rows by heart?

If it cannot, something between data and optimizer is broken, and no amount of training will help
(Karpathy, "A Recipe for Training Neural Networks": overfit one batch). The rate is the gate's own:
at a fine-tuning rate this would be a test of the rate.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from ..chat.collator import Batch
from ..chat.token_store import TokenMeta, TokenStore, read_meta
from ..config import Params, UserError, load_params
from ..config.fresh_process import in_fresh_processes
from ..models.build import is_pretrained, prepare_for_training, without_dropout
from ..training.determinism import make_deterministic, seed_everything
from ..training.evaluation import mean_loss, to_device
from ..training.schedule import constant_schedule
from ..training.setup import Parts, Trainer, collate_together, make_autocast, make_scaler
from .fingerprint import (
    RunTrace,
    changed_names,
    frozen_digests,
    optimizer_sha256,
    weights_sha256,
)
from .initial_loss import InitialLoss, measure_initial_loss
from .modes import watching_adapters
from .stop_row import StopRow, examine_stop_row

MIN_STEPS = 10
"""Steps of a run that learns sooner: enough to see bits drift and a frozen weight move."""
PATIENCE = 4
"""A model that has not learned its rows after so many times its steps does not learn them."""
STEPS_OF_OTHER_SEED = 2
"""Steps of a run under another seed: the first that differs is enough."""


@dataclass(frozen=True)
class OverfitRun:
    """losses: nats per supervised token, before step 0, 1, ... and after the last.

    frozen: how many tensors must not change; frozen_changed: names of those that did;
    adapters_off: layers whose adapters took no part in the first step.
    """

    initial: InitialLoss
    losses: list[float]
    trace: RunTrace
    rows: list[str]
    frozen: int
    frozen_changed: list[str]
    adapters_off: list[str]
    stop_row: StopRow


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


def build_overfit_trainer(
    params: Params, meta: TokenMeta, device: torch.device, parts: Parts
) -> Trainer:
    """Production model, loss, step and optimizer; without dropout, decay and schedule."""
    model = without_dropout(parts.build_model(params.model, meta.vocab_size, device))
    prepare_for_training(model, params.train)
    optimizer = parts.build_optimizer(
        model,
        params.train.optimizer,
        learning_rate=params.gates.overfit.learning_rate,
        weight_decay=0.0,
        kind=params.train.optim,
    )
    return Trainer(
        model=model,
        optimizer=optimizer,
        scheduler=constant_schedule(optimizer),
        step_fn=parts.step,
        loss_fn=parts.loss,
        max_grad_norm=params.train.max_grad_norm,
        autocast=make_autocast(params.run),
        scaler=make_scaler(params.run),
    )


def run_overfit(
    params: Params,
    seed: int,
    *,
    blank: bool = False,
    steps: int | None = None,
    most: int | None = None,
    parts: Parts | None = None,
) -> OverfitRun:
    """Build everything under `seed` and take steps on one batch.

    steps: how many; without it, until the loss is below gates.overfit.max_loss, at least MIN_STEPS
    and at most `most`, or gates.overfit.max_steps. parts: without them, those of the real run.
    """
    device = make_deterministic(params.run)
    store, meta = TokenStore("train"), read_meta()
    # weights that were trained before are the same under every seed, but their rows need not be
    chosen_by = seed if is_pretrained(params.model) else params.run.seed
    rows = store.rows(choose_rows(store, params.gates.overfit.num_samples, chosen_by))
    seed_everything(seed)
    parts = parts or Parts.of(params)
    trainer = build_overfit_trainer(params, meta, device, parts)
    batch = to_device(collate_together(params, rows, meta, parts.collator), device)
    if blank:
        batch = blank_inputs(batch, meta.pad_token_id)
    initial = measure_initial_loss(
        trainer.model, batch, trainer.loss_fn, trainer.autocast, meta.vocab_size
    )
    stop_row = examine_stop_row(trainer.model, meta.stop_token_id)
    before = frozen_digests(trainer.model)
    with watching_adapters(trainer.model) as adapters_off:
        taken = [trainer.step([batch])]
    while len(taken) < (steps or most or params.gates.overfit.max_steps):
        learned = taken[-1].loss < params.gates.overfit.max_loss
        if steps is None and learned and len(taken) >= MIN_STEPS:
            break
        taken.append(trainer.step([batch]))
    final, _ = mean_loss(trainer.model, [batch], trainer.loss_fn, trainer.autocast)
    losses = [step.loss for step in taken]
    return OverfitRun(
        initial=initial,
        losses=[*losses, final],
        trace=RunTrace(
            losses,
            [step.grad_norm for step in taken],
            weights_sha256(trainer.model),
            optimizer_sha256(trainer.optimizer),
        ),
        rows=[row.source for row in rows],
        frozen=len(before),
        frozen_changed=changed_names(before, trainer.model),
        adapters_off=sorted(adapters_off),
        stop_row=stop_row,
    )


def steps_to_learn(params: Params, run: OverfitRun, parts: Parts | None = None) -> int | None:
    """After how many steps the rows of a run are learned that was not done by its last.

    Asked of a run whose loss has halved; None of any other, and where PATIENCE times
    gates.overfit.max_steps are too few.
    """
    limits, losses = params.gates.overfit, run.losses
    if not limits.max_loss <= min(losses) < losses[0] / 2 or not math.isfinite(losses[-1]):
        return None
    most = PATIENCE * limits.max_steps
    losses = run_overfit(params, params.run.seed, most=most, parts=parts).losses
    return len(losses) - 1 if min(losses) < limits.max_loss else None


def replay(run: tuple[int, int]) -> RunTrace:
    """The overfit run of (seed, steps) in a process of its own, which reads params.yaml itself."""
    seed, steps = run
    return run_overfit(load_params("overfit_gate"), seed, steps=steps).trace


def replay_in_fresh_processes(runs: list[tuple[int, int]]) -> list[RunTrace]:
    """A new interpreter for each (seed, steps)."""
    return in_fresh_processes(replay, runs)
