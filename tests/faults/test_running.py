"""Faults that a loss curve hides are refused by their gate, and their cause is named."""

from typing import Any

import pytest

from stages.faults.catalogue import FAULTS
from stages.faults.running import judge_seen, observe_gradients, run_gates
from stages.training.setup import Parts

from ..settings import make_params
from .configurations import CONFIGURATIONS, configured, run_where_it_applies

BY_NAME = {fault.name: fault for fault in FAULTS}
HIDDEN = (
    "shifted_twice",
    "not_shifted",
    "wrong_sign",
    "scaled_down",
    "mean_of_means",
    "sees_all",
    "rows_mixed",
    "random_in_evaluation",
    "evaluation_mode",
    "autocast_missing",
    "bfloat16_weights",
)


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("name", HIDDEN)
def test_a_fault_is_refused_and_its_cause_is_the_first(name: str) -> None:
    fault = BY_NAME[name]
    found = run_where_it_applies(fault).found[fault.gate]
    assert set(fault.checks) & set(found.checks)
    assert fault.cause in found.causes[0]


@pytest.mark.usefixtures("tokens")
def test_a_fault_leaves_nothing_behind() -> None:
    params = configured("plain")
    before = observe_gradients(params, Parts.of(params)).measured
    parts, planted = BY_NAME["zero_grad_missing"].plant(Parts.of(params), params)
    assert observe_gradients(planted, parts).measured != before
    assert observe_gradients(params, Parts.of(params)).measured == before


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_healthy_run_passes_both_gates(name: str) -> None:
    params = configured(name)
    found = run_gates(params, Parts.of(params), twice=True).found
    assert found["overfit_gate"].checks == []
    assert found["gradient_probe"].checks == []


HEALTHY: dict[str, dict[str, Any]] = {
    "as_it_is": {},
    "dropout": {"model__dropout": 0.3},
    "bf16": {"run__precision": "bf16"},
    "fp16": {"run__precision": "fp16"},
    "tied": {"model__tie_word_embeddings": True},
    "window": {"model__local_window": 2},
    "one_batch": {"train__gradient_accumulation_steps": 1},
    "single_rows": {
        "train__per_device_train_batch_size": 1,
        "train__gradient_accumulation_steps": 6,
    },
    "packed": {"train__packing": True},
    "by_length": {"train__group_by_length": True},
    "constant_rate": {"train__lr_scheduler_type": "constant_with_warmup"},
    "linear": {"train__lr_scheduler_type": "linear", "train__warmup_steps": 3},
}


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_raises_no_alarm(name: str) -> None:
    params = make_params(**HEALTHY[name])
    found = judge_seen(observe_gradients(params, Parts.of(params)), params)
    failed = set(found.checks) - set(found.warned)
    assert failed <= {"median_norm"}  # its limits are not made for 32 words
