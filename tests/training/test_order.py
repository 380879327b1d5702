"""The order of rows is a pure function of the seed and the step."""

from collections import Counter

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stages.training.order import BatchOrder, group_by_length

LENGTHS = np.array([3, 9, 4, 8, 5, 7, 6, 2, 1, 10, 12, 11])


def flat(order: BatchOrder, steps: int) -> list[int]:
    return [row for step in range(steps) for row in order.indices(step)]


def test_the_order_of_a_seed_is_this_one() -> None:
    order = BatchOrder(rows=10, rows_per_step=4, seed=42)
    assert [order.indices(step) for step in range(5)] == [
        [5, 6, 0, 7],
        [3, 2, 4, 9],
        [1, 8, 0, 8],
        [7, 4, 3, 1],
        [2, 9, 6, 5],
    ]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("rows", "rows_per_step"), [(10, 4), (7, 7), (5, 8), (3, 10), (1, 3)])
def test_every_epoch_is_a_permutation(rows: int, rows_per_step: int, grouped: bool) -> None:
    lengths = LENGTHS[:rows] if grouped else None
    seen = flat(BatchOrder(rows, rows_per_step, 0, lengths), 3 * rows)
    for epoch in range(len(seen) // rows):
        assert sorted(seen[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_every_step_has_all_its_rows() -> None:
    order = BatchOrder(5, 8, 0)
    assert [len(order.indices(step)) for step in range(20)] == [8] * 20


def test_no_row_is_seen_more_often_than_another_by_more_than_once() -> None:
    counts = Counter(flat(BatchOrder(10, 4, 3), 7))
    assert set(counts.values()) <= {2, 3}
    assert len(counts) == 10


def test_epochs_and_seeds_differ() -> None:
    one, two = flat(BatchOrder(100, 100, 0), 2)[:100], flat(BatchOrder(100, 100, 0), 2)[100:]
    assert one != two
    assert flat(BatchOrder(100, 100, 1), 1) != one


def test_a_step_is_the_same_whatever_was_asked_before() -> None:
    order = BatchOrder(10, 4, 7)
    backwards = [order.indices(step) for step in reversed(range(20))]
    fresh = [BatchOrder(10, 4, 7).indices(step) for step in reversed(range(20))]
    assert backwards == fresh


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_the_rows_of_a_step_do_not_depend_on_the_micro_batch_size(size: int) -> None:
    order = BatchOrder(rows=21, rows_per_step=8, seed=1)
    for step in range(6):
        groups = order.micro_batches(step, size)
        assert [len(group) for group in groups] == [size] * (8 // size)
        assert [row for group in groups for row in group] == order.indices(step)


def test_the_rows_of_a_seed_do_not_depend_on_the_rows_of_a_step() -> None:
    assert flat(BatchOrder(21, 8, 1), 6) == flat(BatchOrder(21, 4, 1), 12)


def padding(order: BatchOrder, lengths: NDArray[np.int64], steps: int) -> float:
    """The share of padding when each step is one micro-batch."""
    rows = [lengths[order.indices(step)] for step in range(steps)]
    padded = sum(len(row) * int(row.max()) for row in rows)
    return 1 - sum(int(row.sum()) for row in rows) / padded


def test_rows_of_a_like_length_come_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 101, 400)
    grouped = padding(BatchOrder(400, 4, 0, lengths), lengths, 100)
    assert grouped < 0.05 < 0.3 < padding(BatchOrder(400, 4, 0), lengths, 100)


def test_a_grouped_step_is_the_same_whatever_was_asked_before() -> None:
    backwards = [BatchOrder(12, 5, 7, LENGTHS).indices(step) for step in reversed(range(9))]
    order = BatchOrder(12, 5, 7, LENGTHS)
    assert [order.indices(step) for step in range(9)] == backwards[::-1]


@pytest.mark.parametrize(("rows", "rows_per_step"), [(1000, 4), (97, 8), (10, 4)])
def test_rows_are_grouped_as_transformers_groups_them(
    rows: int, rows_per_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.trainer_pt_utils import get_length_grouped_indices

    lengths = np.random.default_rng(1).integers(1, 64, rows)
    permutation = np.random.default_rng(2).permutation(rows)
    monkeypatch.setattr(torch, "randperm", lambda *_, **__: torch.from_numpy(permutation.copy()))
    expected = get_length_grouped_indices(lengths.tolist(), rows_per_step)
    assert group_by_length(permutation, lengths, rows_per_step).tolist() == expected


def test_the_longest_row_of_all_comes_first_in_every_epoch_and_rows_meet_others() -> None:
    order = BatchOrder(12, 1, 0, LENGTHS)
    for epoch in range(3):
        assert LENGTHS[order.indices(12 * epoch)[0]] == 12
    assert flat(order, 12) != flat(order, 24)[12:]
