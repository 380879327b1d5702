"""Stored rows of tokens: padding, packing and shifted labels are undone, and misfits are named."""

import numpy as np
import pytest

from stages.chat.conversation import BadRow
from stages.foreign.columns import Columns, labels_of
from stages.foreign.conversations import ForeignRow, conversations_of

Values = dict[str, list[int]]


def columns(**values: list[int]) -> Columns:
    return {name: np.array(value, np.int64) for name, value in values.items()}


def test_masks_become_labels() -> None:
    ids = [5, 6, 7]
    assert labels_of(columns(input_ids=ids, assistant_masks=[0, 1, 1])).tolist() == [-100, 6, 7]
    both = columns(input_ids=ids, assistant_masks=[1, 1, 0], completion_mask=[0, 1, 1])
    assert labels_of(both).tolist() == [-100, 6, -100]
    with pytest.raises(BadRow, match="other values than 0 and 1"):
        labels_of(columns(input_ids=ids, completion_mask=[0, 1, 2]))


def parts(values: Values, shifted: bool = False, pad: int = 0) -> list[ForeignRow]:
    return conversations_of("a:1", columns(**values), shifted, pad, [2])


def told(row: ForeignRow) -> tuple[list[int], list[int], list[int]]:
    return row.input_ids.tolist(), row.labels.tolist(), row.positions.tolist()


def test_shifted_labels_are_shifted_back() -> None:
    (row,) = parts({"input_ids": [5, 6, 2], "labels": [6, 2, -100]}, shifted=True)
    assert told(row) == ([5, 6, 2], [-100, 6, 2], [0, 1, 2])
    (row,) = parts({"input_ids": [5, 6], "labels": [6, 2]}, shifted=True)
    assert told(row) == ([5, 6, 2], [-100, 6, 2], [0, 1, 2])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"input_ids": [5, 2, 0, 0], "labels": [-100, 2, -100, -100]},
            ([5, 2], [-100, 2], [0, 1]),
        ),
        (
            {
                "input_ids": [0, 0, 5, 2],
                "labels": [-100, -100, -100, 2],
                "attention_mask": [0, 0, 1, 1],
            },
            ([5, 2], [-100, 2], [2, 3]),
        ),
        ({"input_ids": [5, 0, 2], "labels": [5, -100, 2]}, ([5, 0, 2], [5, -100, 2], [0, 1, 2])),
    ],
)
def test_padding_is_stripped(
    values: Values, expected: tuple[list[int], list[int], list[int]]
) -> None:
    (row,) = parts(values)
    assert told(row) == expected
    assert row.padding.tolist() == []


def test_a_masked_stop_token_that_pads_too_is_not_taken_for_padding() -> None:
    (row,) = parts({"input_ids": [5, 6, 2, 2, 2], "labels": [-100, 6, -100, -100, -100]}, pad=2)
    assert told(row) == ([5, 6, 2], [-100, 6, -100], [0, 1, 2])
    (row,) = parts({"input_ids": [5, 6, 2, 2, 2], "labels": [-100, 6, 2, -100, -100]}, pad=2)
    assert told(row) == ([5, 6, 2], [-100, 6, 2], [0, 1, 2])


def test_supervised_padding_is_remembered() -> None:
    (row,) = parts({"input_ids": [5, 2, 0], "labels": [-100, 2, 0], "attention_mask": [1, 1, 0]})
    assert (told(row)[0], row.padding.tolist()) == ([5, 2], [2])


@pytest.mark.parametrize(
    "packing",
    [
        {"seq_lengths": [2, 3]},
        {"position_ids": [0, 1, 0, 1, 2]},
        {"attention_mask": [1, 1, 2, 2, 2]},
    ],
)
def test_a_packed_row_is_taken_apart(packing: Values) -> None:
    first, second = parts(
        {"input_ids": [5, 2, 6, 7, 2], "labels": [-100, 2, -100, 7, 2], **packing}
    )
    assert (first.name, second.name) == ("a:1 part 1", "a:1 part 2")
    assert told(first) == ([5, 2], [-100, 2], [0, 1])
    assert told(second) == ([6, 7, 2], [-100, 7, 2], [2, 3, 4])


def test_positions_that_only_ascend_are_one_conversation() -> None:
    (row,) = parts({"input_ids": [5, 6, 2], "labels": [-100, 6, 2], "position_ids": [0, 1, 2]})
    assert (row.name, row.packed) == ("a:1", False)


PAIR = {"input_ids": [5, 2], "labels": [5, 2]}
MISFITS: list[tuple[Values, str]] = [
    ({"input_ids": [], "labels": []}, "'input_ids' is empty"),
    ({"input_ids": [0], "labels": [-100]}, "holds nothing but padding"),
    ({"input_ids": [5, 2], "labels": [5]}, "1 values in 'labels' for 2 tokens in 'input_ids'"),
    ({"input_ids": [5, 2], "completion_mask": [0, 1, 1]}, "3 values in 'completion_mask' for 2"),
    ({"input_ids": [5, 2], "assistant_masks": [1]}, "1 values in 'assistant_masks' for 2 tokens"),
    (
        {"input_ids": [5, 2], "labels": [5, 2], "attention_mask": [1]},
        "1 values in 'attention_mask'",
    ),
    ({**PAIR, "attention_mask": [1]}, "1 values in 'attention_mask' for 2 tokens"),
    ({**PAIR, "seq_lengths": [1, 4]}, "'seq_lengths' add up to 5, the row has 2 tokens"),
    ({**PAIR, "seq_lengths": [4, -2]}, "'seq_lengths' holds -2; each must be 1 or more"),
    ({**PAIR, "seq_lengths": [2, 0]}, "'seq_lengths' holds 0; each must be 1 or more"),
    ({**PAIR, "seq_lengths": []}, "'seq_lengths' add up to 0, the row has 2 tokens"),
    # these add up to 2 in 64 bits
    ({**PAIR, "seq_lengths": [2**62] * 4 + [2]}, "add up to 18446744073709551618, the row has 2"),
    (
        {"input_ids": [5, 2, 0], "labels": [5, 2, -100], "seq_lengths": [1, 3]},
        "'seq_lengths' add up to 4, the row has 3 tokens, 2 without padding",
    ),
]


@pytest.mark.parametrize(("values", "reason"), MISFITS)
def test_columns_that_do_not_fit_are_told(values: Values, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        parts(values)


def test_an_id_of_any_size_is_no_crash() -> None:
    (row,) = parts({"input_ids": [2**40, -(2**40)], "labels": [-100, 2**40]})
    assert row.input_ids.tolist() == [2**31 - 1, -(2**31)]
