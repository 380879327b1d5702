"""The cost of a data.max_length is counted in rows and tokens."""

import pytest

from stages.mask_audit.lengths import Cost, cost_of, ladder

LENGTHS = {50: 4, 100: 3, 130: 2, 700: 1}
"""200 + 300 + 260 + 700 = 1460 tokens in ten rows."""


@pytest.mark.parametrize(
    ("max_length", "rows", "dropped", "cut"),
    [
        (49, 10, 1460, 4 * 1 + 3 * 51 + 2 * 81 + 651),
        (50, 6, 1260, 3 * 50 + 2 * 80 + 650),
        (99, 6, 1260, 3 * 1 + 2 * 31 + 601),
        (100, 3, 960, 2 * 30 + 600),
        (512, 1, 700, 188),
        (699, 1, 700, 1),
        (700, 0, 0, 0),
        (9999, 0, 0, 0),
    ],
)
def test_longer_rows_are_lost_whole_or_in_part(
    max_length: int, rows: int, dropped: int, cut: int
) -> None:
    assert cost_of(max_length, LENGTHS) == Cost(max_length, rows, dropped, cut)


def test_no_rows_cost_nothing() -> None:
    assert cost_of(8, {}) == Cost(8, 0, 0, 0)


@pytest.mark.parametrize(
    ("lengths", "max_length", "rungs"),
    [
        ([50, 100, 130, 700], 256, [64, 96, 128, 192, 256, 384, 512, 768]),
        ([50, 100, 130, 700], 300, [64, 96, 128, 192, 256, 300, 384, 512, 768]),
        ([200, 256], 2048, [192, 256, 2048]),
        ([300], 128, [128, 256, 384]),
        ([10], 64, [64]),
        ([64], 64, [64]),
        ([65], 64, [64, 96]),
        ([], 128, [64, 128]),
    ],
)
def test_the_ladder_leads_from_the_shortest_row_to_the_longest(
    lengths: list[int], max_length: int, rungs: list[int]
) -> None:
    assert ladder(lengths, max_length) == rungs
