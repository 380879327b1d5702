"""The overfit run takes production steps on a handful of rows, and repeats to the bit."""

import math
from typing import cast

import pytest
import torch
from torch import nn

from stages import overfit_gate
from stages.chat.collator import collate
from stages.chat.token_store import TokenMeta, TokenStore, read_meta
from stages.config import Params, UserError
from stages.config.load import Declared, declared_keys
from stages.models.build import build_model
from stages.overfit_gate import measure
from stages.probes.fingerprint import RunTrace, first_difference
from stages.probes.initial_loss import InitialLoss
from stages.probes.overfit import (
    OverfitRun,
    blank_inputs,
    build_overfit_trainer,
    choose_rows,
    replay_in_fresh_processes,
    run_overfit,
    steps_to_learn,
)
from stages.probes.stop_row import StopRow
from stages.training.determinism import seed_everything
from stages.training.loss import causal_lm_loss
from stages.training.setup import Parts, collate_together
from stages.training.step import train_step
from stages.verdict.judging import Check, judge_all, rank_causes
from stages.verdict.rules.overfit_gate import RULES, causes_of

from ..parts import PAD, VOCABULARY, make_batch, make_rows
from ..settings import make_params

CPU = torch.device("cpu")


@pytest.mark.usefixtures("tokens")
def test_the_rows_of_a_seed_are_these() -> None:
    store = TokenStore("train")
    assert choose_rows(store, 4, 42) == [0, 6, 7, 9]
    assert choose_rows(store, 4, 43) != choose_rows(store, 4, 42)


@pytest.mark.usefixtures("tokens")
def test_no_row_is_drawn_twice() -> None:
    assert choose_rows(TokenStore("train"), 12, 0) == list(range(12))


@pytest.mark.usefixtures("tokens")
def test_fewer_rows_than_the_gate_needs_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        choose_rows(TokenStore("train"), 13, 0)
    assert str(caught.value) == (
        "the training split has 12 rows, but gates.overfit.num_samples is 13; add data, or lower it"
    )


def test_blanked_inputs_say_nothing_and_keep_their_targets() -> None:
    batch = make_batch(4)
    blanked = blank_inputs(batch, PAD)
    assert set(blanked["input_ids"].flatten().tolist()) == {PAD}
    assert blanked["input_ids"].shape == batch["input_ids"].shape
    assert blanked["labels"].equal(batch["labels"])
    assert blanked["attention_mask"].equal(batch["attention_mask"])
    assert not batch["input_ids"].equal(blanked["input_ids"])


def test_the_gate_takes_the_production_step_without_decay_dropout_and_schedule(
    tokens: TokenMeta,
) -> None:
    params = make_params(
        model__dropout=0.5, gates__overfit__learning_rate=0.02, train__max_grad_norm=0.75
    )
    trainer = build_overfit_trainer(params, tokens, CPU, Parts.of(params))
    assert (trainer.step_fn, trainer.loss_fn) == (train_step, causal_lm_loss)
    assert trainer.max_grad_norm == 0.75
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.0}
    rates = [trainer.step([make_batch(2)]).learning_rate for _ in range(3)]
    assert rates == [0.02] * 3
    assert {m.p for m in trainer.model.modules() if isinstance(m, nn.Dropout)} == {0.0}


@pytest.mark.usefixtures("tokens")
def test_a_run_reports_the_loss_before_each_step_and_after_the_last() -> None:
    run = run_overfit(make_params(), 42)
    assert len(run.losses) == 4
    assert run.losses[0] == pytest.approx(run.initial.loss, rel=1e-6)
    assert run.losses[-1] < run.losses[0]
    assert list(run.trace.losses) == run.losses[:-1]
    assert len(run.trace.grad_norms) == 3
    chosen = [make_rows(12)[row].source for row in choose_rows(TokenStore("train"), 4, 42)]
    assert run.rows == chosen
    assert (run.frozen, run.frozen_changed) == (0, [])


@pytest.mark.usefixtures("tokens")
def test_rows_are_packed_where_those_of_the_training_are() -> None:
    params = make_params(train__packing=True)
    packed, alone = run_overfit(params, 42), run_overfit(make_params(), 42)
    assert packed.rows == alone.rows
    assert packed.losses == pytest.approx(alone.losses, rel=1e-5)
    rows = TokenStore("train").rows(choose_rows(TokenStore("train"), 4, 42))
    batch = collate_together(params, rows, read_meta(), collate)
    assert (len(batch["input_ids"]), "attention_mask" in batch) == (1, False)


@pytest.mark.usefixtures("tokens")
def test_the_same_seed_gives_the_same_bits_and_another_other_bits() -> None:
    params = make_params(model__dropout=0.5)
    run = run_overfit(params, 42)
    assert first_difference(run.trace, run_overfit(params, 42).trace) is None
    other = run_overfit(params, 43)
    assert other.rows == run.rows
    assert str(first_difference(run.trace, other.trace)).startswith("loss of step 0: ")


@pytest.mark.usefixtures("tokens")
def test_a_fresh_process_gives_the_same_bits() -> None:
    run = run_overfit(make_params(), 42)
    [again] = replay_in_fresh_processes([(42, len(run.trace.losses))])
    assert first_difference(run.trace, again) is None


class Enough(Exception):
    """The seeds are known."""


@pytest.mark.parametrize(("seed", "following"), [(42, 43), (2**32 - 2, 2**32 - 1), (2**32 - 1, 0)])
def test_every_seed_that_params_allow_has_a_next_one(
    monkeypatch: pytest.MonkeyPatch, seed: int, following: int
) -> None:
    seeds: list[int] = []

    def replay(asked: list[tuple[int, int]]) -> None:
        seeds.extend(seed for seed, _ in asked)
        raise Enough

    monkeypatch.setattr(overfit_gate, "bind", lambda gate, environment: None)
    monkeypatch.setattr(overfit_gate, "read_metrics", lambda stage: {"passed": True})
    monkeypatch.setattr(overfit_gate, "run_overfit", lambda *_, **__: make_run([3.0, 2.0]))
    monkeypatch.setattr(overfit_gate, "replay_in_fresh_processes", replay)
    with pytest.raises(Enough):
        overfit_gate.main(make_params(run__seed=seed))
    assert seeds == [seed, following]
    seed_everything(seeds[1])


@pytest.mark.usefixtures("tokens")
def test_frozen_parameters_are_counted_and_stay() -> None:
    name = next(iter(dict(build_model(make_params().model, VOCABULARY, CPU).named_parameters())))
    run = run_overfit(make_params(model__frozen=[name]), 42)
    assert (run.frozen, run.frozen_changed) == (1, [])


@pytest.mark.usefixtures("tokens")
def test_a_small_model_learns_the_rows_by_heart_and_only_with_its_inputs() -> None:
    params = make_params(
        model__d_model=64,
        gates__overfit__num_samples=8,
        gates__overfit__max_steps=35,
        gates__overfit__learning_rate=0.02,
    )
    run = run_overfit(params, 42)
    blanked = run_overfit(params, 42, blank=True)
    assert min(run.losses) < 0.05
    assert min(blanked.losses) > 10 * min(run.losses)


def make_run(losses: list[float]) -> OverfitRun:
    trace = RunTrace(losses[:-1], [1.0] * (len(losses) - 1), "a" * 64, "b" * 64)
    initial = InitialLoss(3.4, 3.4, confident=(9.0, 9.0), uniform=3.5, tokens=40, entropy=3.4)
    rows = ["rows.jsonl:1"]
    return OverfitRun(initial, losses, trace, rows, 0, [], adapters_off=[], stop_row=StopRow(0, []))


def checked(losses: list[float], blanked: list[float]) -> list[Check]:
    """The checks of the gate, of a run with these losses."""
    run = make_run(losses)
    measured = measure(
        run,
        make_run(blanked),
        run.trace,
        make_run([9.0] * len(losses)).trace,
        pretrained=False,
    )
    limits = {key: value for rule in RULES for key, value in zip(rule.limits, [0.05], strict=False)}
    return judge_all(RULES, measured, limits, 42)


def judged(losses: list[float], blanked: list[float]) -> dict[str, str]:
    return {check.id: check.status for check in checked(losses, blanked)}


def test_a_run_that_learned_its_rows_passes() -> None:
    assert set(judged([3.0, 0.1, 0.01], [3.0, 2.9, 2.8]).values()) == {"pass"}


def test_a_run_that_ends_in_nan_has_not_learned_its_rows() -> None:
    assert judged([3.0, 0.01, math.nan], [3.0, 2.9, 2.8])["overfit_loss"] == "fail"


def test_blanked_inputs_that_are_learned_to_zero_fail_and_do_not_crash() -> None:
    assert judged([3.0, 0.1, 0.01], [3.0, 1.0, 0.0])["blanked_ratio"] == "fail"


def test_what_the_user_froze_is_named_where_the_rest_does_not_learn() -> None:
    causes = causes_of(guesses_evenly=True, frozen=["lm_head.*"])
    for blanked in ([3.0, 2.5], [3.0, 0.1]):
        (first, *_) = rank_causes(checked([3.0, 2.6], blanked), causes)
        assert "model.frozen" in first and "lm_head.*" in first
    learned = rank_causes(checked([3.0, 0.01], [3.0, 2.5]), causes)
    assert not any("model.frozen" in cause for cause in learned)


LEARNS = {"model__d_model": 32, "gates__overfit__learning_rate": 0.02}


@pytest.mark.usefixtures("tokens")
def test_a_model_that_learns_slowly_is_told_how_many_steps_it_takes() -> None:
    slow = make_params(**LEARNS, gates__overfit__max_steps=9)
    stage = "overfit_gate"  # what it sees of the params is no dataclass
    params = cast(Params, Declared(slow, "", declared_keys(stage), stage))
    run = run_overfit(params, 42)
    needed = steps_to_learn(params, run)
    assert needed is not None
    assert 9 < needed <= 36
    causes = causes_of(guesses_evenly=True, steps_to_learn=needed)
    (cause,) = rank_causes(checked(run.losses, [3.0] * 10), causes)
    assert cause.startswith(f"the model learns the rows, but takes {needed} steps")
    enough = make_params(**LEARNS, gates__overfit__max_steps=needed)
    assert min(run_overfit(enough, 42).losses) < 0.05


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize(
    "losses",
    [[3.0, 2.0], [3.0, 0.01], [3.0, 0.4, math.nan]],
    ids=["not_halved", "learned", "broken"],
)
def test_of_another_run_no_more_steps_are_taken(
    losses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("stages.probes.overfit.run_overfit")
    assert steps_to_learn(make_params(), make_run(losses)) is None


@pytest.mark.usefixtures("tokens")
def test_a_model_that_never_learns_is_not_called_slow() -> None:
    params = make_params(gates__overfit__max_steps=3)
    run = make_run([3.0, 1.0, 0.9])
    assert steps_to_learn(params, run) is None
