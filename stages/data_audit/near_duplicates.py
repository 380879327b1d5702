"""Which conversations nearly repeat an earlier one?

Rows are sets of 5-grams of words, compared by Jaccard similarity; 0.8 is the customary limit (both
as in Lee et al., 2022, "Deduplicating training data makes language models better"). Candidates come
from MinHash and locality-sensitive hashing, and are then compared exactly, so that none is
reported by chance. Two rows are near duplicates when they are alike and their answers are, too:
ten questions on one long text are not ten copies.

5-grams in more than COMMON_ROWS rows are fixed wording of the data and are left out; so rows made
from one template differ by what was filled in. Groups of more near duplicates than that are only
found where they differ in case, punctuation or space.

MinHash is rensa's: it takes hashes that are there already, and needs some 5 microseconds a row; of
the alternatives, datasketch brings scipy along. Their indexes keep 512 bytes a row and more, so the
index here is sorted band keys, 36 bytes a row.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from rensa import RMinHash

from .words import Batch, Hashes, mix

SHINGLE = 5
COMMON_ROWS = 10
MIN_OWN_SHINGLES = 5
PERMUTATIONS, BANDS = 40, 8
"""5 values a band: similarities of 0.8 are found with 96 % probability, of 0.9 with 99.9 %."""
SEED = 1
TABLE_BITS = 24

Rows = NDArray[np.int64]
SmallRows = NDArray[np.int32]
Scalar = TypeVar("Scalar", bound=np.generic)


class ShingleCounts:
    """In how many rows does a 5-gram stand? A table of 16 MiB, which can only count too high."""

    def __init__(self) -> None:
        self._table = np.zeros(1 << TABLE_BITS, np.uint8)

    def add(self, batch: Batch) -> None:
        hashes, row = batch.ngrams(SHINGLE)
        cells = np.unique(_cell(hashes) * len(batch) + row) // max(len(batch), 1)
        found, times = np.unique(cells, return_counts=True)
        self._table[found] = np.minimum(self._table[found] + times, 255).astype(np.uint8)

    def own(self, batch: Batch) -> tuple[Hashes, Rows]:
        """(5-grams that are not fixed wording, the row of each)."""
        hashes, row = batch.ngrams(SHINGLE)
        rare = self._table[_cell(hashes)] <= COMMON_ROWS
        return hashes[rare], row[rare]


class NearDuplicateSearch:
    """Signatures of rows, collected batch by batch."""

    def __init__(self, counts: ShingleCounts) -> None:
        self._counts = counts
        self._bands: list[NDArray[np.uint32]] = []
        self._banded: list[SmallRows] = []
        self._keys: list[Hashes] = []
        self._rows: list[SmallRows] = []

    def add(self, batch: Batch, numbers: Rows) -> None:
        """Add rows, known by ascending `numbers`; leave exact repeats of other rows out."""
        self._keys.append(batch.row_keys())
        self._rows.append(numbers.astype(np.int32))
        hashes, row = self._counts.own(batch)
        sizes = np.bincount(row, minlength=len(batch))
        enough = sizes >= MIN_OWN_SHINGLES
        hashes = np.ascontiguousarray(hashes[enough[row]])
        starts = np.concatenate([[0], np.cumsum(sizes[enough])]).astype(np.int64)
        if len(hashes):
            self._bands.append(_band_keys(hashes, starts))
            self._banded.append(numbers[enough].astype(np.int32))

    def candidates(self) -> tuple[SmallRows, SmallRows]:
        """(rows that may repeat an earlier one, that row), by row; a row can occur again."""
        pairs = [_pairs(_joined(self._keys, np.uint64), _joined(self._rows, np.int32))]
        rows = _joined(self._banded, np.int32)
        for band in range(BANDS):
            pairs.append(_pairs(_joined([keys[band] for keys in self._bands], np.uint32), rows))
        joined = np.unique(np.concatenate(pairs), axis=0)
        return joined[:, 0], joined[:, 1]

    def alike(self, one: list[int], other: list[int], similarity: float) -> bool:
        """Whether two rows of words have at least `similarity` in common, by their own 5-grams."""
        if one == other:
            return True
        hashes, row = self._counts.own(Batch.of([one, other]))
        return _jaccard(hashes[row == 0], hashes[row == 1]) >= similarity


def answers_alike(one: list[int], other: list[int], similarity: float) -> bool:
    """Whether two answers are the same words, or long and at least `similarity` alike."""
    if one == other:
        return True
    hashes, row = Batch.of([one, other]).ngrams(SHINGLE)
    return _jaccard(hashes[row == 0], hashes[row == 1]) >= similarity


def _jaccard(one: Hashes, other: Hashes) -> float:
    """Similarity of two sets; 0.0 for two that are empty."""
    union = len(np.union1d(one, other))
    return len(np.intersect1d(one, other)) / union if union else 0.0


def _band_keys(hashes: Hashes, starts: Rows) -> NDArray[np.uint32]:
    """uint32 [BANDS, rows]: equal where all signature values of a band are."""
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, starts, PERMUTATIONS, SEED)
    values = np.array(matrix.to_rows(), np.uint64).reshape(-1, BANDS, PERMUTATIONS // BANDS)
    keys = np.zeros(values.shape[:2], np.uint64)
    for position in range(values.shape[2]):
        keys = mix(keys + values[:, :, position])
    return np.ascontiguousarray(keys.T.astype(np.uint32))


def _pairs(keys: NDArray[Any], rows: SmallRows) -> SmallRows:
    """int32 [pairs, 2]: rows with a key that stood before, with its first and its last holder."""
    order = np.lexsort((rows, keys))
    keys, rows = keys[order], rows[order]
    new = np.ones(len(keys), bool)
    new[1:] = keys[1:] != keys[:-1]
    first = rows[np.flatnonzero(new)][np.cumsum(new) - 1]
    again = np.flatnonzero(~new)
    return np.concatenate(
        [
            np.stack([rows[again], first[again]], axis=1),
            np.stack([rows[again], rows[again - 1]], axis=1),
        ]
    ).astype(np.int32)


def _cell(hashes: Hashes) -> Rows:
    return (hashes >> np.uint64(64 - TABLE_BITS)).astype(np.int64)


def _joined(parts: Sequence[NDArray[Scalar]], kind: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate([np.zeros(0, kind), *parts])
