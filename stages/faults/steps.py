"""Training steps that leave something out, do it twice, or do it in the wrong order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler

from ..chat.collator import Batch
from ..config.schema import HubModel, Params, TinyGPTModel
from ..training.loss import LossFunction
from ..training.setup import Parts
from ..training.step import StepResult, TrainStep
from .applies import below_adapter, only_in, several_micro_batches
from .fault import (
    Applies,
    DoesNotApply,
    Fault,
    Gate,
    everywhere,
    own_tokens,
    swap,
)
from .labels import first_step

Change = Callable[..., StepResult]
"""change(step, model, micro_batches, **rest), where `step` is the sound one."""


def _fault(
    name: str,
    numbers: tuple[int, ...],
    checks: tuple[str, ...],
    cause: str,
    change: Change,
    applies: Applies = everywhere,
    gate: Gate = "gradient_probe",
) -> Fault:
    def changed(step: TrainStep) -> TrainStep:
        def wrong(model: nn.Module, micro_batches: Sequence[Batch], **rest: Any) -> StepResult:
            return change(step, model, micro_batches, **rest)

        return wrong

    return Fault(name, "step", numbers, gate, checks, cause, swap(step=changed), applies)


@contextmanager
def _does_nothing(owner: Any, method: str) -> Iterator[None]:
    """Within the block, the method of this one object does nothing."""
    before = vars(owner).get(method)
    setattr(owner, method, lambda *_, **__: None)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, method)
        else:
            setattr(owner, method, before)


def _left_out(owner: str, method: str) -> Change:
    """A step in which a method of the optimizer, schedule or scaler is not called."""

    def step(sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any) -> Any:
        with _does_nothing(rest[owner], method):
            return sound(model, batches, **rest)

    return step


def _with(**values: Any) -> Change:
    """A step that is given something else."""

    def step(sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any) -> Any:
        return sound(model, batches, **{**rest, **values})

    return step


def _over_each_micro_batch(divide_by: Callable[[int], int]) -> Change:
    """Losses divided by the tokens of their micro-batch, and by `divide_by(micro-batches)`."""

    def step(
        sound: TrainStep,
        model: nn.Module,
        batches: Sequence[Batch],
        *,
        loss_fn: LossFunction,
        **rest: Any,
    ) -> StepResult:
        def loss(logits: torch.Tensor, labels: torch.Tensor, n: int) -> torch.Tensor:
            return loss_fn(logits, labels, own_tokens(labels)) / divide_by(len(batches))

        return sound(model, batches, loss_fn=loss, **rest)

    return step


def _update_by_micro_batch(
    sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any
) -> StepResult:
    return [sound(model, [batch], **rest) for batch in batches][-1]


def _last_dropped(
    sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any
) -> StepResult:
    return sound(model, batches[:-1] or batches, **rest)


def _schedule_twice(
    sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any
) -> StepResult:
    result = sound(model, batches, **rest)
    rest["scheduler"].step()
    return result


def _rate_of_zero(
    sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any
) -> StepResult:
    for group in rest["optimizer"].param_groups:
        group["lr"] = 0.0
    return sound(model, batches, **rest)


def _schedule_on_skipped(
    sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any
) -> StepResult:
    """The first step overflows, and the schedule moves on all the same."""
    scaler: GradScaler = rest["scaler"]
    if rest["scheduler"].last_epoch == 0:
        scaler.scale(torch.zeros((), device=batches[0]["labels"].device))
        scaler.set_backoff_factor(2.0**-120)
        scaler.update(2.0**127)
    result = sound(model, batches, **rest)
    if result.skipped:
        rest["scheduler"].step()
    return result


def _unscaled_late(
    sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any
) -> StepResult:
    """The step's own call does nothing; the scaler unscales by itself before the update."""
    scaler = rest["scaler"]
    scaler.unscale_ = lambda optimizer: delattr(scaler, "unscale_")
    return sound(model, batches, **rest)


def _evaluating(
    sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any
) -> StepResult:
    return sound(model.eval(), batches, **rest)


def _without_adapters(
    sound: TrainStep, model: Any, batches: Sequence[Batch], **rest: Any
) -> StepResult:
    with model.disable_adapter():
        return sound(model, batches, **rest)


def _frozen_moved(
    sound: TrainStep, model: nn.Module, batches: Sequence[Batch], **rest: Any
) -> StepResult:
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    if not frozen:
        raise DoesNotApply("no parameter is frozen")
    result = sound(model, batches, **rest)
    with torch.no_grad():
        frozen[0].mul_(1.01)
    return result


def _clip_missing(parts: Parts, params: Params) -> tuple[Parts, Params]:
    """Under a limit that every gradient exceeds, so that clipping would have shown."""
    parts, params = _unclipped.plant(parts, params)
    return parts, replace(params, train=replace(params.train, max_grad_norm=1e-3))


def _unequal_micro_batches(params: Params) -> str | None:
    if reason := several_micro_batches(params):
        return reason
    counts = [
        own_tokens(batch["labels"]) for batch in first_step(params, Parts.of(params).collator)
    ]
    mean, limit = sum(counts) / len(counts), params.gates.gradient.max_target_weight_error
    if max(abs(mean / count - 1) for count in counts) > limit:
        return None
    return "the micro-batches of the first step have as many supervised tokens each"


def _has_dropout(params: Params) -> str | None:
    model = params.model
    dropout = 0.0
    if isinstance(model, TinyGPTModel):
        dropout = model.dropout
    elif isinstance(model, HubModel) and model.adapter != "none":
        dropout = model.lora.lora_dropout
    return None if dropout else "the model has no dropout (or none that params.yaml names)"


_unclipped = _fault("", (), (), "", _with(max_grad_norm=inf))
RATE = ("learning_rate_error",)
SCHEDULE = "the schedule is stepped too often, too seldom or not at all"
half = only_in("bf16", "fp16")

FAULTS = (
    _fault(
        "mean_of_means",
        (39,),
        ("target_weight_error",),
        "the loss is scaled: summed, divided by the tokens of each micro-batch",
        _over_each_micro_batch(lambda number: number),
        _unequal_micro_batches,
    ),
    _fault(
        "accumulation_not_divided",
        (40,),
        ("target_weight_error",),
        "the loss is scaled",
        _over_each_micro_batch(lambda number: 1),
        several_micro_batches,
    ),
    _fault(
        "last_micro_batch_dropped",
        (41,),
        ("targets_untrained",),
        "some of the step's tokens are not trained on",
        _last_dropped,
        several_micro_batches,
    ),
    _fault(
        "update_by_micro_batch",
        (),
        ("optimizer_calls_missing",),
        "the optimizer is not called once a step",
        _update_by_micro_batch,
        several_micro_batches,
    ),
    _fault("rate_of_zero", (54,), RATE, "the schedule stays at 0", _rate_of_zero),
    _fault("schedule_twice", (), RATE, SCHEDULE, _schedule_twice),
    _fault("schedule_never", (), RATE, "the schedule stays at 0", _left_out("scheduler", "step")),
    _fault(
        "zero_grad_missing",
        (56,),
        ("stale_gradients",),
        "gradients of earlier steps are never cleared",
        _left_out("optimizer", "zero_grad"),
    ),
    _fault(
        "optimizer_step_missing",
        (57,),
        ("optimizer_calls_missing",),
        "the training step never calls the optimizer",
        _left_out("optimizer", "step"),
    ),
    replace(
        _unclipped,
        name="clip_missing",
        checks=("clip_ratio",),
        cause="gradients are not clipped",
        plant=_clip_missing,
    ),
    _fault(
        "clipped_to_a_ten_thousandth",
        (64, 65),
        ("clip_ratio",),
        "gradients are not clipped",
        _with(max_grad_norm=1e-4),
    ),
    _fault(
        "clipped_before_unscaling",
        (73,),
        ("clip_ratio",),
        "gradients are not clipped",
        _unscaled_late,
        only_in("fp16"),
    ),
    _fault(
        "schedule_moves_on_skipped",
        (74,),
        RATE,
        SCHEDULE,
        _schedule_on_skipped,
        only_in("fp16"),
    ),
    _fault(
        "loss_not_scaled",
        (71,),
        ("loss_unscaled",),
        "float16 without a scaled loss",
        _with(scaler=GradScaler("cpu", enabled=False)),
        only_in("fp16"),
    ),
    _fault(
        "autocast_missing",
        (75,),
        ("precision_not_applied",),
        "run.precision is not applied",
        _with(autocast=nullcontext),
        half,
    ),
    _fault(
        "evaluation_mode",
        (95,),
        ("dropout_off",),
        "the model trains in evaluation mode",
        _evaluating,
        _has_dropout,
    ),
    _fault(
        "adapters_off",
        (),
        ("adapters_off",),
        "adapters are switched off or merged while the model trains",
        _without_adapters,
        below_adapter,
        gate="overfit_gate",
    ),
    _fault(
        "frozen_moved",
        (),
        ("frozen_changed",),
        "the optimizer holds frozen parameters, or decays them",
        _frozen_moved,
    ),
)
