"""The loss is the cross-entropy of the next token, over the supervised tokens of a whole step."""

import math

import pytest
import torch
from torch.nn import functional

from stages.chat.labels import IGNORE_INDEX
from stages.training.loss import causal_lm_loss, count_targets

from ..parts import VOCABULARY, make_batch


def test_even_guessing_costs_ln_k_a_token() -> None:
    labels = torch.tensor([[5, 1, 2, 3]])
    loss = causal_lm_loss(torch.zeros(1, 4, 10), labels, 3)
    assert float(loss) == pytest.approx(2.302585092994046)


def test_the_loss_of_two_tokens_is_the_one_computed_by_hand() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [math.log(4.0), 0.0], [9.0, 9.0]]])
    labels = torch.tensor([[0, 1, 0]])
    by_hand = -(math.log(3 / 4) + math.log(4 / 5)) / 2
    assert float(causal_lm_loss(logits, labels, 2)) == pytest.approx(by_hand, rel=1e-6)


def test_the_first_label_has_nothing_to_be_predicted_from() -> None:
    logits = torch.randn(1, 3, 10)
    one, other = torch.tensor([[3, 1, 2]]), torch.tensor([[IGNORE_INDEX, 1, 2]])
    assert causal_lm_loss(logits, one, 2).equal(causal_lm_loss(logits, other, 2))
    assert count_targets(one) == count_targets(other) == 2


def test_the_last_logits_predict_nothing() -> None:
    logits, labels = torch.randn(1, 3, 10), torch.tensor([[3, 1, 2]])
    before = causal_lm_loss(logits, labels, 2)
    logits[:, -1] = 1e9
    assert causal_lm_loss(logits, labels, 2).equal(before)


def test_masked_tokens_cost_nothing() -> None:
    logits = torch.randn(1, 4, 10)
    labels = torch.tensor([[3, IGNORE_INDEX, 2, IGNORE_INDEX]])
    expected = functional.cross_entropy(logits[0, 1:2], labels[0, 2:3])
    assert float(causal_lm_loss(logits, labels, 1)) == pytest.approx(float(expected))
    assert count_targets(labels) == 1


def test_the_sum_is_divided_by_the_tokens_of_the_step() -> None:
    logits, labels = torch.randn(2, 5, 10), torch.randint(0, 10, (2, 5))
    whole = causal_lm_loss(logits, labels, 1)
    assert float(causal_lm_loss(logits, labels, 16)) == pytest.approx(float(whole) / 16)


def test_the_loss_is_torchs_over_an_unequal_batch() -> None:
    torch.manual_seed(0)
    labels = make_batch(8)["labels"]
    logits = torch.randn(*labels.shape, VOCABULARY)
    expected = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    loss = causal_lm_loss(logits, labels, count_targets(labels))
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


def test_parts_of_unequal_size_add_up_to_the_whole() -> None:
    torch.manual_seed(0)
    labels = make_batch(8)["labels"]
    logits = torch.randn(*labels.shape, VOCABULARY)
    tokens = count_targets(labels)
    sizes = {count_targets(labels[start : start + 2]) for start in range(0, 8, 2)}
    assert len(sizes) > 1
    parts = [causal_lm_loss(logits[i : i + 2], labels[i : i + 2], tokens) for i in range(0, 8, 2)]
    torch.testing.assert_close(sum(parts), causal_lm_loss(logits, labels, tokens))


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits, labels = torch.randn(2, 50, 10).bfloat16(), torch.randint(0, 10, (2, 50))
    loss = causal_lm_loss(logits, labels, 98)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, causal_lm_loss(logits.float(), labels, 98))
