"""No log of a run that went well raises an alarm, of any family, schedule or noise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from stages.curves.columns import Rows, to_run_log
from stages.curves.diagnosis import diagnose
from stages.curves.read_log import read_log
from stages.curves.signature import Known

from .healthy_runs import HEALTHY, Columns, by_epoch
from .logs import diagnosis_of, faults_of, log_of
from .trained_runs import (
    CLASSES,
    Attention,
    Optimizer,
    Schedule,
    adagrad,
    adamw,
    constant,
    linear,
    momentum,
    perceptron,
    rmsprop,
    stairs,
    train,
    warm_linear,
)

BY_STEP = [family for family in HEALTHY if family is not by_epoch]
OWN_RUN = Path(__file__).parent / "own_run_telemetry.csv"
"""reports/full_train/telemetry.csv of the repository's own configuration."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", HEALTHY, ids=lambda family: family.__name__)
def test_a_healthy_log_raises_no_alarm(
    family: Callable[[np.random.Generator], Columns], seed: int
) -> None:
    known = Known(classes=2 if family.__name__ == "binary" else None, max_grad_norm=1.0)
    found = diagnosis_of(family(np.random.default_rng(seed)), known)
    assert [(one.id, one.evidence) for one in found.faults] == []
    assert found.exit_code == 0


@pytest.mark.parametrize("every", [5, 20])
@pytest.mark.parametrize("family", BY_STEP, ids=lambda family: family.__name__)
def test_nor_does_one_that_is_averaged_over_steps(
    family: Callable[[np.random.Generator], Columns], every: int
) -> None:
    columns = family(np.random.default_rng(7))
    length = len(columns["step"]) // every * every
    averaged: dict[str, Any] = {}
    for name, values in columns.items():
        blocks = np.array(values[:length]).reshape(-1, every)
        averaged[name] = (
            np.nanmax(np.nan_to_num(blocks, nan=-1.0), axis=1)
            if name == "val_loss"
            else blocks[:, -1]
            if name in ("step", "lr", "learning_rate")
            else blocks.mean(axis=1)
        )
    averaged = {
        name: [None if name == "val_loss" and value < 0 else value for value in values.tolist()]
        for name, values in averaged.items()
    }
    assert faults_of(averaged) == []


def test_our_own_run_raises_no_alarm() -> None:
    found = diagnose(read_log(OWN_RUN, {}), Known(classes=740, max_grad_norm=1.0))
    assert [(one.id, one.evidence) for one in found.faults] == []
    assert [one.id for one in found.not_judged] == []


def test_nor_does_a_part_of_it_that_a_restart_logged() -> None:
    whole = read_log(OWN_RUN, {})
    loss, rate = whole.loss, whole.learning_rate
    assert loss is not None and rate is not None
    columns = {"step": loss.steps[150:], "loss": loss.values[150:], "lr": rate.values[150:]}
    assert faults_of({name: values.tolist() for name, values in columns.items()}) == []


TRAINED: tuple[tuple[Callable[[], nn.Module], Optimizer, float, Schedule], ...] = (
    (perceptron, adamw, 3e-3, warm_linear),
    (perceptron, momentum, 0.05, stairs),
    (perceptron, rmsprop, 1e-3, warm_linear),
    (Attention, adamw, 3e-3, constant),
    (Attention, momentum, 0.05, warm_linear),
    (linear, adagrad, 0.03, constant),
    (linear, momentum, 0.05, stairs),
)


def name_of(case: tuple[Callable[[], nn.Module], Optimizer, float, Schedule]) -> str:
    build, optimizer, rate, schedule = case
    return f"{build.__name__}-{optimizer.__name__}-{rate}-{schedule.__name__}"


@pytest.mark.slow
@pytest.mark.parametrize("case", TRAINED, ids=name_of)
def test_a_model_that_trains_well_raises_no_alarm(
    case: tuple[Callable[[], nn.Module], Optimizer, float, Schedule],
) -> None:
    found = diagnosis_of(train(*case), Known(classes=CLASSES))
    assert [(one.id, one.evidence) for one in found.faults] == []


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 128])
def test_nor_do_small_or_large_batches(batch: int) -> None:
    assert faults_of(train(perceptron, batch=batch), Known(classes=CLASSES)) == []


def test_a_log_without_any_column_of_a_known_name_is_not_judged() -> None:
    found = diagnose(to_run_log(Rows("columns", [("line 1", {"speed": 3.0})]), {}), Known())
    assert found.exit_code == 2


def test_nine_losses_are_not_enough() -> None:
    columns: Columns = {
        "step": [float(i) for i in range(9)],
        "loss": [3.0 - 0.1 * i for i in range(9)],
    }
    assert diagnosis_of(columns).exit_code == 2
    assert log_of(columns).loss is not None
