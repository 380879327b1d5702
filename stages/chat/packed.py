"""Several documents in one row: how are they laid, so that none sees another?

transformers' models reset attention where position ids do not count on, with sdpa and eager in any
batch and with flash attention in batches of one row, but only while they get no attention_mask and
keep no cache (masking_utils.find_packed_sequence_indices, modeling_flash_attention_utils.
_is_packed_sequence of 5.24). A mask of four dimensions would be no better: eager attention adds a
boolean one to its scores, and layers with a sliding window lose their window. So a packed batch has
position_ids and no attention_mask; the models of this package read it in the same way.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from .collator import Batch
from .labels import IGNORE_INDEX


def pack_batch(batch: Batch, counts: Sequence[int], pad_token_id: int) -> Batch:
    """Lay the rows of a padded batch end to end: counts[0] of them into the first row, and so on.

    Returns input_ids, labels and position_ids, each int64 [len(counts), longest]. Positions restart
    at 0 with each document, and with the padding at the end. The label of a document's first token
    is masked: with the shift of the loss it would be the target of the document before it.
    """
    real = batch["attention_mask"] == 1
    fills = {"input_ids": pad_token_id, "labels": IGNORE_INDEX}
    lengths = real.sum(1).tolist()
    documents = list(pairwise(accumulate(counts, initial=0)))
    longest = max(sum(lengths[first:last]) for first, last in documents)
    packed = {
        name: tensor.new_full((len(counts), longest), fills.get(name, 0))
        for name, tensor in batch.items()
        if name != "attention_mask"
    }
    packed["position_ids"] = torch.zeros_like(packed["input_ids"])
    for row, (first, last) in enumerate(documents):
        ends = list(accumulate(lengths[first:last], initial=0))
        for document, (start, end) in enumerate(pairwise(ends), first):
            for name, tensor in packed.items():
                if name in batch:
                    tensor[row, start:end] = batch[name][document][real[document]]
            packed["labels"][row, start : start + 1] = IGNORE_INDEX
        for start, end in pairwise([*ends, longest]):
            packed["position_ids"][row, start:end] = torch.arange(end - start)
    return packed
