"""Do real steps do what a training step should? The first of the run, watched from outside."""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn

from ..chat.token_store import TokenStore, read_meta
from ..config import Params
from ..models.build import build_model, count_parameters, undeclared_frozen
from ..models.hub import reentrant_modules
from ..training.determinism import make_deterministic
from ..training.schedule import count_steps, count_warmup_steps
from ..training.setup import TrainingBatches, build_trainer, hooked_collator
from .documents import DocumentProbe, probe_documents
from .fingerprint import changed_names, changed_shares, frozen_digests, trainable_state
from .observe import ActivationRecord, StepObserver, StepRecord, watching_activations


@dataclass(frozen=True)
class GradientProbe:
    """What the first steps of the training showed.

    losses: as each step reported; changed: share of changed elements by trainable parameter;
    frozen, frozen_changed: names of what must not change, and of what did;
    weight_norms: L2 by parameter, before and after; reentrant: modules that checkpoint in the
    reentrant way; parameters: as `count_parameters` has them; documents: of rows that hold several.
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
    documents: DocumentProbe


def run_gradient_probe(params: Params) -> GradientProbe:
    """Take gates.gradient.steps steps of the training, from its start, on its own batches."""
    device = make_deterministic(params.run)
    store, meta, train = TokenStore("train"), read_meta(), params.train
    collator = hooked_collator(params.data)
    batches = TrainingBatches(store, meta, collator, train, params.run.seed, device)
    steps = count_steps(train, batches.plan)
    model = build_model(params.model, meta.vocab_size, device)
    trainer = build_trainer(params, model, steps)
    probed = min(params.gates.gradient.steps, steps)
    documents = probe_documents(
        model,
        batches,
        store,
        steps=probed,
        vocab_size=meta.vocab_size,
        autocast=trainer.autocast,
    )
    trainable, frozen = trainable_state(model), frozen_digests(model)
    norms_before = _norms(model)
    observer = StepObserver(model, trainer.optimizer, trainer.scaler)
    records, losses = [], []
    activations: dict[str, ActivationRecord] = {}
    for step in range(probed):
        micro_batches = batches.of_step(step)
        with ExitStack() as stack:
            if step == probed - 1:
                activations = stack.enter_context(watching_activations(model))
            record = stack.enter_context(observer.watching())
            losses.append(trainer.step(micro_batches).loss)
        records.append(record)
    norms_after = _norms(model)
    return GradientProbe(
        records=records,
        losses=losses,
        activations=list(activations.values()),
        changed=changed_shares(trainable, model),
        frozen=sorted(frozen),
        frozen_changed=changed_names(frozen, model),
        undeclared_frozen=undeclared_frozen(model, params.model),
        not_in_optimizer=_outside_optimizer(model, trainer.optimizer),
        weight_norms={name: (norms_before[name], norms_after[name]) for name in norms_before},
        warmup=count_warmup_steps(train, steps),
        steps=steps,
        reentrant=reentrant_modules(model),
        parameters=count_parameters(model),
        documents=documents,
    )


def _outside_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]


def _norms(model: nn.Module) -> dict[str, float]:
    return {name: float(p.detach().float().norm()) for name, p in model.named_parameters()}
