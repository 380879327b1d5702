"""Rows that repeat or contradict each other, found by sorting their keys.

Peak memory is some 30 bytes a row beyond the keys themselves (one sort order, one sorted key).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..reading.ingest import RowKeys

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Rows in an order in which equal keys are neighbours, and where each run of them starts.

    order: int64 [rows], a permutation, by row number within a run; starts: int64 [groups].
    """

    order: Rows
    starts: Rows

    def group_of(self) -> Rows:
        """int64 [rows]: the group of each position in `order`."""
        marks = np.zeros(len(self.order), np.int64)
        marks[self.starts[1:]] = 1
        return np.cumsum(marks, out=marks)


def group_equal(key: NDArray[np.uint64]) -> Groups:
    """Group the rows of a key of two columns."""
    order = np.lexsort((key[:, 1], key[:, 0]))
    new = np.ones(len(order), bool)
    for column in (0, 1):
        ordered = key[order, column]
        changed = ordered[1:] != ordered[:-1]
        new[1:] = changed if column == 0 else new[1:] | changed
    return Groups(order, np.flatnonzero(new))


def duplicates(keys: RowKeys) -> tuple[Rows, Rows]:
    """(rows that say what an earlier row said, the earlier row of each), by row number."""
    groups = group_equal(keys.content)
    repeated = np.ones(len(groups.order), bool)
    repeated[groups.starts] = False
    firsts = groups.order[groups.starts][groups.group_of()[repeated]]
    return _by_row(groups.order[repeated], firsts)


def conflicting_answers(keys: RowKeys) -> tuple[Rows, Rows]:
    """(rows that answer otherwise than an earlier row with the same prompt, that row)."""
    groups = group_equal(keys.prompt)
    firsts = groups.order[groups.starts][groups.group_of()]
    differs = keys.answer[groups.order] != keys.answer[firsts]
    return _by_row(groups.order[differs], firsts[differs])


def split_overlap(keys: RowKeys) -> tuple[Rows, Rows]:
    """(validation rows whose prompt is also in training, one such training row of each)."""
    groups = group_equal(keys.prompt)
    in_train = keys.split[groups.order] == 0
    group = groups.group_of()
    first_train = np.full(len(groups.starts), -1, np.int64)
    positions = np.flatnonzero(in_train)[::-1]  # reversed: the first of a group is written last
    first_train[group[positions]] = groups.order[positions]
    leaked = ~in_train & (first_train[group] >= 0)
    return _by_row(groups.order[leaked], first_train[group[leaked]])


def _by_row(rows: Rows, others: Rows) -> tuple[Rows, Rows]:
    order = np.argsort(rows)
    return rows[order], others[order]
