"""What a step trains on is read off its gradient: faults of wiring that a loss curve hides."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from stages.chat.collator import Batch, collate
from stages.chat.labels import IGNORE_INDEX
from stages.chat.token_store import TokenRow
from stages.models.tiny_gpt import TinyGPT
from stages.probes.targets import TargetRecord, watching_targets
from stages.training.loss import LossFunction, causal_lm_loss
from stages.training.setup import make_autocast
from stages.training.step import StepResult, TrainStep, train_step

from ..parts import PAD, STOP, VOCABULARY, Bigram, make_row, make_rows, make_trainer
from ..settings import make_params

Logits = torch.Tensor


def probe(
    rows: Sequence[TokenRow],
    *,
    loss: LossFunction = causal_lm_loss,
    step: TrainStep = train_step,
    collator: Callable[[Sequence[TokenRow], int], Batch] = collate,
    model: nn.Module | None = None,
    precision: str = "fp32",
    micro_batches: int = 2,
) -> TargetRecord:
    """Watch one step over `rows`, dealt to micro-batches."""
    torch.manual_seed(0)
    model = model or TinyGPT(VOCABULARY, 16, 1, 2, 64)
    half = precision == "fp16"
    trainer = replace(
        make_trainer(model, step=step),
        loss_fn=loss,
        autocast=make_autocast(make_params(run__precision=precision).run),
        scaler=GradScaler("cpu", enabled=half, init_scale=1024.0),
    )
    size = -(-len(rows) // micro_batches)
    batches = [collator(rows[at : at + size], PAD) for at in range(0, len(rows), size)]
    with watching_targets(model, rows, trainer.scaler) as record:
        trainer.step(batches)
    return record


def faults_of(record: TargetRecord, tolerance: float = 0.05) -> set[str]:
    """Names of what is not as it should be."""
    lists = ("untrained", "unasked", "wrong", "raised")
    weight = {"weight"} if not record.weight_error <= tolerance else set()
    return {name for name in lists if getattr(record, name)} | weight


def pad_left(rows: Sequence[TokenRow], pad_token_id: int) -> Batch:
    flipped = [replace(row, input_ids=row.input_ids[::-1], labels=row.labels[::-1]) for row in rows]
    return {name: tensor.flip(1) for name, tensor in collate(flipped, pad_token_id).items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
@pytest.mark.parametrize("collator", [collate, pad_left], ids=["right", "left"])
def test_a_sound_step_trains_on_the_next_tokens_and_weighs_them_alike(
    collator: Callable[[Sequence[TokenRow], int], Batch], micro_batches: int, precision: str
) -> None:
    rows = make_rows(8)
    record = probe(rows, collator=collator, micro_batches=micro_batches, precision=precision)
    assert faults_of(record) == set()
    assert record.asked == sum(int((row.labels[1:] != IGNORE_INDEX).sum()) for row in rows)
    assert (record.learned, record.shift) == (0, None)
    assert record.weights == pytest.approx((1, 1), abs=0.03 if precision == "bf16" else 1e-2)


def test_rows_that_are_alike_but_for_their_labels_are_each_judged_by_their_own() -> None:
    rows = [make_row([2, 3, 4, STOP], first) for first in (1, 3, 2, 1)]
    assert faults_of(probe(rows)) == set()


def test_a_target_that_is_learned_already_is_counted_and_not_judged() -> None:
    model = Bigram()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.eye(VOCABULARY)[STOP] * 100)
    record = probe([make_row([2, 3, STOP], 1), make_row([4, 5, STOP], 2)], model=model)
    assert (record.asked, record.learned, faults_of(record)) == (3, 2, set())


def test_packed_rows_are_taken_apart_where_positions_restart() -> None:
    rows = make_rows(3)

    def pack(rows: Sequence[TokenRow], pad_token_id: int) -> Batch:
        labels = [np.where(np.arange(len(row.labels)) == 0, -100, row.labels) for row in rows]
        parts = {
            "input_ids": np.concatenate([row.input_ids for row in rows]),
            "labels": np.concatenate(labels),
            "position_ids": np.concatenate([np.arange(len(row.labels)) for row in rows]),
        }
        return {name: torch.from_numpy(part.astype("int64"))[None] for name, part in parts.items()}

    assert faults_of(probe(rows, collator=pack, micro_batches=1, model=Bigram())) == set()


def shifted(by: int) -> LossFunction:
    def loss(logits: Logits, labels: torch.Tensor, num_items: int) -> torch.Tensor:
        flat = logits[:, : logits.shape[1] - by].flatten(0, 1), labels[:, by:].flatten()
        return cross_entropy(*flat, reduction="sum") / num_items

    return loss


def of_each(
    change: Callable[[Logits, torch.Tensor], torch.Tensor],
) -> LossFunction:
    """`change(logits, targets)` of all supervised positions, over num_items."""

    def loss(logits: Logits, labels: torch.Tensor, num_items: int) -> torch.Tensor:
        targets = labels[:, 1:].flatten()
        flat = logits[:, :-1].flatten(0, 1)[targets != IGNORE_INDEX]
        return change(flat, targets[targets != IGNORE_INDEX]) / num_items

    return loss


summed = partial(cross_entropy, reduction="sum")
WRONG_LOSSES: dict[str, tuple[LossFunction, set[str]]] = {
    "no_shift": (shifted(0), {"wrong", "untrained", "unasked"}),
    "shifted_twice": (shifted(2), {"wrong", "untrained", "unasked"}),
    "sum": (lambda logits, labels, n: n * causal_lm_loss(logits, labels, n), {"weight"}),
    "scaled": (lambda logits, labels, n: 1e-4 * causal_lm_loss(logits, labels, n), {"weight"}),
    "wrong_sign": (
        lambda logits, labels, n: -causal_lm_loss(logits, labels, n),
        {"wrong", "raised", "weight"},
    ),
    "smoothing": (of_each(partial(summed, label_smoothing=0.1)), {"weight"}),
    "softmax_before": (of_each(lambda logits, t: summed(logits.softmax(-1), t)), {"weight"}),
    "squares": (
        of_each(
            lambda logits, t: mse_loss(
                logits.softmax(-1), one_hot(t, VOCABULARY).float(), reduction="sum"
            )
        ),
        {"weight"},
    ),
    "a_class_is_ignored": (
        of_each(partial(summed, ignore_index=STOP)),
        {"untrained"},
    ),
    "cut_at_one": (of_each(lambda logits, t: summed(logits, t).clamp(max=1.0)), {"untrained"}),
}


@pytest.mark.parametrize("name", WRONG_LOSSES)
def test_a_wrong_loss_shows(name: str) -> None:
    loss, expected = WRONG_LOSSES[name]
    assert expected <= faults_of(probe(make_rows(8), loss=loss))


@pytest.mark.parametrize("by", [0, 2])
def test_a_wrong_shift_is_measured(by: int) -> None:
    assert probe(make_rows(32, seed=1), loss=shifted(by)).shift == by


def change_labels(change: Callable[[Batch], torch.Tensor]) -> Any:
    def collator(rows: Sequence[TokenRow], pad_token_id: int) -> Batch:
        batch = collate(rows, pad_token_id)
        return {**batch, "labels": change(batch)}

    return collator


def everything(batch: Batch) -> torch.Tensor:
    return torch.where(batch["attention_mask"] == 1, batch["input_ids"], IGNORE_INDEX)


def inverted(batch: Batch) -> torch.Tensor:
    return torch.where(batch["labels"] == IGNORE_INDEX, everything(batch), IGNORE_INDEX)


def with_padding(batch: Batch) -> torch.Tensor:
    return torch.where(batch["attention_mask"] == 0, PAD, batch["labels"])


def shifted_labels(batch: Batch) -> torch.Tensor:
    return torch.cat([batch["labels"][:, 1:], batch["labels"][:, :1]], dim=1)


WRONG_LABELS: dict[str, tuple[Callable[[Batch], torch.Tensor], set[str]]] = {
    "prompt": (everything, {"unasked"}),
    "inverted": (inverted, {"unasked", "untrained"}),
    "padding": (with_padding, {"unasked"}),
    "no_stop": (
        lambda batch: batch["labels"].masked_fill(batch["labels"] == STOP, IGNORE_INDEX),
        {"untrained"},
    ),
    "another_rows": (lambda batch: batch["labels"].roll(1, 0), {"wrong"}),
    "shifted": (shifted_labels, {"wrong"}),
    "nothing": (lambda batch: torch.full_like(batch["labels"], IGNORE_INDEX), {"untrained"}),
}


@pytest.mark.parametrize("name", WRONG_LABELS)
def test_wrong_labels_show(name: str) -> None:
    change, expected = WRONG_LABELS[name]
    record = probe(make_rows(8), collator=change_labels(change))
    assert expected <= faults_of(record)


def mean_of_means(model: nn.Module, batches: Sequence[Batch], **rest: Any) -> StepResult:
    def loss(logits: Logits, labels: torch.Tensor, num_items: int) -> torch.Tensor:
        own = int((labels[:, 1:] != IGNORE_INDEX).sum())
        return causal_lm_loss(logits, labels, own) / len(batches)

    return train_step(model, batches, **{**rest, "loss_fn": loss})


def undivided(model: nn.Module, batches: Sequence[Batch], **rest: Any) -> StepResult:
    def loss(logits: Logits, labels: torch.Tensor, num_items: int) -> torch.Tensor:
        return causal_lm_loss(logits, labels, int((labels[:, 1:] != IGNORE_INDEX).sum()))

    return train_step(model, batches, **{**rest, "loss_fn": loss})


def last_left_out(model: nn.Module, batches: Sequence[Batch], **rest: Any) -> StepResult:
    return train_step(model, batches[:-1], **rest)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (mean_of_means, {"weight"}),
        (undivided, {"weight"}),
        (last_left_out, {"untrained", "weight"}),
    ],
)
def test_a_wrong_accumulation_shows(step: TrainStep, expected: set[str]) -> None:
    assert faults_of(probe(make_rows(8), step=step, micro_batches=4)) == expected


def test_places_are_named_by_source_and_token() -> None:
    rows = [make_row([2, 3, 4, STOP], 3, "chats.jsonl:7"), make_row([5, 6, STOP], 2)]
    record = probe(rows, collator=change_labels(inverted))
    assert record.untrained == ["chats.jsonl:7, token 2", "rows.jsonl:1, token 1"]
    assert record.unasked[:2] == ["chats.jsonl:7, token 0", "chats.jsonl:7, token 1"]
