"""Which rows does a step see? A pure function of seed and step, so that a resume needs no state."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..config.schema import Train


def micro_batches_per_step(train: Train) -> int:
    """Micro-batches that one optimizer step takes, over all processes."""
    return train.gradient_accumulation_steps * train.num_processes


class BatchOrder:
    """A new permutation of all rows each epoch; steps run on over its end, so no row is dropped."""

    def __init__(self, rows: int, rows_per_step: int, seed: int) -> None:
        self.rows, self.rows_per_step, self.seed = rows, rows_per_step, seed

    def indices(self, step: int) -> list[int]:
        """Row numbers of step 0, 1, ...; always `rows_per_step` of them."""
        first = step * self.rows_per_step
        positions = range(first, first + self.rows_per_step)
        return [
            int(_permutation(self.rows, self.seed, p // self.rows)[p % self.rows])
            for p in positions
        ]

    def micro_batches(self, step: int, size: int) -> list[list[int]]:
        """The rows of a step in groups of `size`."""
        indices = self.indices(step)
        return [indices[start : start + size] for start in range(0, len(indices), size)]


@lru_cache(maxsize=4)
def _permutation(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(rows)
