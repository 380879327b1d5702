"""Do real steps do what a training step should? The first of the run, watched from outside."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ..chat.collator import Batch
from ..chat.token_store import TokenRow, TokenStore, read_meta
from ..config import Params
from ..config.schema import Train
from ..models.build import count_parameters, undeclared_frozen
from ..models.hub import reentrant_modules
from ..training.determinism import make_deterministic
from ..training.evaluation import to_device
from ..training.schedule import count_steps, count_warmup_steps
from ..training.setup import (
    Parts,
    Trainer,
    TrainingBatches,
    build_trainer,
    collate_together,
)
from ..training.step import Autocast
from .dependency import Dependencies, chart_dependencies
from .fingerprint import changed_names, changed_shares, frozen_digests, trainable_state
from .modes import evaluation_difference, watching_dropout
from .observe import ActivationRecord, StepObserver, StepRecord, watching_activations
from .precision import smallest_half_change, watching_dtypes
from .recipe import Recipe, read_recipe
from .superposition import find_affine
from .targets import TargetRecord, watching_targets

CHARTED_ROWS = 2
"""Rows whose dependencies are charted: the fewest of which one can see another."""


@dataclass(frozen=True)
class ForwardProbe:
    """Forward passes over a few rows before the first step.

    dependencies: None where they could not be charted; evaluation_difference: largest distance of
    the logits of two passes in evaluation mode; affine: names of feed-forward networks without an
    activation; feed_forwards: how many were tried.
    """

    dependencies: Dependencies | None
    evaluation_difference: float
    affine: list[str]
    feed_forwards: int


@dataclass(frozen=True)
class FirstStep:
    """What the first step that was not skipped did, as seen from outside.

    dtypes: how many outputs of Linear modules had each; dropout_off: dropout modules that were in
    evaluation mode.
    """

    targets: TargetRecord
    dtypes: Counter[torch.dtype]
    dropout_off: set[str]


@dataclass(frozen=True)
class GradientProbe:
    """What the first steps of the training showed.

    losses: as each step reported; changed: share of changed elements by trainable parameter;
    frozen, frozen_changed: names of what must not change, and of what did;
    weight_norms: L2 by parameter, before and after; reentrant: modules that checkpoint in the
    reentrant way; parameters: as `count_parameters` has them; half_change: the smallest share of
    changed elements of a vector in half precision, and its name.
    """

    records: list[StepRecord]
    losses: list[float]
    activations: list[ActivationRecord]
    changed: dict[str, float]
    frozen: list[str]
    frozen_changed: list[str]
    undeclared_frozen: list[str]
    not_in_optimizer: list[str]
    weight_norms: dict[str, tuple[float, float]]
    warmup: int
    steps: int
    reentrant: list[str]
    parameters: dict[str, int]
    half_change: tuple[float, str]
    recipe: Recipe
    forward: ForwardProbe
    first_step: FirstStep


def run_gradient_probe(params: Params, parts: Parts | None = None) -> GradientProbe:
    """Take gates.gradient.steps steps of the training, from its start, on its own batches.

    parts: without them, those of the real run.
    """
    device = make_deterministic(params.run)
    store, meta, train = TokenStore("train"), read_meta(), params.train
    parts = parts or Parts.of(params)
    batches = TrainingBatches(store, meta, parts.collator, train, params.run.seed, device)
    steps = count_steps(train, batches.plan)
    model = parts.build_model(params.model, meta.vocab_size, device)
    trainer = build_trainer(params, model, steps, parts=parts)
    trainable, frozen = trainable_state(model), frozen_digests(model)
    norms_before = _norms(model)
    observer = StepObserver(model, trainer.optimizer, trainer.scaler)
    records: list[StepRecord] = []
    losses: list[float] = []
    activations: dict[str, ActivationRecord] = {}
    probed = min(params.gates.gradient.steps, steps)
    charted = choose_charted(batches.rows_of_step(0), train)
    few = collate_together(params, charted, meta, parts.collator)
    forward = probe_forward(model, to_device(few, device), trainer.autocast)
    for step in range(probed):
        micro_batches = batches.of_step(step)
        with ExitStack() as stack:
            if step == 0 or records[-1].skipped:
                rows = batches.rows_of_step(step)
                first_step = stack.enter_context(watching_first_step(trainer, rows))
            if step == probed - 1:
                activations = stack.enter_context(watching_activations(model))
            record = stack.enter_context(observer.watching())
            losses.append(trainer.step(micro_batches).loss)
        records.append(record)
    norms_after = _norms(model)
    changed = changed_shares(trainable, model)
    return GradientProbe(
        records=records,
        losses=losses,
        activations=list(activations.values()),
        changed=changed,
        frozen=sorted(frozen),
        frozen_changed=changed_names(frozen, model),
        undeclared_frozen=undeclared_frozen(model, params.model),
        not_in_optimizer=_outside_optimizer(model, trainer.optimizer),
        weight_norms={name: (norms_before[name], norms_after[name]) for name in norms_before},
        warmup=count_warmup_steps(train, steps),
        steps=steps,
        reentrant=reentrant_modules(model),
        parameters=count_parameters(model),
        half_change=smallest_half_change(changed, model),
        recipe=read_recipe(model, trainer.optimizer, records, TokenStore("validation"), train),
        forward=forward,
        first_step=first_step,
    )


def choose_charted(rows: Sequence[TokenRow], train: Train) -> Sequence[TokenRow]:
    """The first rows; of those that are packed the shortest, which share a row if any do."""
    if train.packing:
        rows = sorted(rows, key=lambda row: len(row.input_ids))
    return rows[:CHARTED_ROWS]


def probe_forward(model: nn.Module, batch: Batch, autocast: Autocast) -> ForwardProbe:
    return ForwardProbe(
        chart_dependencies(model, batch, autocast),
        evaluation_difference(model, batch, autocast),
        *find_affine(model, batch, autocast),
    )


@contextmanager
def watching_first_step(trainer: Trainer, rows: Sequence[TokenRow]) -> Iterator[FirstStep]:
    """Watch a step over `rows`; the record is complete when the block ends."""
    with ExitStack() as stack:
        yield FirstStep(
            stack.enter_context(watching_targets(trainer.model, rows, trainer.scaler)),
            stack.enter_context(watching_dtypes(trainer.model)),
            stack.enter_context(watching_dropout(trainer.model)),
        )


def _outside_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]


def _norms(model: nn.Module) -> dict[str, float]:
    return {name: float(p.detach().float().norm()) for name, p in model.named_parameters()}
