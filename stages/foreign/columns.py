"""The columns of a stored row of tokens: what they are called, and that they hold whole numbers.

A row has input_ids and labels (-100: masked), or instead of labels assistant_masks or
completion_mask (1: supervised; of both, as TRL does, what both name); and, if there is padding or
packing, attention_mask, seq_lengths or position_ids. torchtune's names (tokens, seq_lens,
input_pos) are known too.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import BadRow
from ..chat.labels import IGNORE_INDEX

LABELS = "labels"
MASKS = ("assistant_masks", "completion_mask")
ALIASES = {"tokens": "input_ids", "seq_lens": "seq_lengths", "input_pos": "position_ids"}
KNOWN = ("input_ids", LABELS, *MASKS, "attention_mask", "position_ids", "seq_lengths")
MAX_INT64 = np.iinfo(np.int64).max

Ids = NDArray[np.int64]
Columns = dict[str, Ids]


def wanted_columns(columns: Iterable[str]) -> dict[str, str]:
    """Known name -> name in the file. Raises BadRow, which lists the columns found."""
    found = list(columns)
    names = {name: name for name in KNOWN if name in found}
    for alias, name in ALIASES.items():
        if alias in found:
            names.setdefault(name, alias)
    missing = "input_ids" if "input_ids" not in names else ""
    if not missing and not any(name in names for name in (LABELS, *MASKS)):
        missing = f"{LABELS}, {' or '.join(MASKS)}"
    if missing:
        raise BadRow(f"has no {missing}; its columns are {', '.join(found) or 'none'}")
    return names


def checked_columns(cells: Mapping[str, Any]) -> Columns | BadRow:
    """Each column as int64 [T], or why one is none."""
    try:
        return {name: whole_numbers(name, values) for name, values in cells.items()}
    except BadRow as reason:
        return reason


def whole_numbers(name: str, values: Any) -> Ids:
    """A flat list as int64 [T]. Raises BadRow for anything else."""
    try:
        array = np.asarray(values if values is not None else np.nan)
    except (ValueError, OverflowError):
        array = np.asarray(np.nan)
    fits = not array.size or (array.dtype.kind in "biu" and int(array.max()) <= MAX_INT64)
    if array.ndim != 1 or not fits:
        raise BadRow(f"{name!r} must be a flat list of whole numbers that fit into int64")
    return array.astype(np.int64)


def labels_of(columns: Columns) -> Ids:
    """The labels, or those that the masks make of input_ids; as many as tokens. Raises BadRow."""
    if LABELS in columns:
        return a_value_a_token(columns, LABELS)
    masks = [a_value_a_token(columns, name) for name in MASKS if name in columns]
    for mask in masks:
        if not np.isin(mask, (0, 1)).all():
            raise BadRow("a mask holds other values than 0 and 1")
    return np.where(np.all(masks, axis=0), columns["input_ids"], IGNORE_INDEX)


def a_value_a_token(columns: Columns, name: str) -> Ids:
    """A column that has as many values as there are tokens. Raises BadRow."""
    values, tokens = columns[name], len(columns["input_ids"])
    if len(values) != tokens:
        raise BadRow(f"{len(values)} values in {name!r} for {tokens} tokens in 'input_ids'")
    return values
