"""Faults that a loss curve hides are refused by gate 3, and their cause is named."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from stages.chat.collator import Batch
from stages.config.load import flatten
from stages.gradient_probe import measure
from stages.models.tiny_gpt import CausalLMOutput, TinyGPT
from stages.probes import gradients
from stages.probes.gradients import run_gradient_probe
from stages.probes.resume import ResumeCheck, Stretch
from stages.training import setup
from stages.training.loss import causal_lm_loss
from stages.training.step import StepResult, train_step
from stages.verdict.judging import failed_ids, judge_all, rank_causes
from stages.verdict.rules.gradient_probe import RULES, causes_of

from ..parts import VOCABULARY
from ..settings import make_params, params_tree

UNCHECKED = ResumeCheck(Stretch(0, {}, [], {}), None, [])
Plant = Callable[[pytest.MonkeyPatch], None]


def plant_loss(change: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]) -> Plant:
    return lambda patch: patch.setattr(setup, "hooked_loss", lambda train: change)


def plant_step(step: Callable[..., StepResult]) -> Plant:
    return lambda patch: patch.setattr(setup, "hooked_step", lambda train: step)


def plant_model(build: Callable[[], nn.Module]) -> Plant:
    return lambda patch: patch.setattr(gradients, "build_model", lambda *_: build().train())


def shifted_twice(logits: torch.Tensor, labels: torch.Tensor, n: int) -> torch.Tensor:
    return causal_lm_loss(logits[:, :-1], labels[:, 1:], n)


def not_shifted(logits: torch.Tensor, labels: torch.Tensor, n: int) -> torch.Tensor:
    longer = torch.cat([logits, logits[:, -1:]], 1), torch.cat([labels[:, :1], labels], 1)
    return causal_lm_loss(*longer, n)


def mean_of_means(model: nn.Module, batches: Sequence[Batch], **rest: Any) -> StepResult:
    def loss(logits: torch.Tensor, labels: torch.Tensor, n: int) -> torch.Tensor:
        own = int((labels[:, 1:] != -100).sum())
        return causal_lm_loss(logits, labels, own) / len(batches)

    return train_step(model, batches, **{**rest, "loss_fn": loss})


def in_evaluation_mode(model: nn.Module, batches: Sequence[Batch], **rest: Any) -> StepResult:
    return train_step(model.eval(), batches, **rest)


def without_autocast(model: nn.Module, batches: Sequence[Batch], **rest: Any) -> StepResult:
    return train_step(model, batches, **{**rest, "autocast": nullcontext})


class Changed(nn.Module):
    """A TinyGPT whose embedded inputs or logits pass through `operation`."""

    def __init__(self, *, inputs: Any = None, outputs: Any = None) -> None:
        super().__init__()
        self.gpt = TinyGPT(VOCABULARY, 16, 1, 2, 64)
        if inputs is not None:
            self.gpt.embedding.register_forward_hook(lambda m, a, output: inputs(output))
        self.outputs = outputs or (lambda logits: logits)

    def forward(self, **inputs: torch.Tensor) -> CausalLMOutput:
        return CausalLMOutput(self.outputs(self.gpt(**inputs).logits))


FAULTS: dict[str, tuple[Plant, dict[str, Any], set[str], str]] = {
    "shifted_twice": (
        plant_loss(shifted_twice),
        {},
        {"targets_wrong"},
        "labels are shifted twice",
    ),
    "not_shifted": (plant_loss(not_shifted), {}, {"targets_wrong"}, "labels are not shifted"),
    "sign": (
        plant_loss(lambda *given: -causal_lm_loss(*given)),
        {},
        {"targets_wrong", "targets_raised"},
        "the loss has the wrong sign",
    ),
    "scaled": (
        plant_loss(lambda *given: 1e-4 * causal_lm_loss(*given)),
        {},
        {"target_weight_error"},
        "the loss is scaled",
    ),
    "mean_of_means": (
        plant_step(mean_of_means),
        {},
        {"target_weight_error"},
        "the loss is scaled: summed, divided by the tokens of each micro-batch",
    ),
    "sees_all": (
        plant_model(lambda: Changed(outputs=lambda x: x + x.mean(1, keepdim=True))),
        {},
        {"sees_future"},
        "the model sees the tokens that it shall predict",
    ),
    "mixes_rows": (
        plant_model(lambda: Changed(outputs=lambda x: x + x.mean((0, 1), keepdim=True) * 0.1)),
        {},
        {"sees_others"},
        "the model sees the tokens that it shall predict",
    ),
    "random_in_evaluation": (
        plant_model(lambda: Changed(outputs=lambda x: dropout(x, 0.1))),
        {},
        {"evaluation_differs"},
        "something is random in evaluation mode",
    ),
    "evaluation_mode": (
        plant_step(in_evaluation_mode),
        {"model__dropout": 0.1},
        {"dropout_off"},
        "the model trains in evaluation mode",
    ),
    "no_autocast": (
        plant_step(without_autocast),
        {"run__precision": "bf16"},
        {"precision_not_applied"},
        "run.precision is not applied",
    ),
    "half_weights": (
        plant_model(lambda: Changed().to(torch.bfloat16)),
        {"train__learning_rate": 2e-5},
        {"half_change"},
        "updates are lost to rounding",
    ),
}


def judged(params_of: dict[str, Any]) -> tuple[set[str], list[str]]:
    """(ids of failed checks, causes) of gate 3 on the rows of the fixture."""
    params = make_params(**params_of)
    probe = run_gradient_probe(params)
    measured = measure(probe, UNCHECKED, params.train, params.run.precision)
    checks = judge_all(RULES, measured, dict(flatten(params_tree(**params_of))))
    return failed_ids(checks), rank_causes(checks, causes_of(None, probe.first_step.targets.shift))


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_and_its_cause_is_the_first(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plant, params_of, expected, cause = FAULTS[name]
    plant(monkeypatch)
    failed, causes = judged(params_of)
    assert expected <= failed
    assert causes[0].startswith(cause)


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
WIRING = (
    *("targets_untrained", "targets_unasked", "targets_wrong", "targets_raised"),
    *("target_weight_error", "sees_future", "sees_others", "ignores_input", "dropout_off"),
    *("evaluation_differs", "precision_not_applied", "half_change"),
)


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_raises_no_alarm(name: str) -> None:
    failed, _ = judged(HEALTHY[name])
    assert failed & set(WIRING) == set()
    assert failed <= {"update_ratio", "median_norm"}  # limits that are not made for 32 words
