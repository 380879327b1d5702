"""Modes and precision are those that were asked for, and a fault in them shows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from stages.probes.evaluating import evaluating
from stages.probes.modes import evaluation_difference, watching_dropout
from stages.probes.precision import smallest_half_change, watching_dtypes
from stages.training.setup import make_autocast
from stages.training.step import forward

from ..parts import Bigram, Output, make_batch
from ..settings import make_params

FP32 = make_autocast(make_params().run)


def test_dropout_that_is_off_while_the_model_trains_is_named() -> None:
    model = Bigram(dropout=0.5)
    with watching_dropout(model) as switched_off:
        forward(model.train(), make_batch(2))
    assert switched_off == set()
    with watching_dropout(model) as switched_off:
        forward(model.eval(), make_batch(2))
    assert switched_off == {"dropout"}


def test_a_model_without_dropout_may_train_in_any_mode() -> None:
    model = Bigram(dropout=0.0).eval()
    with watching_dropout(model) as switched_off:
        forward(model, make_batch(2))
    assert switched_off == set()


def test_modes_come_back_one_by_one() -> None:
    model = Bigram(dropout=0.5).train()
    model.norm.eval()
    with evaluating(model):
        assert [m.training for m in model.modules()] == [False] * 5
    assert [m.training for m in model.modules()] == [True, True, False, True, True]


class AlwaysDropping(Bigram):
    def forward(self, *arguments: Any, **inputs: Any) -> Output:
        return Output(dropout(super().forward(*arguments, **inputs).logits, 0.5))


@pytest.mark.parametrize(
    ("build", "differs"), [(lambda: Bigram(dropout=0.5), False), (AlwaysDropping, True)]
)
def test_what_is_random_in_evaluation_shows(build: Callable[[], nn.Module], differs: bool) -> None:
    model = build().train()
    assert (evaluation_difference(model, make_batch(2), FP32) > 0) is differs


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_dtypes_of_matrix_products_are_counted(precision: str) -> None:
    autocast = make_autocast(make_params(run__precision=precision).run)
    with watching_dtypes(Bigram()) as seen:
        pass
    assert not seen
    model = Bigram()
    with watching_dtypes(model) as seen, autocast():
        forward(model, make_batch(2))
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert dict(seen) == {dtypes[precision]: 1}


def test_only_vectors_in_half_precision_must_change_whole() -> None:
    model = Bigram()
    changed = dict.fromkeys((name for name, _ in model.named_parameters()), 0.4)
    assert smallest_half_change(changed, model) == (1.0, "")
    model.norm.to(torch.bfloat16)
    changed["norm.bias"] = 0.3
    assert smallest_half_change(changed, model) == (0.3, "norm.bias")
