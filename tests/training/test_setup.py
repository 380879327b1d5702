"""The production objects are those that params describe."""

from pathlib import Path

import pytest
import torch
from torch import nn

from stages.chat.collator import collate
from stages.chat.token_store import TokenStore
from stages.models.tiny_gpt import TinyGPT
from stages.training.loss import causal_lm_loss
from stages.training.schedule import schedule_factor
from stages.training.setup import (
    TrainingBatches,
    build_trainer,
    hooked_collator,
    hooked_loss,
    hooked_step,
    make_autocast,
)
from stages.training.step import train_step

from ..parts import VOCABULARY, Bigram, flat_gradient, make_batch, make_rows, write_store
from ..settings import make_params


def test_without_hooks_the_plain_functions_are_used() -> None:
    params = make_params()
    assert hooked_collator(params.data) is collate
    assert hooked_loss(params.train) is causal_lm_loss
    assert hooked_step(params.train) is train_step


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_a_matrix_product_runs_in_the_precision_of_the_run(
    precision: str, dtype: torch.dtype
) -> None:
    autocast = make_autocast(make_params(run__precision=precision).run)
    for _ in range(2):
        with autocast():
            assert nn.Linear(2, 2)(torch.zeros(1, 2)).dtype == dtype


def test_the_trainer_has_the_rate_decay_schedule_and_clipping_of_params() -> None:
    params = make_params(
        train__learning_rate=0.25,
        train__weight_decay=0.125,
        train__max_grad_norm=0.5,
        train__lr_scheduler_type="linear",
        train__warmup_steps=2,
    )
    trainer = build_trainer(params, Bigram(), 8)
    assert [g["weight_decay"] for g in trainer.optimizer.param_groups] == [0.125, 0.0]
    assert trainer.max_grad_norm == 0.5
    rates = [trainer.step([make_batch(2)]).learning_rate for _ in range(8)]
    assert rates == [0.25 * schedule_factor("linear", 2, 8)(step) for step in range(8)]


def test_a_trainer_takes_steps_with_what_it_was_built_from() -> None:
    trainer = build_trainer(make_params(train__warmup_ratio=0.0), Bigram(), 20)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    result = trainer.step([make_batch(2), make_batch(2, seed=1)])
    assert result.learning_rate == 0.01
    moved = [not p.equal(q) for p, q in zip(trainer.model.parameters(), before, strict=True)]
    assert moved == [True] * 5


@pytest.mark.parametrize(("size", "accumulation"), [(2, 4), (4, 2), (8, 1), (1, 8)])
def test_the_rows_of_a_step_do_not_depend_on_how_it_is_split(
    tmp_path: Path, size: int, accumulation: int
) -> None:
    meta = write_store(tmp_path, "train", make_rows(21))
    store = TokenStore("train", tmp_path)
    train = make_params(
        train__per_device_train_batch_size=size, train__gradient_accumulation_steps=accumulation
    ).train
    batches = TrainingBatches(store, meta, collate, train, 42, torch.device("cpu"))
    rows = []
    for step in range(3):
        micro_batches = batches.of_step(step)
        assert [len(batch["input_ids"]) for batch in micro_batches] == [size] * accumulation
        for batch in micro_batches:
            lengths = batch["attention_mask"].sum(1).tolist()
            ids = batch["input_ids"].tolist()
            rows += [tuple(row[:length]) for row, length in zip(ids, lengths, strict=True)]
    every = [tuple(row.input_ids.tolist()) for row in store]
    assert sorted(rows[:21]) == sorted(every)
    train = make_params(
        train__per_device_train_batch_size=8, train__gradient_accumulation_steps=1
    ).train
    whole = TrainingBatches(store, meta, collate, train, 42, torch.device("cpu")).of_step(0)[0]
    first = whole["input_ids"][0][: int(whole["attention_mask"][0].sum())]
    assert tuple(first.tolist()) == rows[0]


@pytest.mark.parametrize("mode", [{}, {"group_by_length": True}, {"packing": True}], ids=str)
def test_a_step_has_one_gradient_however_it_is_split(tmp_path: Path, mode: dict[str, bool]) -> None:
    meta = write_store(tmp_path, "train", make_rows(40))
    values = {f"train__{key}": value for key, value in mode.items()}
    found = []
    for size, accumulation in ((8, 1), (2, 4), (1, 8)):
        params = make_params(
            train__per_device_train_batch_size=size,
            train__gradient_accumulation_steps=accumulation,
            **values,
        )
        torch.manual_seed(0)
        trainer = build_trainer(params, TinyGPT(VOCABULARY, 16, n_heads=2, max_length=64), 20)
        store = TokenStore("train", tmp_path)
        batches = TrainingBatches(store, meta, collate, params.train, 42, torch.device("cpu"))
        gradients: list[torch.Tensor] = []
        trainer.optimizer.register_step_pre_hook(
            lambda *_, kept=gradients, model=trainer.model: kept.append(flat_gradient(model))
        )
        result = trainer.step(batches.of_step(1))
        found.append((gradients[0], result))
    (whole, expected), *others = found
    assert float(whole.norm()) > 0.1
    for gradient, result in others:
        torch.testing.assert_close(gradient, whole, rtol=0, atol=1e-6)
        assert result.loss == pytest.approx(expected.loss, abs=1e-6)
        assert result.supervised_tokens == expected.supervised_tokens
