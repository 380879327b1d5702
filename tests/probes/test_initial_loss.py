"""The reference cross-entropy is computed apart from the loss that it is held against."""

import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from stages.models.tiny_gpt import TinyGPT
from stages.probes.initial_loss import InitialLoss, measure_initial_loss, reference_loss
from stages.training.loss import causal_lm_loss

from ..parts import VOCABULARY, Bigram, Output, make_batch

LossFunction = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


class Even(nn.Module):
    """Guesses evenly."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Output:
        return Output(torch.zeros(*input_ids.shape, VOCABULARY))


def measure(model: nn.Module, loss_fn: LossFunction = causal_lm_loss) -> InitialLoss:
    return measure_initial_loss(model, make_batch(8), loss_fn, nullcontext, VOCABULARY)


def test_a_model_that_guesses_evenly_is_at_ln_k() -> None:
    initial = measure(Even())
    assert initial.uniform == math.log(32) == pytest.approx(3.4657359)
    assert initial.reference == pytest.approx(initial.uniform, abs=1e-12)
    assert initial.error_to_uniform == pytest.approx(0.0, abs=1e-12)
    assert initial.error_to_reference == pytest.approx(0.0, abs=1e-6)


def test_the_production_loss_is_the_reference() -> None:
    torch.manual_seed(0)
    initial = measure(Bigram())
    assert initial.error_to_reference < 1e-6
    assert initial.tokens == int((make_batch(8)["labels"][:, 1:] >= 0).sum())


def test_a_hot_head_is_far_from_ln_k() -> None:
    torch.manual_seed(0)
    model = Bigram()
    nn.init.normal_(model.head.weight, std=5.0)
    initial = measure(model)
    assert initial.error_to_uniform > 1.0
    assert initial.error_to_reference < 1e-6


def scaled(logits: torch.Tensor, labels: torch.Tensor, num_items: int) -> torch.Tensor:
    return causal_lm_loss(logits, labels, num_items) * 0.5


def unshifted(logits: torch.Tensor, labels: torch.Tensor, num_items: int) -> torch.Tensor:
    flat = logits.flatten(0, 1)
    return functional.cross_entropy(flat, labels.flatten(), reduction="sum") / num_items


def smoothed(logits: torch.Tensor, labels: torch.Tensor, num_items: int) -> torch.Tensor:
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.1
    )


def softmaxed(logits: torch.Tensor, labels: torch.Tensor, num_items: int) -> torch.Tensor:
    return causal_lm_loss(logits.softmax(-1), labels, num_items)


def over_all_positions(logits: torch.Tensor, labels: torch.Tensor, num_items: int) -> torch.Tensor:
    return causal_lm_loss(logits, labels, labels[:, 1:].numel())


WRONG_LOSSES = (scaled, unshifted, smoothed, softmaxed, over_all_positions)


@pytest.mark.parametrize("loss_fn", WRONG_LOSSES, ids=lambda loss_fn: loss_fn.__name__)
def test_a_loss_that_is_not_the_cross_entropy_is_seen(loss_fn: LossFunction) -> None:
    torch.manual_seed(0)
    model = Bigram()
    nn.init.normal_(model.head.weight, std=1.0)
    assert measure(model, loss_fn).error_to_reference > 0.001


@pytest.mark.parametrize("loss_fn", WRONG_LOSSES, ids=lambda loss_fn: loss_fn.__name__)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_also_seen_on_an_untrained_model_that_guesses_evenly(
    loss_fn: LossFunction, seed: int
) -> None:
    torch.manual_seed(seed)
    model = TinyGPT(vocab_size=751, d_model=128, n_layers=1, n_heads=4, max_length=64)
    initial = measure_initial_loss(model, make_batch(32), loss_fn, nullcontext, 751)
    assert initial.error_to_uniform < 0.1
    assert initial.error_to_reference > 0.001


def test_the_reference_is_the_one_computed_by_hand() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [math.log(4.0), 0.0], [9.0, 9.0]]])
    by_hand = -(math.log(3 / 4) + math.log(4 / 5)) / 2
    assert reference_loss(logits, torch.tensor([[0, 1, 0]])) == pytest.approx(by_hand, rel=1e-6)
    assert reference_loss(logits, torch.tensor([[0, 1, -100]])) == pytest.approx(
        -math.log(3 / 4), rel=1e-6
    )


def test_measuring_leaves_no_gradient_and_no_other_mode() -> None:
    model = Bigram(dropout=0.5)
    measure(model)
    assert model.training
    assert [p.grad for p in model.parameters()] == [None] * 5


def test_the_errors_are_relative() -> None:
    initial = InitialLoss(
        loss=3.0, reference=2.0, confident=(5.0, 5.0), uniform=4.0, tokens=1, entropy=4.0
    )
    assert (initial.error_to_reference, initial.error_to_uniform) == (0.5, 0.5)


def test_the_larger_error_counts_whatever_the_logits_on_which_it_shows() -> None:
    initial = InitialLoss(
        loss=3.0, reference=2.0, confident=(10.0, 5.0), uniform=4.0, tokens=1, entropy=4.0
    )
    assert (initial.error_to_reference, initial.error_to_uniform) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("loss", "confident"), [(math.nan, 5.0), (2.0, math.nan), (math.inf, 5.0), (2.0, math.inf)]
)
def test_a_loss_that_is_no_number_is_not_close_to_the_reference(
    loss: float, confident: float
) -> None:
    initial = InitialLoss(loss, 2.0, (confident, 5.0), uniform=4.0, tokens=1, entropy=4.0)
    assert not math.isfinite(initial.error_to_reference)
