"""Rows become a padded batch: the tensors that reach `forward`.

A collator of your own (`data.collator._target_`) is called as `collator(rows, pad_token_id)` and
returns the same three tensors; mask_report audits what it returns, token by token.
"""

from collections.abc import Callable, Sequence

import torch

from .labels import IGNORE_INDEX
from .token_store import TokenRow

Batch = dict[str, torch.Tensor]
Collator = Callable[[Sequence[TokenRow], int], Batch]


def collate(rows: Sequence[TokenRow], pad_token_id: int) -> Batch:
    """Pad on the right to the longest row.

    Returns input_ids, attention_mask (1 on real tokens) and labels (-100 on padding), each int64
    [rows, longest].
    """
    longest = max(len(row.input_ids) for row in rows)
    shape = (len(rows), longest)
    input_ids = torch.full(shape, pad_token_id, dtype=torch.int64)
    labels = torch.full(shape, IGNORE_INDEX, dtype=torch.int64)
    attention_mask = torch.zeros(shape, dtype=torch.int64)
    for index, row in enumerate(rows):
        length = len(row.input_ids)
        input_ids[index, :length] = torch.from_numpy(row.input_ids.astype("int64"))
        labels[index, :length] = torch.from_numpy(row.labels.astype("int64"))
        attention_mask[index, :length] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
