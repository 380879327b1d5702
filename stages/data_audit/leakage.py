"""Do rows held out for validation stand in the training rows, in other words than a shared prompt?

Measured by 13-grams of words, as GPT-3 did (Brown et al., 2020, appendix C): a held-out row is
suspect when the given share of its 13-grams stands in training rows. What makes it a leak is that
training gives its answer away, so a suspect counts only if the row it leaked from answers alike.

A 13-gram in more than COMMON_ROWS different training rows is fixed wording of the data (a template,
an instruction) and tells nothing: such n-grams are left out of the share, as GPT-3 and its
re-implementations leave them out. Rows with too little wording of their own are compared whole.

Only hashes of the held-out n-grams are kept (at most NGRAMS_KEPT a row, the smallest hashes: a fair
sample of the row, 13 bytes each); training rows stream past them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .words import Batch, Hashes

NGRAM = 13
NGRAMS_KEPT = 48
COMMON_ROWS = 10
MIN_OWN_NGRAMS = 5
FILTER_BITS = 22


@dataclass(frozen=True)
class Suspect:
    """A held-out row and the training row that it has most in common with, both by number."""

    row: int
    training_row: int
    share: float


class HeldOut:
    """The n-grams of held-out rows, collected batch by batch."""

    def __init__(self) -> None:
        self._ngrams: list[Hashes] = []
        self._sizes: list[NDArray[np.int64]] = []
        self._keys: list[Hashes] = []

    def add(self, batch: Batch) -> None:
        hashes, row = batch.ngrams(NGRAM)
        order = np.lexsort((hashes, row))
        hashes, row = hashes[order], row[order]
        new = np.ones(len(row), bool)
        new[1:] = (hashes[1:] != hashes[:-1]) | (row[1:] != row[:-1])
        hashes, row = hashes[new], row[new]
        sizes = np.bincount(row, minlength=len(batch))
        rank = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._ngrams.append(hashes[rank < NGRAMS_KEPT])
        self._sizes.append(np.minimum(sizes, NGRAMS_KEPT))
        self._keys.append(batch.row_keys())

    def search(self) -> "LeakSearch":
        """What was collected is handed over and forgotten here."""
        none = np.zeros(0, np.uint64)
        ngrams = np.concatenate([none, *self._ngrams])
        sizes = np.concatenate([np.zeros(0, np.int64), *self._sizes])
        keys = np.concatenate([none, *self._keys])
        self._ngrams, self._sizes, self._keys = [], [], []
        return LeakSearch(ngrams, sizes, keys)


class LeakSearch:
    """Held-out rows against which training rows are held, batch by batch.

    ngrams: uint64, those of all held-out rows in turn; sizes: int64 [rows], how many each has;
    keys: uint64 [rows], of whole rows.
    """

    def __init__(self, ngrams: Hashes, sizes: NDArray[np.int64], keys: Hashes) -> None:
        self._index = np.unique(ngrams)
        self._place = np.searchsorted(self._index, ngrams).astype(np.int32)
        self._ends = np.cumsum(sizes)
        self._rows_with = np.zeros(len(self._index), np.uint8)
        self._first_row = np.full(len(self._index), -1, np.int32)
        self._keys = keys
        self._known_keys = np.unique(keys)
        self._same_row = np.full(len(self._known_keys), -1, np.int32)
        self._filter = np.zeros(1 << FILTER_BITS, bool)
        self._filter[_low_bits(self._index)] = True

    def __len__(self) -> int:
        return len(self._keys)

    def pass_training(self, batch: Batch, numbers: NDArray[np.int64]) -> None:
        """Look for the held-out n-grams in training rows, which `numbers` names.

        Rows that repeat earlier ones exactly must be left out: they make no wording common.
        """
        self._mark(self._known_keys, self._same_row, batch.row_keys(), numbers)
        hashes, row = batch.ngrams(NGRAM)
        maybe = self._filter[_low_bits(hashes)]
        hashes, row = hashes[maybe], row[maybe]
        self._mark(self._index, self._first_row, hashes, numbers[row])
        place, known = _find(self._index, hashes)
        pairs = np.unique(place[known] * len(batch) + row[known])
        found, times = np.unique(pairs // max(len(batch), 1), return_counts=True)
        total = np.minimum(self._rows_with[found] + times, 255)
        self._rows_with[found] = total.astype(np.uint8)

    @staticmethod
    def _mark(
        index: Hashes, first: NDArray[np.int32], hashes: Hashes, numbers: NDArray[np.int64]
    ) -> None:
        place, known = _find(index, hashes)
        new = known & (first[place] < 0) if len(index) else known
        earliest = np.flatnonzero(new)[::-1]  # reversed: the first of equals is written last
        first[place[earliest]] = numbers[earliest]

    def suspects(self, share: float) -> list[Suspect]:
        """Held-out rows with at least `share` of their own n-grams, or all words, in training."""
        found = []
        whole = self._same_row[np.searchsorted(self._known_keys, self._keys)]
        for row, end in enumerate(self._ends):
            start = self._ends[row - 1] if row else 0
            if whole[row] >= 0:
                found.append(Suspect(row, int(whole[row]), 1.0))
                continue
            place = self._place[start:end]
            own = place[self._rows_with[place] <= COMMON_ROWS]
            leaked = own[self._rows_with[own] > 0]
            if len(own) >= MIN_OWN_NGRAMS and len(leaked) >= share * len(own):
                rows, times = np.unique(self._first_row[leaked], return_counts=True)
                found.append(Suspect(row, int(rows[times.argmax()]), len(leaked) / len(own)))
        return found


def _low_bits(hashes: Hashes) -> NDArray[np.int64]:
    return (hashes & np.uint64((1 << FILTER_BITS) - 1)).astype(np.int64)


def _find(index: Hashes, hashes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(place of each hash in a sorted index, whether it is there)."""
    if not len(index):
        return np.zeros(len(hashes), np.int64), np.zeros(len(hashes), bool)
    place = np.minimum(np.searchsorted(index, hashes), len(index) - 1)
    return place, index[place] == hashes
