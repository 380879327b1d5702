"""Corruptions of the labels of a right row. Each follows from the row alone, so that it repeats."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..chat.labels import IGNORE_INDEX, Role
from ..chat.token_store import TokenRow
from .expected import IntLabels


@dataclass(frozen=True)
class LabelCorruption:
    """corrupt(row, another row) -> labels, or None where it does not fit; needs: what it takes."""

    needs: str
    corrupt: Callable[[TokenRow, TokenRow], IntLabels | None]


def _supervised(row: TokenRow, role: Role) -> NDArray[np.int64]:
    return np.flatnonzero((row.roles == role) & (row.labels != IGNORE_INDEX))


def _masked(row: TokenRow, *roles: Role) -> NDArray[np.int64]:
    return np.flatnonzero(np.isin(row.roles, roles) & (row.labels == IGNORE_INDEX))


def _flip(row: TokenRow, positions: NDArray[np.int64]) -> IntLabels | None:
    """Labels with these tokens masked where they were supervised, and the other way round."""
    if not len(positions):
        return None
    labels = row.labels.copy()
    here = labels[positions]
    labels[positions] = np.where(here == IGNORE_INDEX, row.input_ids[positions], IGNORE_INDEX)
    return labels


def middle(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The one in the middle, of none none."""
    return positions[len(positions) // 2 :][:1]


def _shift_left(row: TokenRow, _: TokenRow) -> IntLabels:
    return np.append(row.labels[1:], np.int32(IGNORE_INDEX)).astype(np.int32)


def _shift_right(row: TokenRow, _: TokenRow) -> IntLabels:
    return np.append(np.int32(IGNORE_INDEX), row.labels[:-1]).astype(np.int32)


def _unmask_first_header(row: TokenRow, _: TokenRow) -> IntLabels | None:
    """All header tokens before the first supervised answer."""
    headers = _masked(row, Role.HEADER)
    runs = np.split(headers, np.flatnonzero(np.diff(headers) > 1) + 1)
    return _flip(row, runs[0])


def _unmask_after_stop(row: TokenRow, _: TokenRow) -> IntLabels | None:
    after = _supervised(row, Role.STOP) + 1
    after = after[after < len(row.roles)]
    return _flip(row, after[np.isin(after, _masked(row, Role.SCAFFOLD))][:1])


def _last_answer_only(row: TokenRow, _: TokenRow) -> IntLabels | None:
    stops = _supervised(row, Role.STOP)
    if len(stops) < 2:
        return None
    supervised = np.flatnonzero(row.labels != IGNORE_INDEX)
    return _flip(row, supervised[supervised <= stops[-2]])


def _change_one_label(row: TokenRow, _: TokenRow) -> IntLabels | None:
    (position,) = middle(np.flatnonzero(row.labels != IGNORE_INDEX)).tolist()
    labels = row.labels.copy()
    labels[position] += -1 if labels[position] else 1
    return labels


def _labels_of(row: TokenRow, other: TokenRow) -> IntLabels | None:
    """Another row's labels, cut or padded to the length of this one, as a padded batch has them."""
    labels = np.full_like(row.labels, IGNORE_INDEX)
    shared = min(len(labels), len(other.labels))
    labels[:shared] = other.labels[:shared]
    return None if np.array_equal(labels, row.labels) else labels


LABEL_CORRUPTIONS = {
    "labels inverted": LabelCorruption(
        "a token", lambda row, _: _flip(row, np.arange(len(row.labels)))
    ),
    "labels shifted left by one": LabelCorruption("a token", _shift_left),
    "labels shifted right by one": LabelCorruption("a token", _shift_right),
    "labels of another row": LabelCorruption("another row beside it", _labels_of),
    "all labels masked": LabelCorruption(
        "a supervised token",
        lambda row, _: _flip(row, np.flatnonzero(row.labels != IGNORE_INDEX)),
    ),
    "all but the last answer masked": LabelCorruption("two supervised answers", _last_answer_only),
    "one stop token masked": LabelCorruption(
        "a supervised stop token", lambda row, _: _flip(row, _supervised(row, Role.STOP)[-1:])
    ),
    "every stop token masked": LabelCorruption(
        "a supervised stop token", lambda row, _: _flip(row, _supervised(row, Role.STOP))
    ),
    "first content token masked": LabelCorruption(
        "a supervised content token", lambda row, _: _flip(row, _supervised(row, Role.CONTENT)[:1])
    ),
    "one content token masked": LabelCorruption(
        "a supervised content token",
        lambda row, _: _flip(row, middle(_supervised(row, Role.CONTENT))),
    ),
    "one reasoning token masked": LabelCorruption(
        "a supervised reasoning token",
        lambda row, _: _flip(row, middle(_supervised(row, Role.REASONING))),
    ),
    "one token of a call masked": LabelCorruption(
        "a supervised token of a call",
        lambda row, _: _flip(row, middle(_supervised(row, Role.TOOL_CALL))),
    ),
    "a header supervised": LabelCorruption("a header", _unmask_first_header),
    "the token after a stop token supervised": LabelCorruption(
        "template text after a stop token", _unmask_after_stop
    ),
    "one user token supervised": LabelCorruption(
        "a user token", lambda row, _: _flip(row, middle(_masked(row, Role.USER)))
    ),
    "one system or tool token supervised": LabelCorruption(
        "a system or tool token",
        lambda row, _: _flip(row, middle(_masked(row, Role.SYSTEM, Role.TOOL))),
    ),
    "the beginning-of-sequence token supervised": LabelCorruption(
        "a beginning-of-sequence token", lambda row, _: _flip(row, _masked(row, Role.BOS))
    ),
    "one label changed to another id": LabelCorruption("a supervised token", _change_one_label),
}
