"""Which rows does a step see? A pure function of seed and step, so that a resume needs no state."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..config.schema import Train

STEPS_IN_A_MEGA_BATCH = 50
MEGA_BATCHES = 4
"""At most 50 steps are sorted by length together, and an epoch has 4 such stretches or more, as in
transformers' LengthGroupedSampler."""


def micro_batches_per_step(train: Train) -> int:
    """Micro-batches that one optimizer step takes, over all processes."""
    return train.gradient_accumulation_steps * train.num_processes


def tokens_per_micro_batch(train: Train, max_length: int) -> int:
    """Positions of the largest micro-batch that rows of at most `max_length` tokens can make."""
    return train.max_tokens_per_batch or train.per_device_train_batch_size * max_length


class BatchOrder:
    """A new permutation of all rows each epoch; steps run on over its end, so no row is dropped.

    lengths: tokens of every row, int64 [rows]; given, rows of a like length come together.
    """

    def __init__(
        self, rows: int, rows_per_step: int, seed: int, lengths: NDArray[np.int64] | None = None
    ) -> None:
        self.rows, self.rows_per_step, self.seed = rows, rows_per_step, seed
        self._lengths = lengths
        self._epoch = lru_cache(maxsize=2)(self._permute)

    def indices(self, step: int) -> list[int]:
        """Row numbers of step 0, 1, ...; always `rows_per_step` of them."""
        first = step * self.rows_per_step
        positions = range(first, first + self.rows_per_step)
        return [int(self._epoch(p // self.rows)[p % self.rows]) for p in positions]

    def micro_batches(self, step: int, size: int) -> list[list[int]]:
        """The rows of a step in groups of `size`."""
        indices = self.indices(step)
        return [indices[start : start + size] for start in range(0, len(indices), size)]

    def _permute(self, epoch: int) -> NDArray[np.int64]:
        permutation = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        if self._lengths is None:
            return permutation
        return group_by_length(permutation, self._lengths, self.rows_per_step)


def group_by_length(
    permutation: NDArray[np.int64], lengths: NDArray[np.int64], rows_per_step: int
) -> NDArray[np.int64]:
    """The rows of a permutation, sorted by length within stretches of it, the longest row first.

    A step then holds rows of a like length, and which of them meet changes with the permutation.
    What does not fit into memory fails in the first step.
    """
    rows = len(permutation)
    steps = min(rows // (rows_per_step * MEGA_BATCHES), STEPS_IN_A_MEGA_BATCH)
    starts = range(0, rows, max(steps, 1) * rows_per_step)
    stretches = np.split(permutation, starts[1:])
    grouped = np.concatenate(
        [stretch[np.argsort(-lengths[stretch], kind="stable")] for stretch in stretches]
    )
    longest = max(starts, key=lambda start: int(lengths[grouped[start]]))
    grouped[[0, longest]] = grouped[[longest, 0]]
    return grouped
