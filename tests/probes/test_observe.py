"""What a step really does is seen from outside, whatever it says of itself."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from stages.chat.collator import Batch
from stages.probes.observe import (
    ActivationRecord,
    StepObserver,
    StepRecord,
    watching_activations,
)
from stages.training.step import StepResult, forward, train_step

from ..parts import Bigram, Output, flat_gradient, make_batch, make_trainer

NAMES = ["embedding.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"]


def backward(model: nn.Module, micro_batches: Sequence[Batch], settings: dict[str, Any]) -> None:
    for batch in micro_batches:
        loss = settings["loss_fn"](forward(model, batch), batch["labels"], 10)
        loss.backward()


def claim(optimizer: Optimizer) -> StepResult:
    """What a faulty step says of itself: that all is well."""
    return StepResult(1.0, 1.0, float(optimizer.param_groups[0]["lr"]), 10)


def without_update(model: nn.Module, batches: Sequence[Batch], **settings: Any) -> StepResult:
    backward(model, batches, settings)
    nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
    settings["optimizer"].zero_grad()
    return claim(settings["optimizer"])


def without_clipping(model: nn.Module, batches: Sequence[Batch], **settings: Any) -> StepResult:
    backward(model, batches, settings)
    settings["optimizer"].step()
    settings["optimizer"].zero_grad()
    return claim(settings["optimizer"])


def clipping_too_early(model: nn.Module, batches: Sequence[Batch], **settings: Any) -> StepResult:
    backward(model, batches[:-1], settings)
    nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
    backward(model, batches[-1:], settings)
    settings["optimizer"].step()
    settings["optimizer"].zero_grad()
    return claim(settings["optimizer"])


def without_zeroing(model: nn.Module, batches: Sequence[Batch], **settings: Any) -> StepResult:
    backward(model, batches, settings)
    nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
    settings["optimizer"].step()
    return claim(settings["optimizer"])


def updating_each_micro_batch(
    model: nn.Module, batches: Sequence[Batch], **settings: Any
) -> StepResult:
    for batch in batches:
        without_clipping(model, [batch], **settings)
    return claim(settings["optimizer"])


def watch(
    model: nn.Module,
    step: Callable[..., StepResult] = train_step,
    *,
    steps: int = 1,
    max_grad_norm: float = 0.01,
) -> StepRecord:
    trainer = make_trainer(model, step=step, max_grad_norm=max_grad_norm)
    observer = StepObserver(model, trainer.optimizer, trainer.scaler)
    for number in range(steps):
        with observer.watching() as record:
            trainer.step([make_batch(2, 2 * number), make_batch(2, 2 * number + 1)])
    return record


def make_model() -> Bigram:
    torch.manual_seed(0)
    return Bigram()


def test_a_sound_step_is_seen_as_it_is() -> None:
    model = make_model()
    trainer = make_trainer(model, max_grad_norm=0.01)
    gradients: list[torch.Tensor] = []
    trainer.optimizer.register_step_pre_hook(lambda *_: gradients.append(flat_gradient(model)))
    observer = StepObserver(model, trainer.optimizer, trainer.scaler)
    with observer.watching() as record:
        result = trainer.step([make_batch(2), make_batch(2, seed=1)])
    assert record.optimizer_calls == 1
    assert record.learning_rate == 0.01
    assert record.grad_norm == pytest.approx(result.grad_norm, rel=1e-5)
    assert record.grad_norm > 0.1
    assert record.applied_norm == pytest.approx(0.01, rel=1e-4)
    assert record.applied_norm == pytest.approx(float(gradients[0].norm()), rel=1e-6)
    assert sorted(record.grad_norms) == sorted(NAMES)
    assert (record.non_finite, record.stale_gradients) == ([], [])


def test_the_norms_of_parameters_are_those_of_all_micro_batches_together() -> None:
    model = make_model()
    record = watch(model, without_zeroing, max_grad_norm=1e9)
    norms = {n: float(p.grad.norm()) for n, p in model.named_parameters() if p.grad is not None}
    assert record.grad_norms == pytest.approx(norms, rel=1e-5)
    assert record.grad_norm == pytest.approx(math.hypot(*norms.values()), rel=1e-5)


def test_update_ratios_are_mean_change_over_mean_weight_of_matrices() -> None:
    model = make_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    record = watch(model)
    expected = {
        name: float((p.detach() - before[name]).abs().mean() / before[name].abs().mean())
        for name, p in model.named_parameters()
        if p.ndim == 2
    }
    assert record.update_ratios == pytest.approx(expected, rel=1e-5)
    assert min(expected.values()) > 0


def test_a_matrix_of_zeros_has_no_ratio() -> None:
    model = make_model()
    nn.init.zeros_(model.head.weight)
    assert list(watch(model).update_ratios) == ["embedding.weight"]


def test_a_step_that_never_calls_the_optimizer_is_seen() -> None:
    record = watch(make_model(), without_update)
    assert record.optimizer_calls == 0
    assert math.isnan(record.learning_rate)
    assert math.isnan(record.applied_norm)
    assert record.update_ratios == {}
    assert record.grad_norm > 0.1


def test_a_step_that_calls_the_optimizer_for_every_micro_batch_is_seen() -> None:
    assert watch(make_model(), updating_each_micro_batch).optimizer_calls == 2


def test_a_step_that_does_not_clip_is_seen() -> None:
    record = watch(make_model(), without_clipping)
    assert record.applied_norm == pytest.approx(record.grad_norm, rel=1e-5)
    assert record.applied_norm > 0.1


def test_a_step_that_clips_before_the_gradient_is_complete_is_seen() -> None:
    assert watch(make_model(), clipping_too_early).applied_norm > 0.1


def test_a_step_that_does_not_clear_gradients_is_seen() -> None:
    assert watch(make_model(), without_zeroing).stale_gradients == []
    assert sorted(watch(make_model(), without_zeroing, steps=2).stale_gradients) == sorted(NAMES)


def test_gradients_that_are_cleared_to_zero_are_not_stale() -> None:
    def zeroing_in_place(model: nn.Module, batches: Sequence[Batch], **settings: Any) -> StepResult:
        result = without_zeroing(model, batches, **settings)
        settings["optimizer"].zero_grad(set_to_none=False)
        return result

    assert watch(make_model(), zeroing_in_place, steps=2).stale_gradients == []


def test_a_step_that_clears_gradients_at_its_start_leaves_none_stale() -> None:
    def zeroing_first(model: nn.Module, batches: Sequence[Batch], **settings: Any) -> StepResult:
        settings["optimizer"].zero_grad()
        return without_zeroing(model, batches, **settings)

    assert watch(make_model(), zeroing_first, steps=3).stale_gradients == []


class Detached(Bigram):
    """No gradient reaches the embedding and the norm."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Output:  # type: ignore[override]
        return Output(self.head(self.norm(self.embedding(input_ids)).detach()))


def test_a_detached_layer_is_seen() -> None:
    assert sorted(watch(Detached()).grad_norms) == ["head.bias", "head.weight"]


def test_a_frozen_layer_is_not_watched() -> None:
    model = make_model()
    model.embedding.weight.requires_grad_(False)
    assert sorted(watch(model).grad_norms) == sorted(NAMES[1:])


def spoil(parameter: torch.Tensor, factor: float) -> None:
    """Multiply every gradient of the parameter, before anyone sees it."""
    parameter.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]


def test_a_nan_gradient_is_seen_by_name() -> None:
    model = make_model()
    spoil(model.norm.weight, math.nan)
    record = watch(model)
    assert "norm.weight" in record.non_finite
    assert math.isnan(record.grad_norm)


def test_what_is_not_finite_is_named_in_the_order_in_which_it_appeared() -> None:
    model = make_model()
    spoil(model.norm.weight, math.nan)
    assert watch(model).non_finite[0] == "norm.weight"


def test_an_infinite_gradient_is_seen() -> None:
    model = make_model()
    spoil(model.head.bias, math.inf)
    assert "head.bias" in watch(model).non_finite


def test_a_weight_that_becomes_nan_is_seen() -> None:
    model = make_model()

    def spoiling(model: nn.Module, batches: Sequence[Batch], **settings: Any) -> StepResult:
        settings["optimizer"].param_groups[0]["lr"] = math.inf
        return without_clipping(model, batches, **settings)

    assert "head.bias (weight)" in watch(model, spoiling).non_finite


def test_a_new_step_has_a_record_of_its_own() -> None:
    trainer = make_trainer(make_model())
    observer = StepObserver(trainer.model, trainer.optimizer, trainer.scaler)
    records = []
    for number in range(2):
        with observer.watching() as record:
            trainer.step([make_batch(2, number)])
        records.append(record)
    assert [record.optimizer_calls for record in records] == [1, 1]
    assert records[0].grad_norm != records[1].grad_norm


def test_outside_the_block_nothing_is_watched() -> None:
    trainer = make_trainer(make_model())
    observer = StepObserver(trainer.model, trainer.optimizer, trainer.scaler)
    with observer.watching() as record:
        trainer.step([make_batch(2)])
    before = dict(record.grad_norms)
    trainer.step([make_batch(2, seed=1)])
    assert (record.optimizer_calls, record.grad_norms) == (1, before)
    assert [len(p._post_accumulate_grad_hooks or ()) for p in trainer.model.parameters()] == [0] * 5


def test_watching_does_not_change_the_step() -> None:
    plain, watched = make_model(), make_model()
    make_trainer(plain).step([make_batch(2)])
    trainer = make_trainer(watched)
    observer = StepObserver(watched, trainer.optimizer, trainer.scaler)
    with observer.watching(), watching_activations(watched):
        trainer.step([make_batch(2)])
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert one.equal(other)


def describe(module: nn.Module, inputs: torch.Tensor) -> ActivationRecord:
    model = nn.Sequential(module)
    with watching_activations(model) as records:
        model(inputs)
    return records["0"]


def test_an_activation_is_described_by_its_numbers() -> None:
    record = describe(nn.Identity(), torch.tensor([[-1.0, 3.0], [3.0, -1.0]]))
    assert record == ActivationRecord(
        module="0",
        mean=1.0,
        std=2.0,
        absolute_max=3.0,
        non_finite=0,
        dead=None,
        saturated=None,
    )


def test_numbers_that_are_not_finite_are_counted_and_left_out() -> None:
    record = describe(nn.Identity(), torch.tensor([[1.0, math.nan], [math.inf, 3.0]]))
    assert (record.non_finite, record.mean, record.absolute_max) == (2, 2.0, 3.0)


@pytest.mark.filterwarnings("ignore:std")
def test_an_output_without_a_finite_number_is_described() -> None:
    record = describe(nn.Identity(), torch.full((2, 2), math.nan))
    assert (record.non_finite, record.absolute_max) == (4, math.inf)
    assert math.isnan(record.mean)


@pytest.mark.parametrize("kind", [nn.ReLU, nn.GELU, nn.SiLU, nn.LeakyReLU])
def test_a_unit_that_never_fires_on_the_batch_is_dead(kind: type[nn.Module]) -> None:
    inputs = torch.tensor([[[1.0, 0.0, -1.0, 0.0]], [[-1.0, 0.0, 2.0, 1.0]]])
    assert describe(kind(), inputs).dead == 0.25


def test_a_relu_that_is_always_negative_is_dead_in_every_unit() -> None:
    assert describe(nn.ReLU(), -torch.rand(4, 8) - 0.1).dead == 1.0


@pytest.mark.parametrize(
    ("module", "inputs", "share"),
    [
        (nn.Tanh(), [[9.0, 0.0], [-9.0, 9.0]], 0.5),
        (nn.Sigmoid(), [[9.0, 0.0], [-9.0, 9.0]], 0.5),
        (nn.Hardtanh(), [[9.0, 9.0], [-9.0, 9.0]], 1.0),
        (nn.Tanh(), [[0.1, 0.1], [0.2, 0.2]], 0.0),
    ],
)
def test_a_unit_at_the_end_of_its_range_is_saturated(
    module: nn.Module, inputs: list[list[float]], share: float
) -> None:
    assert describe(module, torch.tensor(inputs)).saturated == share


def test_only_modules_that_rectify_or_bound_are_judged_for_it() -> None:
    record = describe(nn.Linear(2, 2), torch.zeros(1, 2))
    assert (record.dead, record.saturated) == (None, None)


def test_every_module_with_one_output_is_recorded_and_the_last_pass_counts() -> None:
    model = make_model()
    with watching_activations(model) as records:
        forward(model, make_batch(2))
        first = dict(records)
        forward(model, make_batch(2, seed=1))
    assert sorted(records) == ["dropout", "embedding", "head", "norm"]
    assert records["head"].mean != first["head"].mean
    before = dict(records)
    forward(model, make_batch(2, seed=2))
    assert records == before
