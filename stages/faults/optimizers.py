"""Optimizers, schedules and values of `train` with which nothing, too little or too much moves."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..config.schema import Params, TinyGPTModel, Train
from ..training.optimizer import BuildOptimizer
from ..training.schedule import schedule_factor
from ..training.setup import Parts
from .fault import Applies, Fault, Gate, Plant, everywhere, swap, train_values

Change = Callable[..., Optimizer]
"""change(build, model, params, **rates), where `build` is the sound one."""


def _fault(
    name: str,
    numbers: tuple[int, ...],
    checks: tuple[str, ...],
    cause: str,
    change: Change,
    missed: str = "",
) -> Fault:
    def changed(build: BuildOptimizer) -> Change:
        return lambda model, params, **rates: change(build, model, params, **rates)

    plant = swap(build_optimizer=changed)
    return Fault(name, "optimizer", numbers, "gradient_probe", checks, cause, plant, missed=missed)


def _values(
    name: str,
    numbers: tuple[int, ...],
    checks: tuple[str, ...],
    cause: str,
    plant: Plant,
    applies: Applies = everywhere,
    gate: Gate = "gradient_probe",
    missed: str = "",
) -> Fault:
    return Fault(name, "params", numbers, gate, checks, cause, plant, applies, missed=missed)


def _without_last(build: BuildOptimizer, model: nn.Module, params: Any, **rates: Any) -> Optimizer:
    """The last trainable matrix, the head of most models, stays outside."""
    last = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2][-1]
    last.requires_grad_(False)
    try:
        return build(model, params, **rates)
    finally:
        last.requires_grad_(True)


def _of_a_copy(build: BuildOptimizer, model: nn.Module, params: Any, **rates: Any) -> Optimizer:
    """As if the model had been cast or wrapped after its optimizer was built."""
    return build(copy.deepcopy(model), params, **rates)


def _rate_times(factor: float) -> Change:
    def change(
        build: BuildOptimizer, model: nn.Module, params: Any, *, learning_rate: float, **rates: Any
    ) -> Optimizer:
        return build(model, params, learning_rate=factor * learning_rate, **rates)

    return change


def _decay_all(build: BuildOptimizer, model: nn.Module, params: Any, **rates: Any) -> Optimizer:
    optimizer = build(model, params, **rates)
    for group in optimizer.param_groups:
        group["weight_decay"] = rates["weight_decay"]
    return optimizer


def _soon_over(parts: Parts, params: Params) -> tuple[Parts, Params]:
    """A schedule that is told of 5 steps."""

    def build(optimizer: Optimizer, train: Train, steps: int) -> LRScheduler:
        return LambdaLR(optimizer, schedule_factor(train.lr_scheduler_type, 0, 5))

    return replace(parts, build_scheduler=build), params


def _optimizer_values(**values: float) -> Plant:
    def plant(parts: Parts, params: Params) -> tuple[Parts, Params]:
        optimizer = replace(params.train.optimizer, **values)
        return parts, replace(params, train=replace(params.train, optimizer=optimizer))

    return plant


def _rate_of_params_times(factor: float) -> Plant:
    def plant(parts: Parts, params: Params) -> tuple[Parts, Params]:
        return train_values(learning_rate=factor * params.train.learning_rate)(parts, params)

    return plant


def _decay_a_tenth(parts: Parts, params: Params) -> tuple[Parts, Params]:
    """A tenth of each weight at each step, whatever the rate is."""
    return train_values(weight_decay=0.1 / params.train.learning_rate)(parts, params)


def _much_dropout(parts: Parts, params: Params) -> tuple[Parts, Params]:
    assert isinstance(params.model, TinyGPTModel)
    return parts, replace(params, model=replace(params.model, dropout=0.9))


def _is_tiny_gpt(params: Params) -> str | None:
    return None if isinstance(params.model, TinyGPTModel) else "model.dropout is tiny_gpt's"


RATE = ("learning_rate_error",)
SCHEDULE = "the schedule is stepped too often, too seldom or not at all"

FAULTS = (
    _fault(
        "last_matrix_not_in_optimizer",
        (58,),
        ("not_in_optimizer",),
        "parameters are trainable, but the optimizer lacks them",
        _without_last,
    ),
    _fault(
        "optimizer_of_a_copy",
        (59,),
        ("not_in_optimizer",),
        "parameters are trainable, but the optimizer lacks them",
        _of_a_copy,
    ),
    _fault("applied_rate_too_high", (52,), RATE, SCHEDULE, _rate_times(100)),
    _fault("applied_rate_too_low", (53,), RATE, SCHEDULE, _rate_times(0.01)),
    _fault(
        "decay_on_all",
        (68,),
        ("decayed_vectors",),
        "",
        _decay_all,
    ),
    Fault(
        "schedule_soon_over",
        "optimizer",
        (55,),
        "gradient_probe",
        RATE,
        SCHEDULE,
        _soon_over,
    ),
    _values(
        "rate_too_high",
        (52,),
        ("update_ratio",),
        "the learning rate is too high",
        _rate_of_params_times(100),
    ),
    _values(
        "rate_too_low",
        (53,),
        (),
        "",
        _rate_of_params_times(0.01),
        missed="a choice, as long as updates are above gates.gradient.min_update_ratio; "
        "`holdshort lr-range` says where the rate lies",
    ),
    _values(
        "epsilon_too_high",
        (62,),
        ("epsilon_share",),
        "Adam's epsilon is larger than the gradients",
        _optimizer_values(adam_epsilon=0.1),
    ),
    _values(
        "decay_of_a_tenth",
        (63,),
        ("decay_per_step",),
        "weight decay outweighs the loss",
        _decay_a_tenth,
    ),
    _values(
        "clip_limit_too_low",
        (64, 65),
        ("clip_excess",),
        "",
        train_values(max_grad_norm=1e-4),
    ),
    _values(
        "answers_cut_off",
        (98,),
        ("answers_cut_off",),
        "",
        train_values(max_new_tokens=1),
        lambda params: None if params.train.eval_generations else "nothing is generated",
    ),
    _values(
        "dropout_too_high",
        (67,),
        ("dropout",),
        "dropout takes nearly all",
        _much_dropout,
        _is_tiny_gpt,
    ),
)
