"""Faults planted through the hooks end at the manifest, named, and leave no model."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from ..project import Project

INVERTED = """
import torch
from stages.chat.collator import collate

def collator(rows, pad_token_id):
    batch = collate(rows, pad_token_id)
    masked = batch["labels"] == -100
    real = batch["attention_mask"] == 1
    batch["labels"] = torch.where(masked & real, batch["input_ids"], -100)
    return batch
"""
STOP_MASKED = """
from stages.chat.collator import collate

def collator(rows, pad_token_id, stop):
    batch = collate(rows, pad_token_id)
    batch["labels"][batch["labels"] == stop] = -100
    return batch
"""
SHIFTED_TWICE = """
from stages.chat.collator import collate

def collator(rows, pad_token_id):
    batch = collate(rows, pad_token_id)
    batch["labels"] = batch["labels"].roll(-1, dims=1)
    return batch
"""
SCHEDULE_AT_ZERO = """
from stages.training.step import train_step

def step(model, micro_batches, *, optimizer, **rest):
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    return train_step(model, micro_batches, optimizer=optimizer, **rest)
"""
FROZEN_HEAD = """
from stages.models.tiny_gpt import TinyGPT

def model(vocab_size):
    gpt = TinyGPT(vocab_size)
    gpt.lm_head.weight.requires_grad_(False)
    return gpt
"""
STATE_OUTSIDE = """
from stages.models.tiny_gpt import CausalLMOutput, TinyGPT

class Annealed(TinyGPT):
    calls = 0

    def forward(self, **inputs):
        self.calls += self.training
        return CausalLMOutput(super().forward(**inputs).logits * (1 + self.calls / 1000))

def model(vocab_size):
    return Annealed(vocab_size)
"""
SCALED_LOSS = """
from stages.training.loss import causal_lm_loss

def loss(logits, labels, num_items):
    return 1e-4 * causal_lm_loss(logits, labels, num_items)
"""


@dataclass(frozen=True)
class Fault:
    """A plugin, where it is plugged in, and which gate and check must name it."""

    source: str
    params: dict[str, Any]
    gate: str
    checks: set[str]
    cause: str
    also: set[str] = field(default_factory=set)


FAULTS = {
    "labels_inverted": Fault(
        INVERTED,
        {"data__collator": {"_target_": "stages.plugins.mine.collator"}},
        "mask_report",
        {"collated_prompt_supervised", "collated_content_masked", "collated_stop_masked"},
        "the collator inverts the labels",
    ),
    "stop_token_masked": Fault(
        STOP_MASKED,
        {"data__collator": {"_target_": "stages.plugins.mine.collator", "stop": 2}},
        "mask_report",
        {"collated_stop_masked"},
        "the collator masks the stop token",
    ),
    "labels_shifted_twice": Fault(
        SHIFTED_TWICE,
        {"data__collator": {"_target_": "stages.plugins.mine.collator"}},
        "mask_report",
        {"collated_labels_shifted", "collated_inputs_changed"},
        "the collator shifts the labels, and the loss shifts them again",
    ),
    "schedule_at_zero": Fault(
        SCHEDULE_AT_ZERO,
        {"train__step": {"_target_": "stages.plugins.mine.step"}},
        "gradient_probe",
        {"learning_rate_error", "unchanged"},
        "the schedule stays at 0",
    ),
    "frozen_head": Fault(
        FROZEN_HEAD,
        {
            "model": {
                "_target_": "stages.plugins.mine.model",
                "name": "mine",
                "tokenizer": "data/tokenizer",
                "frozen": [],
            }
        },
        "gradient_probe",
        {"undeclared_frozen"},
        "parameters are frozen that nobody declared frozen",
    ),
    "state_outside_the_checkpoint": Fault(
        STATE_OUTSIDE,
        {
            "model": {
                "_target_": "stages.plugins.mine.model",
                "name": "mine",
                "tokenizer": "data/tokenizer",
                "frozen": [],
            }
        },
        "gradient_probe",
        {"resume_differs"},
        "a resumed run computes otherwise from the same state and batch",
    ),
    "scaled_loss": Fault(
        SCALED_LOSS,
        {"train__loss": {"_target_": "stages.plugins.mine.loss"}},
        "overfit_gate",
        {"loss_error"},
        "the loss is not the mean cross-entropy",
    ),
}


QUICK = ("labels_inverted",)
LONGER = ("stop_token_masked", "schedule_at_zero")
NAMES = [
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.slow) for name in LONGER),
    *(
        pytest.param(name, marks=pytest.mark.matrix)
        for name in FAULTS
        if name not in (*QUICK, *LONGER)
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_fault_is_refused_and_named(fresh: Project, name: str) -> None:
    fault = FAULTS[name]
    fresh.plug_in(fault.source)
    fresh.set_params(**fault.params)
    output = fresh.repro(code=255)

    verdict = fresh.json(f"gates/{fault.gate}.json")
    failed = {check["id"]: check for check in verdict["checks"] if check["status"] == "fail"}
    assert fault.checks <= set(failed)
    assert verdict["causes"][0].startswith(fault.cause)

    refusal = output[output.index("training is not cleared") :]
    for check_id in fault.checks:
        check = failed[check_id]
        assert f"{fault.gate}: {check_id}: {check['rule']}: {check['message']}" in refusal
        assert check["remedy"] in refusal
    assert fault.cause in refusal
    assert "failed to reproduce 'manifest'" in output
    for path in ("training_manifest.json", "clearance.json", "models/final"):
        assert not fresh.exists(path)

    again = fresh.repro(code=255)
    assert fresh.ran(again) == ["manifest"]
    assert fresh.computed_steps() == []
