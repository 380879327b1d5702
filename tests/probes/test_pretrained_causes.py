"""Faults of pretrained models are refused by gates 2 and 3, and their cause is named."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from transformers import PreTrainedModel

from stages import gradient_probe, overfit_gate
from stages.chat.collator import Batch, collate
from stages.chat.token_store import TOKENS, TokenMeta, write_meta
from stages.config.load import flatten
from stages.config.schema import Params
from stages.probes.gradients import run_gradient_probe
from stages.probes.overfit import run_overfit
from stages.probes.resume import ResumeCheck, Stretch
from stages.provenance.base_model import keep
from stages.training import setup
from stages.training.step import StepResult, train_step
from stages.verdict.judging import failed_ids, judge_all, rank_causes
from stages.verdict.rules import gradient_probe as gradient_rules
from stages.verdict.rules import overfit_gate as overfit_rules

from ..models.llama import hub_params, tiny_llama
from ..parts import PAD, STOP, VOCABULARY, make_rows, write_store
from ..settings import params_tree

UNCHECKED = ResumeCheck(Stretch(0, {}, [], {}), None, [])
ADDED = VOCABULARY
"""The id of a stop token that the base model never saw."""


@pytest.fixture(scope="module")
def trained() -> Any:
    """A Llama that knows the rows of the fixture."""
    model = tiny_llama(VOCABULARY)
    batch = collate(make_rows(12), PAD)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.fixture
def adapt(
    tokens: TokenMeta, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Params]:
    """Params of an adapter over the Llama, or over another model."""
    monkeypatch.setenv("HOLDSHORT_MODELS", str(tmp_path / "store"))

    def params(model: Any = None, **values: Any) -> Params:
        (model or trained).save_pretrained(tmp_path / "model")
        return hub_params(keep(tmp_path / "model", "llama"), **values)

    return params


def gate_2(params: Params) -> tuple[set[str], list[str]]:
    """(ids of failed checks, causes) of the overfit gate after two steps."""
    run = run_overfit(params, 42, steps=2)
    other = replace(run.trace, losses=[9.0, 9.0])
    measured = overfit_gate.measure(run, run, run.trace, other, pretrained=True)
    return judged(
        overfit_rules.RULES, measured, overfit_rules.causes_of(run.initial.guesses_evenly)
    )


def gate_3(params: Params) -> tuple[set[str], list[str]]:
    """(ids of failed checks, causes) of the gradient probe."""
    probe = run_gradient_probe(params)
    measured = gradient_probe.measure(
        probe, UNCHECKED, params.train, params.run.precision, pretrained=True
    )
    targets = probe.first_step.targets
    causes = gradient_rules.causes_of(None, targets.shift, loss_is_silent=targets.loss_is_silent)
    return judged(gradient_rules.RULES, measured, causes)


def judged(rules: Sequence[Any], measured: Any, causes: Any) -> tuple[set[str], list[str]]:
    checks = judge_all(rules, measured, dict(flatten(params_tree())))
    return failed_ids(checks), rank_causes(checks, causes)


ASKED_HERE = {"pretrained_loss_share", "adapters_off", "stop_row_alike", "frozen_changed"}


@pytest.mark.parametrize("adapter", ["lora", "none"])
def test_a_healthy_pretrained_model_raises_no_alarm(
    adapt: Callable[..., Params], adapter: str
) -> None:
    failed, _ = gate_2(adapt(model_adapter=adapter))
    assert failed & ASKED_HERE == set()


def test_weights_that_are_random_are_named(adapt: Callable[..., Params]) -> None:
    failed, causes = gate_2(adapt(tiny_llama(VOCABULARY)))
    assert "pretrained_loss_share" in failed
    assert "the model guesses evenly, as a random one does: its weights are not loaded" in causes


def test_tokens_of_another_tokenizer_are_named(adapt: Callable[..., Params]) -> None:
    rows = make_rows(12)
    for row in rows:
        row.input_ids[:] = (row.input_ids + 7) % VOCABULARY
        row.labels[row.labels >= 0] = row.input_ids[row.labels >= 0]
    write_store(TOKENS, "train", rows)
    failed, causes = gate_2(adapt())
    assert "pretrained_loss_share" in failed
    assert any(cause.startswith("the model is sure of other tokens") for cause in causes)


def without_adapters(model: Any, batches: Sequence[Batch], **rest: Any) -> StepResult:
    with model.disable_adapter():
        return train_step(model, batches, **rest)


def test_adapters_that_are_off_while_the_model_trains_are_named(
    adapt: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "hooked_step", lambda train: without_adapters)
    failed, causes = gate_2(adapt())
    assert "adapters_off" in failed
    assert causes[0].startswith("adapters are switched off or merged while the model trains")


def add_stop_token(trained: Any) -> PreTrainedModel:
    """The Llama with a row more, and the rows of the fixture with a stop token that is new."""
    rows = make_rows(12)
    for row in rows:
        for ids in (row.input_ids, row.labels):
            ids[ids == STOP] = ADDED
    meta = write_store(TOKENS, "train", rows)
    write_meta(replace(meta, vocab_size=VOCABULARY + 1, stop_token_id=ADDED), TOKENS)
    model: PreTrainedModel = copy.deepcopy(trained)
    model.resize_token_embeddings(VOCABULARY + 1)
    return model


def test_a_stop_token_that_was_added_to_a_frozen_head_is_named(
    adapt: Callable[..., Params], trained: Any
) -> None:
    failed, causes = gate_2(adapt(add_stop_token(trained)))
    assert "stop_row_alike" in failed
    assert any(cause.startswith("the base model never learned the stop token") for cause in causes)


@pytest.mark.parametrize(
    "values", [{"model_adapter": "none"}, {"model_lora": {"modules_to_save": ["lm_head"]}}]
)
def test_a_stop_token_that_was_added_to_a_head_that_trains_raises_no_alarm(
    adapt: Callable[..., Params], trained: Any, values: dict[str, Any]
) -> None:
    failed, _ = gate_2(adapt(add_stop_token(trained), **values))
    assert "stop_row_alike" not in failed


def test_reentrant_checkpointing_over_a_frozen_base_is_named(
    adapt: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreTrainedModel, "enable_input_require_grads", lambda model: None)
    params = adapt(
        train__gradient_checkpointing=True,
        train__gradient_checkpointing_kwargs={"use_reentrant": True},
    )
    failed, causes = gate_3(params)
    assert {"reentrant_over_frozen", "without_gradient", "unchanged"} <= failed
    assert causes[0].startswith("reentrant checkpointing over a frozen base cuts the graph")


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_as_transformers_sets_it_up_raises_no_alarm(
    adapt: Callable[..., Params], use_reentrant: bool
) -> None:
    params = adapt(
        train__gradient_checkpointing=True,
        train__gradient_checkpointing_kwargs={"use_reentrant": use_reentrant},
    )
    failed, _ = gate_3(params)
    assert failed & {"reentrant_over_frozen", "without_gradient", "unchanged"} == set()


def unscaled(model: nn.Module, batches: Sequence[Batch], **rest: Any) -> StepResult:
    return train_step(model, batches, **{**rest, "scaler": GradScaler("cpu", enabled=False)})


def test_float16_without_a_scaled_loss_is_named(
    adapt: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "hooked_step", lambda train: unscaled)
    failed, causes = gate_3(adapt(run__precision="fp16"))
    assert "loss_unscaled" in failed
    assert "float16 without a scaled loss: small gradients become 0" in causes
