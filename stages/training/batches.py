"""Which rows share each micro-batch of a step, and which of them one row of its tensors?

A pure function of seed and step: a resumed training needs no state for it, and all ranks, the gates
and the audit of gate 1 see the same.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from ..chat.collator import Batch, Collator
from ..chat.packed import pack_batch
from ..chat.token_store import TokenRow
from ..config.schema import Train
from .order import BatchOrder, micro_batches_per_step
from .packing import Groups, Integers, batch_by_tokens, pack_by_length

Packs = list[list[int]]
"""Numbers of the rows of a micro-batch: one list for each row of its tensors."""


class BatchPlan:
    """Micro-batches of every step over rows of `lengths`, int64 [rows]; ranks take them in turn.

    Packs, which hold at most `max_length` tokens, and micro-batches that are filled by tokens are
    the same in every epoch, as fairseq has the latter: what an epoch draws anew is their order.
    """

    def __init__(self, lengths: Integers, max_length: int, train: Train, seed: int) -> None:
        rows, per_step = len(lengths), micro_batches_per_step(train)
        self._packs = pack_by_length(lengths, max_length) if train.packing else Groups.singles(rows)
        packed = self._packs.sums(lengths)
        self._size = train.per_device_train_batch_size
        self._filled: Groups | None = None
        if train.max_tokens_per_batch:
            drawn = np.random.default_rng(seed).permutation(len(packed))
            if train.group_by_length:
                drawn = drawn[np.argsort(-packed[drawn], kind="stable")]
            self._filled = batch_by_tokens(packed, drawn, train.max_tokens_per_batch)
            self._order = BatchOrder(len(self._filled), per_step, seed)
        else:
            grouped = packed if train.group_by_length else None
            self._order = BatchOrder(len(packed), self._size * per_step, seed, grouped)

    def count_steps(self, epochs: float) -> int:
        """Optimizer steps until every row was seen `epochs` times."""
        return max(math.ceil(epochs * self._order.rows / self._order.rows_per_step), 1)

    def micro_batches(self, step: int) -> list[Packs]:
        """The micro-batches of step 0, 1, ..., of all ranks."""
        if self._filled is None:
            dealt = self._order.micro_batches(step, self._size)
        else:
            dealt = [self._filled[number] for number in self._order.indices(step)]
        return [[self._packs[pack] for pack in packs] for packs in dealt]

    def first_epoch(self) -> Iterator[Packs]:
        """Micro-batches until every row was seen, and those that fill the last step."""
        for step in range(self.count_steps(1.0)):
            yield from self.micro_batches(step)


def collate_packs(
    packs: Sequence[Sequence[TokenRow]], collator: Collator, pad_token_id: int, *, packing: bool
) -> Batch:
    """The tensors of a micro-batch: what the collator makes of its rows, packed or as it is."""
    batch = collator(list(chain.from_iterable(packs)), pad_token_id)
    return pack_batch(batch, [len(pack) for pack in packs], pad_token_id) if packing else batch
