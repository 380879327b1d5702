"""Documents share rows by their lengths alone: all are there once, and little is left empty."""

import numpy as np
import pytest

from stages.training.packing import Groups, batch_by_tokens, pack_by_length


def packs(lengths: list[int], max_length: int) -> list[list[int]]:
    packed = pack_by_length(np.array(lengths), max_length)
    return [packed[number] for number in range(len(packed))]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([5], [[0]]),
        ([10, 10], [[0], [1]]),
        ([3, 7, 4, 6], [[1, 0], [3, 2]]),
        ([2, 2, 2, 2, 2, 2], [[0, 1, 2, 3, 4], [5]]),
        ([6, 5, 4, 5], [[0, 2], [1, 3]]),
        ([8, 6, 2, 4, 1], [[0, 2], [1, 3], [4]]),
        ([7, 6, 3, 1], [[0, 2], [1, 3]]),
    ],
)
def test_each_goes_into_the_fullest_row_with_room(
    lengths: list[int], expected: list[list[int]]
) -> None:
    assert packs(lengths, 10) == expected


@pytest.mark.parametrize("seed", range(5))
def test_every_document_is_packed_once_into_rows_that_hold_it(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 65, 500)
    found = packs(lengths.tolist(), 64)
    assert sorted(number for pack in found for number in pack) == list(range(500))
    assert max(int(lengths[pack].sum()) for pack in found) <= 64
    fewest = max(lengths.sum() / 64, (lengths > 32).sum())
    assert len(found) <= 1.03 * fewest


def test_groups_know_their_members_and_sums() -> None:
    groups = pack_by_length(np.array([3, 7, 4, 6]), 10)
    assert groups.sums(np.array([1, 10, 100, 1000])).tolist() == [11, 1100]
    assert [Groups.singles(3)[number] for number in range(3)] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "expected"),
    [
        ([4, 4, 4], 12, [[0, 1, 2]]),
        ([4, 4, 4], 11, [[0, 1], [2]]),
        ([1, 1, 6, 1], 12, [[0, 1], [2, 3]]),
        ([6, 1, 1, 1], 12, [[0, 1], [2, 3]]),
        ([12, 12], 12, [[0], [1]]),
        ([2, 3, 3, 2, 2], 9, [[0, 1, 2], [3, 4]]),
        ([5], 5, [[0]]),
    ],
)
def test_a_micro_batch_takes_the_rows_that_fit(
    lengths: list[int], max_tokens: int, expected: list[list[int]]
) -> None:
    groups = batch_by_tokens(np.array(lengths), np.arange(len(lengths)), max_tokens)
    assert [groups[number] for number in range(len(groups))] == expected
