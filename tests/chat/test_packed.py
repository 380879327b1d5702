"""Packed rows: documents end to end, positions that restart, and no target across a border."""

from dataclasses import replace

import numpy as np
import torch

from stages.chat.collator import Batch, collate
from stages.chat.packed import pack_batch

from ..parts import PAD, make_row, make_rows

ROWS = [make_row([7, 8, 9], 2), make_row([4, 5], 1), make_row([3, 2, 6, 1], 0)]


def as_lists(batch: Batch) -> dict[str, list[list[int]]]:
    return {name: tensor.tolist() for name, tensor in batch.items()}


def test_documents_are_laid_end_to_end() -> None:
    packed = pack_batch(collate(ROWS, PAD), [2, 1], PAD)
    assert as_lists(packed) == {
        "input_ids": [[7, 8, 9, 4, 5], [3, 2, 6, 1, PAD]],
        "labels": [[-100, -100, 9, -100, 5], [-100, 2, 6, 1, -100]],
        "position_ids": [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]],
    }
    assert {tensor.dtype for tensor in packed.values()} == {torch.int64}


def test_the_first_token_of_a_document_is_never_a_target() -> None:
    rows = [replace(row, labels=row.input_ids) for row in ROWS]
    packed = pack_batch(collate(rows, PAD), [3], PAD)
    assert packed["labels"].tolist() == [[-100, 8, 9, -100, 5, -100, 2, 6, 1]]


def test_padding_on_the_left_and_tensors_of_ones_own_are_laid_too() -> None:
    batch = {
        "input_ids": torch.tensor([[PAD, 7, 8], [4, 5, 6]]),
        "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
        "labels": torch.tensor([[-100, -100, 8], [-100, 5, 6]]),
        "weights": torch.tensor([[0, 2, 3], [4, 5, 6]]),
    }
    packed = pack_batch(batch, [2], PAD)
    assert packed["input_ids"].tolist() == [[7, 8, 4, 5, 6]]
    assert packed["weights"].tolist() == [[2, 3, 4, 5, 6]]
    assert "attention_mask" not in packed


def test_padding_behind_the_documents_is_long_enough_for_the_longest_row() -> None:
    rows = make_rows(9)
    packed = pack_batch(collate(rows, PAD), [1, 5, 3], PAD)
    lengths = np.array([len(row.input_ids) for row in rows])
    assert packed["input_ids"].shape == (3, max(lengths[:1].sum(), lengths[1:6].sum()))
    pads = packed["input_ids"][0, lengths[0] :]
    assert pads.tolist() == [PAD] * len(pads)
    assert packed["position_ids"][0, lengths[0] :].tolist() == list(range(len(pads)))
