"""The real training, step by step: full_train takes it to its end, a replay up to one step."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from ..chat.split import SPLITS
from ..chat.token_store import TokenMeta, TokenStore, read_meta
from ..config.schema import Params
from .anomaly import WINDOW, find_anomaly
from .determinism import make_deterministic
from .evaluation import mean_loss, store_batches
from .parallel import ALONE, Team, seed_rank
from .ranks import rank, world_size
from .schedule import count_steps
from .setup import Parts, TrainingBatches, build_trainer, hooked_collator
from .state import Training
from .step import train_step


@dataclass
class Run(Training):
    """A training with what it is evaluated on."""

    validation: TokenStore
    meta: TokenMeta
    steps: int
    device: torch.device
    team: Team

    def anomaly_of(self, loss: float, grad_norm: float) -> str | None:
        """What is wrong with the step that comes next, if these are its numbers."""
        return find_anomaly(loss, grad_norm, [line["loss"] for line in self.telemetry[-WINDOW:]])


def start_run(params: Params, team: Team = ALONE, parts: Parts | None = None) -> Run:
    """Build everything under the run's seed, at step 0; of `parts` where others are tried."""
    parts = parts or Parts.of(params)
    device = team.device(make_deterministic(params.run))
    train_rows, validation = (TokenStore(split) for split in SPLITS)
    meta = read_meta()
    seed = params.run.seed
    batches = TrainingBatches(train_rows, meta, parts.collator, params.train, seed, device)
    steps = count_steps(params.train, batches.plan)
    model = parts.build_model(params.model, meta.vocab_size, device)
    trainer = build_trainer(params, model, steps, team.wrap, parts)
    seed_rank(seed)
    run = Run(
        trainer=trainer,
        batches=batches,
        validation=validation,
        meta=meta,
        steps=steps,
        device=device,
        telemetry=[],
        team=team,
    )
    if params.train.on_anomaly == "skip":
        step = partial(train_step, veto=lambda *numbers: run.anomaly_of(*numbers) is not None)
        run.trainer = replace(trainer, step_fn=step)
    return run


def validation_loss(run: Run, params: Params) -> float:
    """Nats per supervised token over the whole validation split."""
    batches = store_batches(
        run.validation,
        hooked_collator(params.data),
        run.meta.pad_token_id,
        params.train.per_device_eval_batch_size,
        run.device,
    )
    if not run.team.sharded:  # shards need every rank for every batch; replicas share the work
        batches = islice(batches, rank(), None, world_size())
    loss, _ = mean_loss(run.trainer.model, batches, run.trainer.loss_fn, run.trainer.autocast)
    return loss


def take_step(run: Run, params: Params) -> dict[str, Any]:
    """Take the step that comes next, and return its line of telemetry without adding it."""
    step = run.done
    result = run.next_step()
    overflowed = result.skipped and params.run.precision == "fp16"
    anomaly = None if overflowed else run.anomaly_of(result.loss, result.grad_norm)
    evaluated = (step + 1) % params.train.eval_steps == 0 or step + 1 == run.steps
    return {
        "step": step,
        "loss": result.loss,
        "learning_rate": result.learning_rate,
        "grad_norm": result.grad_norm,
        "clipped": result.grad_norm > params.train.max_grad_norm,
        "supervised_tokens": result.supervised_tokens,
        "validation_loss": validation_loss(run, params) if evaluated else None,
        "anomaly": anomaly,
    }
