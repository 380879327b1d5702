"""Corruptions of what a collator makes of right rows: of padded batches, and of packed ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..chat.collator import collate
from ..chat.labels import IGNORE_INDEX, Role
from ..chat.packed import pack_batch
from ..chat.token_store import TokenRow
from ..chat.tokenizer import ChatTokenizer
from .expected import Expected, Fault, expected_of_labels

Batch = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class PlantedBatch:
    """rows: what the batch should hold, in its order."""

    rows: Sequence[TokenRow]
    batch: Batch
    expected: Sequence[Expected]


@dataclass(frozen=True)
class BatchCorruption:
    """corrupt(batch, index, rows, tokenizer) changes the batch in place."""

    needs: str
    corrupt: Callable[[Batch, int, Sequence[TokenRow], ChatTokenizer], Sequence[Expected] | None]


def _supervise_one_pad(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    return _supervise_padding(batch, index, rows, np.flatnonzero(_is_pad(batch, index))[-1:])


def _supervise_every_pad(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    return _supervise_padding(batch, index, rows, np.flatnonzero(_is_pad(batch, index)))


def _is_pad(batch: Batch, index: int) -> NDArray[np.bool_]:
    return np.asarray(batch["attention_mask"][index] == 0)


def _supervise_padding(
    batch: Batch, index: int, rows: Sequence[TokenRow], pads: NDArray[np.int64]
) -> Sequence[Expected] | None:
    if not len(pads):
        return None
    batch["labels"][index, pads] = batch["input_ids"][index, pads]
    faults = (Fault(("padding_supervised",), (int(pads[0]),)),)
    return [Expected(rows[index].source, faults, frozenset(pads.tolist()))]


def _mask_every_stop(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    labels = batch["labels"][index]
    stops = np.isin(labels, tokenizer.stop_token_ids)
    return _relabel(batch, index, rows, np.where(stops, IGNORE_INDEX, labels))


def _shift_batch(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    told = _relabel(batch, index, rows, np.append(batch["labels"][index, 1:], IGNORE_INDEX))
    shifted = Fault(("labels_shifted",))
    return told and [replace(one, faults=(*one.faults, shifted)) for one in told]


def _relabel(
    batch: Batch, index: int, rows: Sequence[TokenRow], labels: NDArray[np.int64]
) -> Sequence[Expected] | None:
    row = rows[index]
    of_row = labels[: len(row.labels)].astype(np.int32)
    if np.array_equal(of_row, row.labels):
        return None
    batch["labels"][index] = labels
    unlearned = (row.labels == IGNORE_INDEX) & (row.roles != Role.HEADER)
    prompt = replace(row, roles=np.where(unlearned, Role.OTHER, row.roles).astype(np.uint8))
    told = expected_of_labels(prompt, of_row)
    faults = tuple(fault for fault in told.faults if fault.kinds != ("no_supervised_token",))
    return [replace(told, faults=faults)]


def _attend_too_little(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    last = len(rows[index].input_ids) - 1
    batch["attention_mask"][index, last] = 0
    faults = (Fault(("attention_mask_wrong",)),)
    return [Expected(rows[index].source, faults, frozenset([last]))]


def _attend_to_padding(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    pads = np.flatnonzero(_is_pad(batch, index))
    if not len(pads):
        return None
    batch["attention_mask"][index, pads[0]] = 1
    faults = (Fault(("attention_mask_wrong",)),)
    return [Expected(rows[index].source, faults, frozenset(pads[:1].tolist()))]


def _swap_rows(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    one, other = rows
    same_length = len(one.input_ids) == len(other.input_ids)
    differs = np.flatnonzero(one.input_ids != other.input_ids) if same_length else np.zeros(0)
    if same_length and not len(differs):
        return None
    for name in batch:
        batch[name] = batch[name][::-1]
    fault = Fault(("attention_mask_wrong",))
    if same_length:
        fault = Fault(("collated_tokens_differ",), (int(differs[0]),))
    return [
        Expected(row.source, (fault,), frozenset(range(batch["labels"].shape[1]))) for row in rows
    ]


def _change_one_token(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    position = len(rows[index].input_ids) // 2
    batch["input_ids"][index, position] += -1 if batch["input_ids"][index, position] else 1
    faults = (Fault(("collated_tokens_differ",), (position,)),)
    return [Expected(rows[index].source, faults, frozenset([position]))]


BATCH_CORRUPTIONS = {
    "batch: one pad supervised": BatchCorruption("padding", _supervise_one_pad),
    "batch: every pad supervised": BatchCorruption("padding", _supervise_every_pad),
    "batch: stop tokens masked as if they were padding": BatchCorruption(
        "a supervised stop token", _mask_every_stop
    ),
    "batch: labels shifted left by one": BatchCorruption("a supervised token", _shift_batch),
    "batch: attention mask too short": BatchCorruption("another row beside it", _attend_too_little),
    "batch: attention mask too long": BatchCorruption("padding", _attend_to_padding),
    "batch: rows swapped": BatchCorruption("another row beside it", _swap_rows),
    "batch: one token changed": BatchCorruption("another row beside it", _change_one_token),
}


def plant_in_batch(
    name: str, rows: Sequence[TokenRow], index: int, tokenizer: ChatTokenizer
) -> PlantedBatch | None:
    """The control `name` on row `index` of two that are batched; None where it does not fit."""
    tensors = collate(rows, tokenizer.pad_token_id)
    batch = {key: tensor.numpy() for key, tensor in tensors.items()}
    expected = BATCH_CORRUPTIONS[name].corrupt(batch, index, rows, tokenizer)
    return None if expected is None else PlantedBatch(rows, batch, expected)


def _run_positions_on(packed: Batch, row: TokenRow, start: int) -> Expected:
    end = start + len(row.input_ids)
    packed["position_ids"][0, start:end] += start
    faults = (Fault(("positions_wrong",), (0,)),)
    return Expected(row.source, faults, frozenset([0]))


def _supervise_first_token(packed: Batch, row: TokenRow, start: int) -> Expected:
    packed["labels"][0, start] = row.input_ids[0]
    faults = (Fault(("target_across_border",), (0,)),)
    return Expected(row.source, faults, frozenset([0]))


PACK_CORRUPTIONS: dict[str, Callable[[Batch, TokenRow, int], Expected]] = {
    "packed: positions run on into the next document": _run_positions_on,
    "packed: first token of the next document supervised": _supervise_first_token,
}
"""corrupt(packed, document, where it begins) changes the first of the packed rows in place."""


def plant_in_pack(
    name: str, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> tuple[Batch, Expected]:
    """The control `name` on the second of two rows that are packed; the first is alone below."""
    tensors = collate([*rows, rows[0]], tokenizer.pad_token_id)
    packed = pack_batch(tensors, [2, 1], tokenizer.pad_token_id)
    batch = {key: tensor.numpy() for key, tensor in packed.items()}
    return batch, PACK_CORRUPTIONS[name](batch, rows[1], len(rows[0].input_ids))
