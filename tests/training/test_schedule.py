"""The learning rate of every step is that of transformers' schedule of the same name."""

import numpy as np
import pytest
import torch
from torch import nn

from stages.config import UserError
from stages.training.batches import BatchPlan
from stages.training.schedule import (
    build_scheduler,
    constant_schedule,
    count_steps,
    count_warmup_steps,
    schedule_factor,
)

from ..settings import make_params

KINDS = ("cosine", "linear", "constant_with_warmup")


def make_optimizer(rate: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)


def applied_rates(scheduler: torch.optim.lr_scheduler.LRScheduler, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
        scheduler.optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (0, 40), (1, 2), (7, 40), (39, 40)])
def test_rates_equal_those_of_transformers_over_a_whole_run(
    kind: str, warmup: int, steps: int
) -> None:
    from transformers import get_scheduler

    theirs = applied_rates(get_scheduler(kind, make_optimizer(), warmup, steps), steps)
    ours = [schedule_factor(kind, warmup, steps)(step) for step in range(steps)]
    assert ours == pytest.approx(theirs, rel=0, abs=1e-12)


def test_the_factors_of_a_small_run_are_these() -> None:
    factors = [schedule_factor("linear", 2, 6)(step) for step in range(6)]
    assert factors == [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]
    factors = [schedule_factor("cosine", 2, 6)(step) for step in range(6)]
    assert factors == pytest.approx([0.0, 0.5, 1.0, 0.85355339, 0.5, 0.14644661])


def test_an_unknown_schedule_is_a_mistake_in_the_code() -> None:
    with pytest.raises(ValueError, match="no schedule is called 'step'"):
        schedule_factor("step", 0, 10)(5)


def test_the_scheduler_applies_the_factors_to_the_peak_rate() -> None:
    train = make_params(train__warmup_steps=4, train__lr_scheduler_type="linear").train
    rates = applied_rates(build_scheduler(make_optimizer(0.5), train, 20), 20)
    factor = schedule_factor("linear", 4, 20)
    assert rates == [0.5 * factor(step) for step in range(20)]
    assert rates[:5] == [0.0, 0.125, 0.25, 0.375, 0.5]


def test_the_rate_of_the_overfit_gate_is_constant() -> None:
    assert applied_rates(constant_schedule(make_optimizer(0.3)), 5) == [0.3] * 5


@pytest.mark.parametrize(
    ("values", "rows", "steps"),
    [
        ({"max_steps": 7}, 1000, 7),
        ({"max_steps": -1, "num_train_epochs": 3.0}, 8, 6),
        ({"max_steps": -1, "num_train_epochs": 3.0}, 9, 7),
        ({"max_steps": -1, "num_train_epochs": 0.5}, 16, 2),
        ({"max_steps": -1, "num_train_epochs": 0.01}, 4, 1),
        ({"max_steps": -1, "num_train_epochs": 1.0, "gradient_accumulation_steps": 8}, 32, 2),
        ({"max_steps": -1, "num_train_epochs": 1.0, "num_processes": 4}, 32, 2),
    ],
)
def test_steps_are_counted_by_max_steps_or_epochs(
    values: dict[str, float], rows: int, steps: int
) -> None:
    train = make_params(**{f"train__{key}": value for key, value in values.items()}).train
    plan = BatchPlan(np.ones(rows, np.int64), 64, train, 0)
    assert count_steps(train, plan) == steps


@pytest.mark.parametrize(
    ("ratio", "given", "steps", "warmup"),
    [(0.1, 0, 20, 2), (0.1, 0, 21, 3), (0.0, 0, 20, 0), (0.5, 3, 20, 3), (0.01, 0, 20, 1)],
)
def test_warm_up_steps_are_given_or_a_ratio_rounded_up(
    ratio: float, given: int, steps: int, warmup: int
) -> None:
    train = make_params(train__warmup_ratio=ratio, train__warmup_steps=given).train
    assert count_warmup_steps(train, steps) == warmup


@pytest.mark.parametrize(("given", "ratio"), [(20, 0.0), (0, 0.99)])
def test_a_warm_up_as_long_as_the_training_is_refused(given: int, ratio: float) -> None:
    train = make_params(train__warmup_ratio=ratio, train__warmup_steps=given).train
    with pytest.raises(UserError) as caught:
        count_warmup_steps(train, 20)
    assert str(caught.value) == (
        "params.yaml: the warm-up of 20 steps is not shorter than the training of 20; "
        "lower train.warmup_steps or train.warmup_ratio, or train longer"
    )
