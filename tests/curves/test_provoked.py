"""Faults put into trainings that really run show in their curves, and their cause is named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stages.curves.signature import Known

from .logs import diagnosis_of
from .trained_runs import (
    CLASSES,
    Attention,
    Columns,
    Task,
    adamw,
    constant,
    momentum,
    perceptron,
    train,
    warm_linear,
)


def freeze_all_but_the_last_bias(model: nn.Module) -> None:
    for parameter in list(model.parameters())[:-1]:
        parameter.requires_grad_(False)


def at_step(
    step: int, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]:
    return lambda now, inputs, labels: change(inputs, labels) if now == step else (inputs, labels)


def to_nan(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return inputs * torch.nan, labels


def wrong(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return inputs, (labels + 1) % CLASSES


def blank(step: int, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(inputs), labels


def sorted_by_label(step: int, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return inputs, torch.full_like(labels, step // 15 % CLASSES)


def twice_as_fast(done: float) -> float:
    return max(warm_linear(2 * done), 0.0)


def little_data() -> Columns:
    few = Task(rows=128, spread=1.0, wrong_labels=0.2)
    return train(lambda: perceptron(width=256), schedule=constant, steps=200, task=few)


PROVOKED: dict[str, tuple[Callable[[], Columns], str, str]] = {
    "rate_0": (lambda: train(perceptron, rate=0.0, steps=200), "flat", "rate is 0"),
    "nothing_trains": (
        lambda: train(perceptron, steps=200, prepare=freeze_all_but_the_last_bias),
        "flat",
        "no gradient reaches",
    ),
    "rate_x100": (
        lambda: train(perceptron, momentum, 5.0, constant, steps=120),
        "early_spike",
        "no warm-up",
    ),
    "rate_x100_attention": (
        lambda: train(Attention, momentum, 5.0, constant, steps=120),
        "norm_not_finite",  # when the loss follows depends on the processor
        "the learning rate is too high",
    ),
    "inputs_of_nan_at_step_0": (
        lambda: train(perceptron, steps=40, spoil=at_step(0, to_nan)),
        "nan_early",
        "inputs hold NaN",
    ),
    "inputs_of_nan_at_step_120": (
        lambda: train(perceptron, steps=160, spoil=at_step(120, to_nan)),
        "nan_late",
        "a bad batch",
    ),
    "wrong_labels_at_step_120": (
        lambda: train(perceptron, steps=160, spoil=at_step(120, wrong)),
        "spike",
        "bad batches",
    ),
    "blank_inputs": (
        lambda: train(perceptron, steps=150, spoil=blank),
        "at_prior",
        "inputs do not reach the loss",
    ),
    "little_data": (little_data, "overfitting", "too many epochs"),
    "sorted_by_label": (
        lambda: train(perceptron, adamw, 0.01, constant, steps=150, spoil=sorted_by_label),
        "divergence",
        "the data changed its kind",
    ),
    "schedule_twice_as_fast": (
        lambda: train(perceptron, schedule=twice_as_fast, steps=150),
        "rate_steps_twice",
        "more than once a step",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.matrix if number % 3 else pytest.mark.slow)
        for number, name in enumerate(PROVOKED)
    ],
)
def test_the_fault_shows_and_its_cause_is_named(name: str) -> None:
    provoke, signature, cause = PROVOKED[name]
    found = diagnosis_of(provoke(), Known(classes=CLASSES))
    by_id: dict[str, Any] = {one.id: one for one in found.faults}
    assert signature in by_id, list(by_id)
    assert any(cause in one.text for one in found.causes_of(by_id[signature]))
    assert found.exit_code == 1


@pytest.mark.slow
def test_a_rate_of_0_is_the_first_cause_of_a_flat_loss_where_it_is_logged() -> None:
    found = diagnosis_of(train(perceptron, rate=0.0, steps=100))
    (flat,) = (one for one in found.faults if one.id == "flat")
    assert "rate is 0" in found.causes_of(flat)[0].text
