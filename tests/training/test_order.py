"""The order of rows is a pure function of the seed and the step."""

from collections import Counter

import pytest

from stages.training.order import BatchOrder


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


@pytest.mark.parametrize(("rows", "rows_per_step"), [(10, 4), (7, 7), (5, 8), (3, 10), (1, 3)])
def test_every_epoch_is_a_permutation(rows: int, rows_per_step: int) -> None:
    seen = flat(BatchOrder(rows, rows_per_step, 0), 3 * rows)
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
