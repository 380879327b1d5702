"""The probe takes the first steps of the very training that follows."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from stages.chat.collator import Batch, collate
from stages.chat.token_store import TokenMeta, TokenStore
from stages.config import Params, parse_params, read_yaml
from stages.gradient_probe import measure, worst_clip_ratio
from stages.models.build import build_model
from stages.probes.gradients import _outside_optimizer, run_gradient_probe
from stages.probes.observe import StepRecord
from stages.probes.resume import ResumeCheck, Stretch
from stages.training import setup
from stages.training.determinism import make_deterministic
from stages.training.schedule import schedule_factor
from stages.training.setup import TrainingBatches, build_trainer
from stages.training.step import StepResult, train_step
from stages.verdict.judging import Measured

from ..parts import VOCABULARY, Bigram
from ..settings import ROOT, make_params, params_tree

CPU = torch.device("cpu")
UNCHECKED = ResumeCheck(Stretch(0, {}, [], {}), None, [])
INVARIANTS = (
    *("non_finite", "optimizer_calls_missing", "loss_unscaled", "stale_gradients"),
    *("without_gradient", "unchanged", "frozen_changed", "reentrant_over_frozen"),
)


@pytest.mark.usefixtures("tokens")
def test_the_rates_of_the_probed_steps_are_those_of_the_schedule() -> None:
    probe = run_gradient_probe(make_params())
    factor = schedule_factor("cosine", 2, 20)
    assert [record.learning_rate for record in probe.records] == [
        0.01 * factor(step) for step in range(4)
    ]
    assert (probe.warmup, probe.steps) == (2, 20)
    assert [record.optimizer_calls for record in probe.records] == [1] * 4


def test_the_probed_steps_are_those_of_the_training(tokens: TokenMeta) -> None:
    params = make_params(model__dropout=0.25)
    probe = run_gradient_probe(params)
    make_deterministic(params.run)
    trainer = build_trainer(params, build_model(params.model, VOCABULARY, CPU), 20)
    batches = TrainingBatches(TokenStore("train"), tokens, collate, params.train, 42, CPU)
    losses = [trainer.step(batches.of_step(step)).loss for step in range(4)]
    assert probe.losses == losses


@pytest.mark.usefixtures("tokens")
def test_a_sound_training_shows_nothing_amiss() -> None:
    probe = run_gradient_probe(make_params())
    names = [n for n, _ in build_model(make_params().model, VOCABULARY, CPU).named_parameters()]
    assert list(probe.changed) == names
    assert [name for name, share in probe.changed.items() if not share] == []
    assert (probe.frozen, probe.undeclared_frozen, probe.not_in_optimizer) == ([], [], [])
    assert [r.non_finite + r.stale_gradients for r in probe.records] == [[]] * 4
    assert sorted(probe.records[0].grad_norms) == sorted(names)
    assert [name for name, (before, after) in probe.weight_norms.items() if before == after] == []


@pytest.mark.usefixtures("tokens")
def test_packed_rows_show_nothing_amiss_and_their_documents_are_charted() -> None:
    probe = run_gradient_probe(make_params(train__packing=True))
    found, targets = probe.forward.dependencies, probe.first_step.targets
    assert found is not None
    assert found.asked == 4  # of two documents of four tokens
    assert (found.on_future, found.on_others, found.without_input) == ([], [], [])
    assert targets.asked > 20
    assert targets.untrained + targets.unasked + targets.wrong + targets.raised == []
    assert targets.weight_error < 1e-3


@pytest.mark.usefixtures("tokens")
def test_frozen_parameters_are_told_from_those_that_train() -> None:
    name = next(iter(dict(build_model(make_params().model, VOCABULARY, CPU).named_parameters())))
    probe = run_gradient_probe(make_params(model__frozen=[name]))
    assert (probe.frozen, probe.frozen_changed) == ([name], [])
    assert name not in probe.changed
    assert probe.undeclared_frozen == []


@pytest.mark.usefixtures("tokens")
def test_what_a_model_freezes_by_itself_is_declared_by_its_own_conf() -> None:
    model = {**read_yaml(ROOT / "conf/model/tiny_lora.yaml"), "max_length": 64}
    probe = run_gradient_probe(parse_params({**params_tree(), "model": model}))
    assert probe.undeclared_frozen == []
    assert probe.frozen_changed == []
    assert [name for name, share in probe.changed.items() if not share] == []
    assert {name.rpartition(".")[2] for name in probe.changed} == {"lora_A", "lora_B"}


@pytest.mark.usefixtures("tokens")
def test_no_more_steps_are_probed_than_the_training_has() -> None:
    probe = run_gradient_probe(make_params(train__max_steps=3))
    assert (len(probe.records), probe.steps) == (3, 3)


@pytest.mark.usefixtures("tokens")
def test_the_units_that_fire_are_watched() -> None:
    probe = run_gradient_probe(make_params())
    assert [record.module for record in probe.activations if record.dead is not None] != []


def test_a_parameter_that_the_optimizer_lacks_is_named() -> None:
    model = Bigram()
    model.norm.requires_grad_(False)
    optimizer = torch.optim.SGD([model.head.weight], lr=0.1)
    assert _outside_optimizer(model, optimizer) == ["embedding.weight", "head.bias"]
    model.head.bias = nn.Parameter(torch.zeros(VOCABULARY))
    assert _outside_optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1)) == []


def unscaled(model: nn.Module, batches: Sequence[Batch], **rest: Any) -> StepResult:
    """A step that knows nothing of float16."""
    disabled = GradScaler("cpu", enabled=False)
    return train_step(model, batches, **{**rest, "scaler": disabled})


def measured(params: Params) -> dict[str, Measured]:
    probe = run_gradient_probe(params)
    return measure(probe, UNCHECKED, params.train, params.run.precision, pretrained=False)


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_passes_and_a_loss_that_is_not_scaled_is_named_in_float16(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    params = make_params(run__precision=precision)
    healthy = measured(params)
    assert [healthy[name].value for name in INVARIANTS] == [0] * len(INVARIANTS)
    assert healthy["learning_rate_error"].value == pytest.approx(0.0, abs=1e-6)
    monkeypatch.setattr(setup, "hooked_step", lambda train: unscaled)
    found = measured(params)
    assert found["loss_unscaled"].value == (4 if precision == "fp16" else 0)


@pytest.mark.usefixtures("tokens")
def test_a_step_that_overflows_is_no_fault_of_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = make_params(run__precision="fp16")
    scaler = partial(GradScaler, "cpu", init_scale=2.0**127, growth_interval=1000)
    monkeypatch.setattr(setup, "make_scaler", lambda run: scaler(backoff_factor=2.0**-120))
    probe = run_gradient_probe(params)
    assert [record.skipped for record in probe.records] == [True, False, False, False]
    found = measure(probe, UNCHECKED, params.train, "fp16", pretrained=False)
    assert [found[name].value for name in INVARIANTS] == [0] * len(INVARIANTS)
    assert found["learning_rate_error"].value == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("norm", "applied", "ratio"),
    [
        (0.3, 0.3, 0.6),
        (5.0, 0.5, 1.0),
        (5.0, 5.0, 10.0),
        (5.0, 0.498, 0.996),  # rounded in bfloat16
        (5.0, 5e-5, 1e4),
        (5.0, 0.0, math.inf),
        (0.0, 0.0, 0.0),
    ],
)
def test_a_gradient_that_is_clipped_too_little_or_too_much_is_measured(
    norm: float, applied: float, ratio: float
) -> None:
    record = StepRecord(grad_norm=norm, applied_norm=applied)
    assert worst_clip_ratio([StepRecord(grad_norm=0.1, applied_norm=0.1), record], 0.5) == (
        pytest.approx(max(ratio, 0.2))
    )


def test_a_norm_that_is_no_number_is_none() -> None:
    assert math.isnan(worst_clip_ratio([StepRecord()], 1.0))


@pytest.mark.usefixtures("tokens")
def test_a_rate_that_is_far_too_high_shows_in_the_first_updates_however_many_are_probed() -> None:
    few, many = (
        measured(make_params(train__learning_rate=1.0, gates__gradient__steps=steps))[
            "update_ratio"
        ].value
        for steps in (6, 20)
    )
    assert isinstance(few, float)
    assert isinstance(many, float)
    assert few == many > 1.0


@pytest.mark.usefixtures("tokens")
def test_updates_of_a_pretrained_model_are_held_against_a_limit_of_their_own() -> None:
    params = make_params()
    probe = run_gradient_probe(params)
    scratch, tuned = (
        measure(probe, UNCHECKED, params.train, "fp32", pretrained=pretrained)
        for pretrained in (False, True)
    )
    assert scratch["pretrained_update_ratio"].value == 0.0
    assert tuned["update_ratio"] == scratch["update_ratio"]
    few, largest = (tuned[name].value for name in ("pretrained_update_ratio", "update_ratio"))
    assert isinstance(few, float)
    assert isinstance(largest, float)
    assert 0 < few <= largest
