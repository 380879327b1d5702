"""Each signature is seen in a curve that has it, with the steps and values that show it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stages.curves.causes import CAUSES
from stages.curves.signature import Known, Signature

from .logs import diagnosis_of, faults_of

N = 200
STEPS = list(range(N))
GENERATOR = np.random.default_rng(5)
NOISE = np.exp(GENERATOR.normal(0, 0.05, N))
FALLING = ((1.0 + 2.0 * np.exp(-np.arange(N) / 30)) * NOISE).tolist()
RATE = [1e-3 * min((step + 1) / 10, (N - step) / (N - 10)) for step in STEPS]


def found(name: str, known: Known | None = None, **columns: Sequence[Any]) -> Signature:
    """The signature `name`, fault or remark, of a log with these columns."""
    diagnosis = diagnosis_of({"step": STEPS, **columns}, known)
    by_id = {one.id: one for one in (*diagnosis.faults, *diagnosis.remarks)}
    assert name in by_id, list(by_id)
    return by_id[name]


def changed(values: Sequence[float], **at: float) -> list[float]:
    """The values, with others at `s120=5.0`."""
    copy = list(values)
    for step, value in at.items():
        copy[int(step[1:])] = value
    return copy


def test_the_curve_that_all_are_made_of_is_sound() -> None:
    assert faults_of({"step": STEPS, "loss": FALLING, "lr": RATE}) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_early_or_late(value: float) -> None:
    early = found("nan_early", loss=changed(FALLING, s1=value))
    assert early.evidence[0].startswith(f"step 1: the loss is {value}; 1 of 200 losses")
    late = found("nan_late", loss=changed(FALLING, s150=value))
    assert late.steps == (150.0,)


def test_a_loss_of_0_from_the_first_step_on() -> None:
    assert "it is 0 at 200 of 200 steps" in found("zero_at_start", loss=[0.0] * N).evidence[0]
    falls = [0.0] * N
    falls[0] = 0.0
    assert faults_of({"step": STEPS, "loss": falls}) == ["zero_at_start"]


def test_a_loss_of_0_where_the_norm_is_nan_hides_nan() -> None:
    loss = FALLING[:100] + [0.0] * 100
    norm = [1.0] * 100 + [math.nan] * 100
    hidden = found("hidden_nan", loss=loss, grad_norm=norm)
    assert hidden.steps == (100.0,)
    assert "not finite at 100 losses of 0" in hidden.evidence[1]
    from_the_start = found("hidden_nan", loss=[0.0] * N, grad_norm=[math.nan] * N)
    assert from_the_start.steps == (0.0,)


def test_a_loss_that_falls_to_0_in_one_step_hides_nan() -> None:
    assert found("hidden_nan", loss=FALLING[:100] + [0.0] * 100).steps == (100.0,)


def test_a_loss_that_is_learned_down_to_0_does_not() -> None:
    loss = [max(3 * math.exp(-step / 6) - 1e-6, 0.0) for step in STEPS]
    assert faults_of({"step": STEPS, "loss": loss}) == []


def test_a_flat_loss() -> None:
    flat = found("flat", loss=(2.0 * NOISE).tolist())
    assert "the loss falls by" in flat.evidence[0]
    found("flat", loss=[0.7] * N)


def test_noise_that_hides_a_change_is_not_judged() -> None:
    loss = np.exp(GENERATOR.normal(0, 0.6, 40)).tolist()
    diagnosis = diagnosis_of({"step": list(range(40)), "loss": loss})
    assert diagnosis.faults == []
    assert "flat from the start" in [one.id for one in diagnosis.not_judged]


@pytest.mark.parametrize("known", [Known(classes=10), Known(prior=math.log(10))], ids=str)
def test_the_prior(known: Known) -> None:
    loss = (math.log(10) * (1 + 0.4 * np.exp(-np.arange(N) / 8)) * NOISE**0.2).tolist()
    assert "the prior is 2.303 nats" in found("at_prior", known, loss=loss).evidence[0]
    assert "at_prior" not in faults_of({"step": STEPS, "loss": loss})


def test_a_high_plateau_is_a_fault_near_the_prior_and_a_remark_below_it() -> None:
    def plateau(level: float) -> list[float]:
        return list((level + 0.5 * np.exp(-np.arange(N) / 10)) * NOISE**0.3)

    assert found("plateau_high", Known(classes=10), loss=plateau(2.15)).is_fault
    assert not found("plateau_high", Known(classes=10), loss=plateau(1.8)).is_fault
    twice = math.log(math.e + 9) - 1
    softmax = found("plateau_high", Known(classes=10), loss=plateau(twice))
    assert softmax.is_fault
    assert "softmax" in softmax.evidence[0]


def test_a_loss_that_stops_to_fall_early_is_remarked_without_a_prior() -> None:
    loss = ((2.0 + 0.5 * np.exp(-np.arange(N) / 5)) * NOISE**0.3).tolist()
    assert not found("early_plateau", loss=loss).is_fault


def test_a_spike_names_its_step_and_what_came_before() -> None:
    spike = found("spike", loss=changed(FALLING, s120=4.0, s160=3.5))
    assert spike.title == "the loss spikes 2 times"
    assert spike.steps == (120.0, 160.0)
    assert spike.evidence[0].startswith("step 120: loss 4; the 120 before it are")


def test_a_spike_of_a_short_log() -> None:
    loss = [2.0, 1.8, 1.7, 1.6, 1.55, 1.5, 1.5, 1.45, 1.44, 9.0, 1.43, 1.42, 1.41, 1.4]
    assert faults_of({"step": list(range(14)), "loss": loss}) == ["spike"]


def test_divergence() -> None:
    rising = [*FALLING[:100], *(FALLING[99] * 1.03 ** (i + 1) for i in range(100))]
    diverged = found("divergence", loss=rising)
    assert 80 <= diverged.steps[0] <= 105


def test_a_run_that_ends_above_its_start_diverged_too() -> None:
    loss = ((2.0 + np.arange(N) / 400) * NOISE).tolist()
    assert "divergence" in faults_of({"step": STEPS, "loss": loss})


def test_a_rise_before_the_fall() -> None:
    hump = 1 + 4 * np.exp(-((np.arange(N) - 12) ** 2) / 30)
    early = found("early_spike", loss=(np.array(FALLING) * hump).tolist())
    assert 8 <= early.steps[0] <= 16


def test_a_long_rise_that_comes_back() -> None:
    hump = 1 + 1.5 * np.exp(-((np.arange(N) - 110) ** 2) / 600)
    rise = found("long_rise", loss=(np.array(FALLING) * hump).tolist())
    assert 100 <= rise.steps[1] <= 120


def test_swings() -> None:
    loss = (np.array(FALLING) * np.exp(0.6 * np.sin(np.arange(N) / 6))).tolist()
    assert "swings up" in found("oscillation", loss=loss).title


def test_jumps_from_step_to_step() -> None:
    loss = (np.array(FALLING) * np.where(np.arange(N) % 2, 1.5, 0.6)).tolist()
    assert "from step to step" in found("oscillation", loss=loss).title


def test_swings_that_follow_the_rate_are_not_judged() -> None:
    phase = np.arange(N) / 40 % 1
    rate = 1e-3 * (0.5 + 0.5 * np.cos(np.pi * phase))
    loss = (np.array(FALLING) * (0.5 + 500 * rate)).tolist()
    diagnosis = diagnosis_of({"step": STEPS, "loss": loss, "lr": rate.tolist()})
    assert diagnosis.faults == []
    assert "swings of the loss" in [one.id for one in diagnosis.not_judged]


def test_a_noisy_loss_is_remarked() -> None:
    loss = (np.array(FALLING) * np.exp(GENERATOR.normal(0, 0.5, N))).tolist()
    assert not found("noisy", loss=loss).is_fault


def test_losses_that_are_repeated_to_the_last_digit() -> None:
    repeated = found("repeated_losses", loss=FALLING[:100] + FALLING[60:100] + FALLING[140:])
    assert repeated.evidence[0].startswith("the 40 losses from step 100 on are those from step 60")


def test_steps_that_a_resumed_run_computed_again_are_as_they_should_be() -> None:
    columns = {"step": STEPS[:100] + STEPS[80:], "loss": FALLING[:100] + FALLING[80:]}
    assert faults_of(columns) == []


def test_losses_of_two_digits_say_nothing_when_they_are_equal() -> None:
    rounded = [round(value, 1) for value in FALLING]
    assert faults_of({"step": STEPS, "loss": rounded}) == []


def test_a_loss_below_0_is_a_fault_of_a_cross_entropy_only() -> None:
    loss = [1.0 - 0.02 * step for step in STEPS]
    assert found("negative", Known(classes=10), loss=loss).is_fault
    assert not found("negative", loss=loss).is_fault


EVALUATED = [step if (step + 1) % 20 == 0 else None for step in STEPS]


def evaluated(values: Sequence[float]) -> list[float | None]:
    """Ten values, at every twentieth step."""
    return [None if step is None else values[step // 20] for step in EVALUATED]


def test_overfitting() -> None:
    rising = [1.5, 1.3, 1.2, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    overfit = found("overfitting", loss=FALLING, val_loss=evaluated(rising))
    assert "lowest at step 79 (1.15) and 1.7 at step 199" in overfit.evidence[0]
    slightly = [1.5, 1.3, 1.2, 1.15, 1.16, 1.17, 1.18, 1.19, 1.2, 1.21]
    assert faults_of({"step": STEPS, "loss": FALLING, "val_loss": evaluated(slightly)}) == []


def test_validation_that_rises_while_training_rises_is_no_overfitting() -> None:
    loss = [*FALLING[:100], *(FALLING[99] * 1.01 ** (i + 1) for i in range(100))]
    rising = [1.5, 1.3, 1.2, 1.15, 1.2, 1.3, 1.5, 1.8, 2.0, 2.5]
    columns = {"step": STEPS, "loss": loss, "val_loss": evaluated(rising)}
    assert {"divergence", "validation_rises"} <= set(faults_of(columns))


def test_two_evaluations_make_no_trend() -> None:
    values = [None] * 198 + [1.0, 2.0]
    diagnosis = diagnosis_of({"step": STEPS, "loss": FALLING, "val_loss": values})
    assert "val_loss was logged 2 times, 3 are needed" in [o.reason for o in diagnosis.not_judged]


def test_validation_that_is_not_finite() -> None:
    values = evaluated([1.5, 1.3, math.inf, math.inf, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2])
    assert found("validation_not_finite", loss=FALLING, val_loss=values).steps == (59.0,)


def test_validation_far_below_training_and_slightly() -> None:
    def below(share: float) -> Signature:
        values = evaluated([share * loss for loss in FALLING[19::20]])
        return found("validation_below", loss=FALLING, val_loss=values)

    assert below(0.25).is_fault
    assert not below(0.8).is_fault


def test_accuracy_that_is_flat_while_the_loss_rises() -> None:
    rising = [1.5, 1.3, 1.2, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    flat = [0.5, 0.7, 0.8, 0.81, 0.812, 0.81, 0.811, 0.81, 0.812, 0.81]
    losses = evaluated(rising)
    accuracies = evaluated(flat)
    found("accuracy_flat_loss_rises", loss=FALLING, val_loss=losses, val_accuracy=accuracies)
    falls = evaluated([0.5, 0.7, 0.8, 0.81, 0.79, 0.77, 0.75, 0.72, 0.7, 0.65])
    columns = {"step": STEPS, "loss": FALLING, "val_loss": losses, "val_accuracy": falls}
    assert faults_of(columns) == ["overfitting"]


def test_a_rate_of_0() -> None:
    assert "at all 200 steps" in found("rate_zero", loss=FALLING, lr=[0.0] * N).evidence[0]
    late = found("rate_zero", loss=FALLING, lr=[0.0] * 50 + RATE[50:])
    assert late.steps == (49.0,)
    assert faults_of({"step": STEPS, "loss": FALLING, "lr": [0.0, *RATE[1:]]}) == []


def test_a_rate_that_is_constant_or_does_not_warm_up_is_remarked() -> None:
    assert not found("rate_constant", loss=FALLING, lr=[1e-3] * N).is_fault
    falling = [1e-3 * (1 - step / N) for step in STEPS]
    assert not found("no_warmup", loss=FALLING, lr=falling).is_fault


def test_a_rate_that_ends_early() -> None:
    ends = [max(1e-3 * (1 - step / 140), 0.0) for step in STEPS]
    assert found("rate_ends_early", loss=FALLING, lr=ends).steps == (140.0,)


@pytest.mark.parametrize("times", [2, 4])
def test_a_schedule_that_runs_several_times_as_fast(times: int) -> None:
    ends = [max(1e-3 * (1 - times * step / N), 0.0) for step in STEPS]
    fast = found("rate_steps_twice", loss=FALLING, lr=ends)
    assert fast.title == f"the schedule runs {times} times as fast as the training"


def test_a_schedule_that_is_over_before_the_planned_steps_are() -> None:
    rate = [max(1e-3 * (1 - step / 100), 0.0) for step in STEPS[:110]]
    columns = {"step": STEPS[:110], "loss": FALLING[:110], "lr": rate}
    assert faults_of(columns, max_steps=200) == ["rate_steps_twice"]


def test_a_cosine_that_goes_on_past_its_end() -> None:
    def cosine(step: int) -> float:
        return 1e-3 * min(step / 8, 0.5 + 0.5 * math.cos(math.pi * (step - 8) / 142))

    rises = found("rate_rises_again", loss=FALLING, lr=[cosine(step) for step in STEPS])
    assert rises.steps == (150.0,)


def test_a_warm_up_as_long_as_the_run() -> None:
    columns = {"step": STEPS, "loss": FALLING, "lr": [1e-5 * (step + 1) for step in STEPS]}
    assert faults_of(columns) == []  # it may go on
    assert faults_of(columns, max_steps=200) == ["warmup_too_long"]


NORMS = np.exp(GENERATOR.normal(0, 0.3, N))


def test_losses_on_their_way_to_infinity_are_judged_too() -> None:
    loss = [10.0 ** min(step * 2, 300) for step in STEPS]
    steps = [float(step) for step in STEPS]
    columns = {"step": steps, "loss": loss, "grad_norm": loss, "val_loss": loss, "lr": loss}
    assert "divergence" in faults_of(columns)


def test_a_loss_that_begins_with_0_and_goes_on_is_judged_too() -> None:
    assert "zero_at_start" in faults_of({"step": STEPS, "loss": [0.0] * 50 + FALLING[50:]})


def test_a_norm_that_explodes() -> None:
    growth = np.where(np.arange(N) < 150, 1.0, np.exp((np.arange(N) - 150) / 8))
    found("norm_explodes", loss=FALLING, grad_norm=(NORMS * growth).tolist())
    burst = found("norm_explodes", loss=FALLING, grad_norm=changed(NORMS.tolist(), s70=5e3))
    assert burst.steps == (70.0,)


def test_a_norm_that_vanishes() -> None:
    found("norm_vanishes", loss=FALLING, grad_norm=(1e-7 * NORMS).tolist())
    learned = [3 * math.exp(-step / 10) for step in STEPS]
    norms = [1e-7 + math.exp(-step / 10) for step in STEPS]
    assert faults_of({"step": STEPS, "loss": learned, "grad_norm": norms}) == []


def test_norms_that_are_not_finite_now_and_then_or_always() -> None:
    seldom = changed(NORMS.tolist(), s3=math.inf, s90=math.nan)
    assert not found("norm_not_finite", loss=FALLING, grad_norm=seldom).is_fault
    often = [*NORMS.tolist()[:150], *([math.nan] * 50)]
    assert found("norm_not_finite", loss=FALLING, grad_norm=often).is_fault


def test_gradients_that_are_always_clipped() -> None:
    far = (20 + NORMS).tolist()
    assert found("always_clipped", Known(max_grad_norm=1.0), loss=FALLING, grad_norm=far).is_fault
    clipped = found("always_clipped", loss=FALLING, grad_norm=[1.0] * N)
    assert not clipped.is_fault
    assert "behind the clipping" in clipped.evidence[0]


def test_every_fault_has_causes_with_something_to_try() -> None:
    for causes in CAUSES.values():
        assert causes
        assert all(cause.text and cause.remedy for cause in causes)
    for cause in (cause for causes in CAUSES.values() for cause in causes):
        known = {*CAUSES, "no_warmup", "rate_constant", "early_plateau", "noisy"}
        assert cause.supported_by <= known
