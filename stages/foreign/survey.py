"""What does a token file hold, before any row is judged? Above all: are its labels pre-shifted?

Most trainers give token t the label t, and the model shifts; torchtune writes labels[t] as the
token after input_ids[t]. Which of the two a file has is told by the tokens that its labels copy.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ..chat.conversation import BadRow
from ..chat.labels import IGNORE_INDEX
from ..config.errors import UserError
from .columns import LABELS, MASKS, Columns
from .token_files import read_rows

AGREES = 0.9
"""Share of a row's labels that must be copies of tokens for the row to speak for a reading."""

PreShifted = Literal["auto", "yes", "no"]
Reading = Literal["own", "next", "either", "neither"]
"""Of which token a row's labels are copies: t, t + 1 (pre-shifted), or this cannot be told."""


@dataclass(frozen=True)
class Survey:
    """What the first pass over a token file finds.

    form: the columns that say what is supervised; unreadable: rows that are none, and why.
    """

    shifted: bool
    form: str
    unreadable: list[str]


def survey(tokens: Path, pre_shifted: PreShifted) -> Survey:
    """Read the file once. Raises UserError when no row can be read, or when it cannot be told
    whether its labels are pre-shifted."""
    readings: Counter[Reading] = Counter()
    forms: Counter[str] = Counter()
    unreadable = []
    for name, columns in read_rows(tokens):
        if isinstance(columns, BadRow):
            unreadable.append(f"{name}: {columns}")
            continue
        masks = [mask for mask in MASKS if mask in columns]
        forms[LABELS if LABELS in columns else " and ".join(masks)] += 1
        readings[reading_of(columns)] += 1
    if not forms:
        raise UserError(f"{tokens}: no row can be read: {unreadable[0]}")
    form = ", ".join(sorted(forms))
    if pre_shifted == "auto":
        return Survey(decide_shift(tokens, readings), form, unreadable)
    if pre_shifted == "yes" and LABELS not in forms:
        raise UserError(f"--pre-shifted yes: {tokens} has {form}, which nobody shifts")
    return Survey(pre_shifted == "yes", form, unreadable)


def reading_of(columns: Columns) -> Reading:
    """Which tokens a row's labels are copies of. Masks and rows without labels tell nothing."""
    labels, ids = columns.get(LABELS), columns["input_ids"]
    if labels is None or len(labels) != len(ids) or not (labels != IGNORE_INDEX).any():
        return "either"
    supervised = labels != IGNORE_INDEX
    own = float((labels == ids)[supervised].mean())
    following = np.append(ids[1:], labels[-1:])  # some cut the last token off the ids alone
    shifted = float((labels == following)[supervised].mean())
    if max(own, shifted) < AGREES:
        return "neither"
    return "either" if own == shifted else "own" if own > shifted else "next"


def decide_shift(path: Path, readings: Counter[Reading]) -> bool:
    """Are the labels of a file pre-shifted? Raises UserError when most rows agree with neither."""
    rows = readings.total()
    if readings["neither"] * 2 > rows:
        raise UserError(
            f"{path}: in {readings['neither']} of {rows} rows, labels are copies neither of their "
            "own tokens nor of the next ones: they belong to other tokens; give --pre-shifted yes "
            "or no to audit them all the same"
        )
    return readings["next"] > readings["own"]
