"""Collators that change labels or inputs which were right in the token store."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..chat.collator import Batch, Collator
from ..chat.labels import IGNORE_INDEX
from ..chat.token_store import TokenMeta, TokenRow, TokenStore, read_meta
from ..config.schema import Params
from ..training.setup import Parts, TrainingBatches
from .fault import Fault

Change = Callable[[Batch, TokenMeta], None]
"""Changes the tensors of a batch, each int64 [B, T], in place."""


def changed(collator: Collator, change: Change) -> Collator:
    """The collator with `change` after it."""

    def collate(rows: Sequence[TokenRow], pad_token_id: int) -> Batch:
        batch = {name: tensor.clone() for name, tensor in collator(rows, pad_token_id).items()}
        change(batch, read_meta())
        return batch

    return collate


def first_step(params: Params, collator: Collator) -> list[Batch]:
    """The micro-batches of step 0, as they reach `forward`."""
    store, device = TokenStore("train"), torch.device("cpu")
    batches = TrainingBatches(store, read_meta(), collator, params.train, params.run.seed, device)
    return batches.of_step(0)


def _fault(
    name: str, numbers: tuple[int, ...], checks: tuple[str, ...], cause: str, change: Change
) -> Fault:
    """Gate 3 must see it in the first step, unless that step's tensors stay as they are."""

    def plant(parts: Parts, params: Params) -> tuple[Parts, Params]:
        return replace(parts, collator=changed(parts.collator, change)), params

    def applies(params: Params) -> str | None:
        sound = Parts.of(params).collator
        pairs = zip(
            first_step(params, sound), first_step(params, changed(sound, change)), strict=True
        )
        if all(one[name].equal(other[name]) for one, other in pairs for name in one):
            return "it changes nothing in the rows of the first step"
        return None

    return Fault(name, "labels", numbers, "gradient_probe", checks, cause, plant, applies)


def _supervised(batch: Batch) -> torch.Tensor:
    return batch["labels"] != IGNORE_INDEX


def _real(batch: Batch) -> torch.Tensor:
    return batch["attention_mask"] == 1


def _random(batch: Batch, meta: TokenMeta) -> None:
    ids, which = batch["labels"], _supervised(batch)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(meta.vocab_size, ids.shape, generator=generator)
    batch["labels"] = torch.where(which, drawn, ids)


def _of_the_next_row(batch: Batch, meta: TokenMeta) -> None:
    batch["labels"] = batch["labels"].roll(1, 0)


def _constant_inputs(batch: Batch, meta: TokenMeta) -> None:
    batch["input_ids"].fill_(meta.pad_token_id)


def _all_masked(batch: Batch, meta: TokenMeta) -> None:
    batch["labels"].fill_(IGNORE_INDEX)


def _first_row_masked(batch: Batch, meta: TokenMeta) -> None:
    batch["labels"][0] = IGNORE_INDEX


def _inverted(batch: Batch, meta: TokenMeta) -> None:
    prompt = ~_supervised(batch) & _real(batch)
    batch["labels"] = torch.where(prompt, batch["input_ids"], IGNORE_INDEX)


def _prompt_supervised(batch: Batch, meta: TokenMeta) -> None:
    batch["labels"] = torch.where(_real(batch), batch["input_ids"], IGNORE_INDEX)


def _padding_supervised(batch: Batch, meta: TokenMeta) -> None:
    batch["labels"] = torch.where(_real(batch), batch["labels"], batch["input_ids"])


def _stop_masked(batch: Batch, meta: TokenMeta) -> None:
    batch["labels"][batch["labels"] == meta.stop_token_id] = IGNORE_INDEX


def _first_token_masked(batch: Batch, meta: TokenMeta) -> None:
    """The first token of every answer."""
    before = torch.nn.functional.pad(_supervised(batch), (1, 0))[:, :-1]
    batch["labels"][_supervised(batch) & ~before] = IGNORE_INDEX


def _shifted(batch: Batch, meta: TokenMeta) -> None:
    after = batch["labels"][:, 1:]
    batch["labels"] = torch.nn.functional.pad(after, (0, 1), value=IGNORE_INDEX)


NOT_THE_STORES = "the labels that reach the loss are not those of the token store"
NOT_TRAINED = "tokens are not trained on"

FAULTS = (
    _fault(
        "labels_random",
        (1,),
        ("targets_wrong",),
        "positions are trained on another token than the next",
        _random,
    ),
    _fault(
        "labels_of_the_next_row",
        (2,),
        ("targets_untrained", "targets_wrong"),
        NOT_THE_STORES,
        _of_the_next_row,
    ),
    _fault(
        "inputs_constant",
        (4,),
        ("targets_untrained", "targets_unasked"),
        NOT_THE_STORES,
        _constant_inputs,
    ),
    _fault("all_masked", (17,), ("targets_untrained",), NOT_TRAINED, _all_masked),
    _fault("a_row_masked", (18,), ("targets_untrained",), NOT_TRAINED, _first_row_masked),
    _fault(
        "mask_inverted", (19,), ("targets_untrained", "targets_unasked"), NOT_THE_STORES, _inverted
    ),
    _fault(
        "prompt_supervised",
        (20,),
        ("targets_unasked",),
        "masked tokens are trained on",
        _prompt_supervised,
    ),
    _fault(
        "padding_supervised",
        (21,),
        ("targets_unasked",),
        "masked tokens are trained on",
        _padding_supervised,
    ),
    _fault("stop_masked", (22,), ("targets_untrained",), NOT_TRAINED, _stop_masked),
    _fault("first_token_masked", (23,), ("targets_untrained",), NOT_TRAINED, _first_token_masked),
    _fault(
        "labels_shifted_by_the_collator",
        (24,),
        ("targets_wrong",),
        "labels are shifted twice",
        _shifted,
    ),
)
