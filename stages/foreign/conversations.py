"""The conversations of a stored row of tokens: without padding, cut apart where it is packed."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import BadRow
from ..chat.labels import IGNORE_INDEX
from .columns import Columns, Ids, a_value_a_token, labels_of


@dataclass(frozen=True)
class ForeignRow:
    """One conversation of a token file, without padding, its labels not shifted.

    input_ids, labels: int32 [T]; positions: int64 [T], where these tokens stand in the stored row;
    padding: positions of supervised padding.
    """

    name: str
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    positions: Ids
    padding: Ids
    packed: bool = False


def conversations_of(
    name: str, columns: Columns, shifted: bool, pad_token_id: int, stop_ids: Iterable[int]
) -> list[ForeignRow]:
    """The conversations of a stored row: one, or several where it says where each begins.

    Padding is stripped: what attention_mask leaves out, or else masked pad tokens at the end.
    Raises BadRow when columns do not fit each other.
    """
    ids, labels = columns["input_ids"], labels_of(columns)
    if not len(ids):
        raise BadRow("'input_ids' is empty")
    for other in ("attention_mask", "position_ids"):
        if other in columns:
            a_value_a_token(columns, other)
    attended = columns.get("attention_mask")
    if shifted:
        ids, labels, attended = _shift_back(ids, labels, attended)
    if attended is None:
        real = _without_trailing_padding(ids, labels, pad_token_id, set(stop_ids))
    else:
        real = np.flatnonzero(attended)
    masked_out = np.setdiff1d(np.arange(len(ids)), real)
    padding = masked_out[labels[masked_out] != IGNORE_INDEX]
    if not len(real):
        raise BadRow("holds nothing but padding")
    parts = _split(columns, real)
    return [
        ForeignRow(
            name if len(parts) == 1 else f"{name} part {number}",
            _int32(ids[part]),
            _int32(labels[part]),
            part,
            padding if number == 1 else padding[:0],
            packed=len(parts) > 1,
        )
        for number, part in enumerate(parts, start=1)
    ]


def _shift_back(ids: Ids, labels: Ids, attended: Ids | None) -> tuple[Ids, Ids, Ids | None]:
    """labels[t] as the label of token t; the last of them may name a token that ids lack."""
    back = np.insert(labels, 0, IGNORE_INDEX)
    if labels[-1] == IGNORE_INDEX:
        return ids, back[:-1], attended
    one_more = None if attended is None else np.append(attended, attended[-1:])
    return np.append(ids, labels[-1:]), back, one_more


def _without_trailing_padding(ids: Ids, labels: Ids, pad_token_id: int, stop_ids: set[int]) -> Ids:
    """Positions up to the last token that is not masked padding.

    Where the pad token is the stop token too, one is left to a row that would end without any.
    """
    kept = np.flatnonzero((ids != pad_token_id) | (labels != IGNORE_INDEX))
    end = int(kept[-1]) + 1 if len(kept) else 0
    if pad_token_id in stop_ids and end < len(ids) and (not end or ids[end - 1] not in stop_ids):
        end += 1
    return np.arange(end)


def _split(columns: Columns, real: Ids) -> list[Ids]:
    """`real` cut where a packed row begins another conversation."""
    if "seq_lengths" in columns:
        return _split_by_lengths(columns["seq_lengths"], len(columns["input_ids"]), real)
    for name in ("attention_mask", "position_ids"):
        values = columns.get(name)
        if values is None or len(real) < 2:
            continue
        inside = values[real[real < len(values)]]
        begins = np.diff(inside) != 0 if name == "attention_mask" else np.diff(inside) <= 0
        if begins.any():
            return np.split(real, np.flatnonzero(begins) + 1)
    return [real]


def _split_by_lengths(lengths: Ids, stored: int, real: Ids) -> list[Ids]:
    """`real` in parts; lengths count all `stored` tokens of the row, or those without padding."""
    if (lengths < 1).any():
        raise BadRow(f"'seq_lengths' holds {lengths.min()}; each must be 1 or more")
    total = sum(lengths.tolist())  # an int64 would wrap around
    if total not in (stored, len(real)):
        bare = f", {len(real)} without padding" if len(real) < stored else ""
        raise BadRow(f"'seq_lengths' add up to {total}, the row has {stored} tokens{bare}")
    pieces = np.split(np.arange(total), np.cumsum(lengths)[:-1])
    if total == len(real):
        return [real[piece] for piece in pieces]
    return [kept for piece in pieces if len(kept := np.intersect1d(piece, real))]


def _int32(values: Ids) -> NDArray[np.int32]:
    """Values beyond int32 become its ends, which no vocabulary has."""
    bounds = np.iinfo(np.int32)
    return np.clip(values, bounds.min, bounds.max).astype(np.int32)
