"""The first pass over a token file tells whether its labels are pre-shifted."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.config import UserError
from stages.foreign.survey import Reading, decide_shift, reading_of


@pytest.mark.parametrize(
    ("ids", "labels", "reading"),
    [
        ([5, 6, 7, 2], [-100, 6, 7, 2], "own"),
        ([5, 6, 7, 2], [6, 7, 2, -100], "next"),
        ([5, 6, 7], [6, 7, 2], "next"),  # the last token is in the labels alone
        ([5, 6, 7, 2], [-100, 9, 9, 9], "neither"),
        ([5, 6, 7, 2], [-100, -100, -100, -100], "either"),
        ([5, 5, 5, 5], [-100, 5, 5, -100], "either"),
        ([5, 6, 7, 2], [6, 7], "either"),
    ],
)
def test_labels_tell_of_which_tokens_they_are_copies(
    ids: list[int], labels: list[int], reading: Reading
) -> None:
    assert reading_of({"input_ids": np.array(ids), "labels": np.array(labels)}) == reading


def test_most_rows_decide_whether_labels_are_shifted() -> None:
    def decide(**rows: int) -> bool:
        readings: Counter[Any] = Counter(rows)
        return decide_shift(Path("a.jsonl"), readings)

    assert not decide(own=9, next=1)
    assert decide(own=1, next=8, either=5)
    assert not decide(either=5)
    assert not decide(own=5, neither=5)
    with pytest.raises(UserError, match="in 6 of 10 rows, labels are copies neither"):
        decide(own=4, neither=6)
