"""The training step: micro-batches as one batch, clipped, stepped, scheduled and cleared."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

from stages.chat.collator import Batch, collate
from stages.models.tiny_gpt import TinyGPT
from stages.training.loss import causal_lm_loss, count_targets
from stages.training.step import StepResult, forward, train_step

from ..parts import PAD, VOCABULARY, Bigram, Output, flat_gradient, make_batch, make_rows


def take_step(
    model: nn.Module,
    micro_batches: list[Batch],
    optimizer: torch.optim.Optimizer | None = None,
    max_grad_norm: float = 1e9,
    **changes: Any,
) -> tuple[StepResult, torch.Tensor]:
    """One step; returns its result and the gradients that the optimizer got."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5)
    seen: list[torch.Tensor] = []
    hook = optimizer.register_step_pre_hook(lambda *_: seen.append(flat_gradient(model)))
    settings: dict[str, Any] = {
        "loss_fn": causal_lm_loss,
        "scheduler": changes.get("scheduler") or LambdaLR(optimizer, lambda step: 1.0),
        "autocast": nullcontext,
        "scaler": GradScaler("cpu", enabled=False),
        **changes,
    }
    result = train_step(
        model, micro_batches, optimizer=optimizer, max_grad_norm=max_grad_norm, **settings
    )
    hook.remove()
    assert len(seen) == 1
    return result, seen[0]


def make_model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "bigram":
        return Bigram()
    return TinyGPT(vocab_size=VOCABULARY, d_model=16, n_layers=1, n_heads=2, max_length=32)


@pytest.mark.parametrize("kind", ["bigram", "tiny_gpt"])
@pytest.mark.parametrize("size", [4, 2, 1])
def test_micro_batches_give_the_gradient_of_the_whole_batch(kind: str, size: int) -> None:
    rows = make_rows(8)
    split = [collate(rows[start : start + size], PAD) for start in range(0, 8, size)]
    assert len({count_targets(part["labels"]) for part in split}) > 1
    whole, expected = take_step(make_model(kind), [collate(rows, PAD)])
    parts, gradient = take_step(make_model(kind), split)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)
    assert parts.loss == pytest.approx(whole.loss, abs=1e-6)
    assert parts.grad_norm == pytest.approx(whole.grad_norm, abs=1e-6)
    assert parts.supervised_tokens == whole.supervised_tokens


def test_the_loss_is_the_mean_over_all_supervised_tokens() -> None:
    model, batch = make_model("bigram"), make_batch(8)
    logits = forward(model, batch).detach()
    expected = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    )
    result, _ = take_step(model, [batch])
    assert result.loss == pytest.approx(float(expected), abs=1e-6)
    assert result.supervised_tokens == int((batch["labels"][:, 1:] >= 0).sum())


def test_the_gradient_is_that_of_the_mean_loss() -> None:
    model, batch = make_model("bigram"), make_batch(8)
    logits = forward(model, batch)
    functional.cross_entropy(  # type: ignore[no-untyped-call]
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    ).backward()
    expected = flat_gradient(model)
    model.zero_grad()
    _, gradient = take_step(model, [batch])
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)


def test_gradients_are_clipped_to_the_limit_and_the_norm_is_the_one_before() -> None:
    whole, gradient = take_step(make_model("bigram"), [make_batch(8)])
    clipped, applied = take_step(make_model("bigram"), [make_batch(8)], max_grad_norm=0.01)
    assert whole.grad_norm == pytest.approx(float(gradient.norm()), rel=1e-6)
    assert whole.grad_norm > 0.1
    assert clipped.grad_norm == whole.grad_norm
    assert float(applied.norm()) == pytest.approx(0.01, rel=1e-4)
    torch.testing.assert_close(applied / applied.norm(), gradient / gradient.norm())


def test_small_gradients_are_left_alone() -> None:
    _, gradient = take_step(make_model("bigram"), [make_batch(8)])
    _, applied = take_step(make_model("bigram"), [make_batch(8)], max_grad_norm=1e3)
    assert applied.equal(gradient)


def test_the_step_moves_the_weights_by_rate_times_gradient() -> None:
    model = make_model("bigram")
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    _, gradient = take_step(model, [make_batch(8)])
    after = nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.testing.assert_close(after, before - 0.5 * gradient)


def test_no_gradient_is_left_over() -> None:
    model = make_model("bigram")
    take_step(model, [make_batch(2), make_batch(2, seed=1)])
    assert [p.grad for p in model.parameters()] == [None] * 5


def test_gradients_that_a_step_finds_are_not_those_of_the_next() -> None:
    model = make_model("bigram")
    _, first = take_step(model, [make_batch(8)], torch.optim.SGD(model.parameters(), lr=0.0))
    _, second = take_step(model, [make_batch(8)], torch.optim.SGD(model.parameters(), lr=0.0))
    assert first.equal(second)


def test_the_schedule_moves_once_a_step_and_the_rate_told_is_the_one_applied() -> None:
    model = make_model("bigram")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = LambdaLR(optimizer, lambda step: 0.25 * step)
    batches = [make_batch(2, seed) for seed in range(4)]
    rates = [take_step(model, batches, optimizer, scheduler=scheduler)[0].learning_rate]
    assert rates == [0.0]
    rates += [take_step(model, batches, optimizer, scheduler=scheduler)[0].learning_rate]
    assert rates == [0.0, 0.25]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_frozen_matrix_stays_and_the_others_learn() -> None:
    model = make_model("bigram")
    model.get_parameter("embedding.weight").requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainable = [p for p in model.parameters() if p.requires_grad]
    take_step(model, [make_batch(8)], torch.optim.AdamW(trainable, lr=0.1))
    changed = {n: not p.detach().equal(before[n]) for n, p in model.named_parameters()}
    assert changed == {name: name != "embedding.weight" for name in changed}


def test_the_forward_pass_runs_in_the_precision_of_the_run() -> None:
    seen: list[torch.dtype] = []

    def loss_fn(logits: torch.Tensor, labels: torch.Tensor, num_items: int) -> torch.Tensor:
        seen.append(logits.dtype)
        return causal_lm_loss(logits, labels, num_items)

    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    model = make_model("bigram")
    take_step(model, [make_batch(2)], loss_fn=loss_fn, autocast=autocast)
    take_step(model, [make_batch(2)], loss_fn=loss_fn)
    assert seen == [torch.bfloat16, torch.float32]
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_model_gets_every_tensor_but_the_labels_by_its_name() -> None:
    class Greedy(Bigram):
        def forward(self, **inputs: torch.Tensor) -> Output:  # type: ignore[override]
            self.got = sorted(inputs)
            return super().forward(inputs["input_ids"])

    model = Greedy()
    forward(model, {**make_batch(2), "position_ids": torch.zeros(2, 3)})
    assert model.got == ["attention_mask", "input_ids", "position_ids"]


def test_the_loss_falls_when_steps_are_taken() -> None:
    model, batch = make_model("bigram"), make_batch(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = [take_step(model, [batch], optimizer)[0].loss for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]


class Overflowing(torch.autograd.Function):
    """The gradient of a loss that does not fit into float16."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * torch.inf


def scaled_step(*, overflows: bool) -> tuple[StepResult, bool, int, float]:
    """(result, whether weights changed, scheduler steps, scale over the scale before)."""
    model = make_model("bigram")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    scaler = GradScaler("cpu", init_scale=1024.0)
    before = flat_weights(model)

    def loss(logits: torch.Tensor, labels: torch.Tensor, num_items: int) -> torch.Tensor:
        value = causal_lm_loss(logits, labels, num_items)
        return Overflowing.apply(value) if overflows else value  # type: ignore[no-untyped-call]

    result = train_step(
        model,
        [make_batch(2)],
        loss_fn=loss,
        optimizer=optimizer,
        scheduler=scheduler,
        max_grad_norm=1e9,
        autocast=nullcontext,
        scaler=scaler,
    )
    changed = not flat_weights(model).equal(before)
    return result, changed, scheduler.last_epoch, scaler.get_scale() / 1024.0


def flat_weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_scaled_loss_gives_the_norm_of_an_unscaled_one() -> None:
    result, changed, steps, scale = scaled_step(overflows=False)
    plain, _ = take_step(make_model("bigram"), [make_batch(2)])
    assert result.grad_norm == pytest.approx(plain.grad_norm, rel=1e-6)
    assert (changed, result.skipped, steps, scale) == (True, False, 1, 1.0)


def test_gradients_that_overflow_skip_the_step_and_the_schedule() -> None:
    result, changed, steps, scale = scaled_step(overflows=True)
    assert (changed, result.skipped, steps, scale) == (False, True, 0, 0.5)
