"""The numbers of a recipe are read off what was built, not off params.yaml."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from stages.probes.observe import StepRecord
from stages.probes.recipe import read_recipe
from stages.training.evaluation import first_turns
from stages.training.optimizer import build_optimizer

from ..parts import Bigram, make_rows
from ..settings import make_params

RATE = 0.01
TRAIN = make_params(train__max_new_tokens=64).train


def optimizer_of(model: nn.Module, **values: Any) -> torch.optim.Optimizer:
    params = make_params(**values).train.optimizer
    return build_optimizer(model, params, learning_rate=RATE, weight_decay=0.1)


def records_of(model: nn.Module, size: float, kept: float = 1.0) -> list[StepRecord]:
    """One step in which each element of the gradient was `size`, of which clipping left `kept`."""
    norms = {name: size * math.sqrt(p.numel()) for name, p in model.named_parameters()}
    norm = math.hypot(*norms.values())
    return [StepRecord(grad_norm=norm, applied_norm=kept * norm, grad_norms=norms)]


def test_the_recipe_of_a_sound_run() -> None:
    model = Bigram(dropout=0.2)
    recipe = read_recipe(model, optimizer_of(model), records_of(model, 1e-3), [], TRAIN)
    assert recipe.decay_per_step == pytest.approx(0.1 * RATE)
    assert recipe.decayed_vectors == []
    assert recipe.dropout == (0.2, "dropout")
    assert recipe.epsilon_share == pytest.approx(1e-8 / 1e-3)


def test_epsilon_is_held_against_what_clipping_leaves() -> None:
    model = Bigram()
    optimizer = optimizer_of(model, train__optimizer__adam_epsilon=1e-5)
    recipe = read_recipe(model, optimizer, records_of(model, 1e-3, kept=0.001), [], TRAIN)
    assert recipe.epsilon_share == pytest.approx(10)


def test_an_optimizer_without_an_epsilon_has_no_share_of_it() -> None:
    model = Bigram()
    plain = torch.optim.SGD(model.parameters(), lr=RATE)
    assert read_recipe(model, plain, records_of(model, 1e-3), [], TRAIN).epsilon_share is None
    assert (
        read_recipe(model, optimizer_of(model), records_of(model, 0.0), [], TRAIN).epsilon_share
        is None
    )


def test_gains_and_biases_that_are_decayed_are_named() -> None:
    model = Bigram()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=2.0)
    recipe = read_recipe(model, optimizer, records_of(model, 1e-3), [], TRAIN)
    assert {"norm.weight", "norm.bias"} <= set(recipe.decayed_vectors)
    assert all(model.get_parameter(name).ndim == 1 for name in recipe.decayed_vectors)
    assert recipe.decay_per_step == pytest.approx(2.0 * RATE)


def test_the_rate_at_the_peak_counts_not_that_of_the_warmup() -> None:
    model = Bigram()
    optimizer = optimizer_of(model)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    assert optimizer.param_groups[0]["lr"] == 0
    recipe = read_recipe(model, optimizer, records_of(model, 1e-3), [], TRAIN)
    assert recipe.decay_per_step == pytest.approx(0.1 * RATE)


def test_probabilities_of_functional_dropout_count_too() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=9, num_hidden_layers=1, attention_dropout=0.7, **sizes)
    model = LlamaForCausalLM(config)
    recipe = read_recipe(model, optimizer_of(model), records_of(model, 1e-3), [], TRAIN)
    assert recipe.dropout == (0.7, "model.layers.0.self_attn.attention_dropout")


def test_answers_that_evaluation_cuts_off_are_named() -> None:
    model, rows = Bigram(), make_rows(4)
    optimizer, records = optimizer_of(model), records_of(model, 1e-3)
    lengths = [len(turn.answer) for turn in first_turns(rows, 4)]
    exact = replace(TRAIN, max_new_tokens=max(lengths), eval_generations=4)
    assert read_recipe(model, optimizer, records, rows, exact).cut_off == []
    short = replace(exact, max_new_tokens=max(lengths) - 1)
    recipe = read_recipe(model, optimizer, records, rows, short)
    longest = [row.source for row, n in zip(rows, lengths, strict=True) if n == max(lengths)]
    assert (recipe.cut_off, recipe.asked) == (longest, 4)
    none = replace(short, eval_generations=0)
    assert read_recipe(model, optimizer, records, rows, none).cut_off == []
