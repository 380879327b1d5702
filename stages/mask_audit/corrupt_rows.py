"""Corruptions of right rows: of their labels, and of what else a row is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..chat.labels import IGNORE_INDEX, supervised_runs, supervised_turns
from ..chat.tokenizer import ChatTokenizer
from ..config.schema import Labels
from .corrupt_labels import LABEL_CORRUPTIONS, middle
from .expected import Expected, Fault, expected_of_labels
from .findings import Kind, Row
from .specimens import Specimen

UNFINISHED: tuple[Kind, ...] = (
    "content_dropped",
    "call_dropped",
    "reasoning_dropped",
    "stop_missing",
)


@dataclass(frozen=True)
class PlantedRow:
    row: Row
    expected: Expected


@dataclass(frozen=True)
class RowCorruption:
    needs: str
    corrupt: Callable[[Specimen, ChatTokenizer, Labels], PlantedRow | None]


def _drop_last_label(specimen: Specimen, _: ChatTokenizer, policy: Labels) -> PlantedRow:
    row = specimen.row
    faults = (Fault(("label_differs_from_input",)),)
    expected = Expected(row.source, faults, frozenset())
    return PlantedRow(replace(row, labels=row.labels[:-1]), expected)


def _leave_vocabulary(specimen: Specimen, tokenizer: ChatTokenizer, _: Labels) -> PlantedRow:
    """Input and label alike, in the middle of what is supervised."""
    row = specimen.row
    (position,) = middle(np.flatnonzero(row.labels != IGNORE_INDEX)).tolist()
    ids, labels = row.input_ids.copy(), row.labels.copy()
    ids[position] = labels[position] = tokenizer.vocab_size
    faults = (Fault(("id_outside_vocabulary",), (position,)),)
    expected = Expected(row.source, faults, frozenset([position]))
    return PlantedRow(replace(row, input_ids=ids, labels=labels), expected)


def _cut_unsaid(specimen: Specimen, _: ChatTokenizer, policy: Labels) -> PlantedRow | None:
    """Cut off in the middle of the last supervised answer."""
    row, turns = specimen.row, supervised_turns(specimen.messages, policy.turns)
    if row.truncated or not turns:
        return None
    start, end = supervised_runs(row.labels)[-1]
    length = start + (end - start) // 2
    cut = replace(row, input_ids=row.input_ids[:length], labels=row.labels[:length])
    faults = (Fault(UNFINISHED, message=turns[-1]),)
    touched = frozenset(range(start, length))
    also: tuple[Kind, ...] = (*UNFINISHED, "content_trimmed", "no_supervised_token")
    return PlantedRow(cut, Expected(row.source, faults, touched, also))


ROW_CORRUPTIONS = {
    "one label missing": RowCorruption("a token", _drop_last_label),
    "an id beyond the vocabulary": RowCorruption("a supervised token", _leave_vocabulary),
    "cut off without saying so": RowCorruption("an answer that was not cut before", _cut_unsaid),
}


def plant_in_row(
    name: str,
    specimens: Sequence[Specimen],
    number: int,
    tokenizer: ChatTokenizer,
    policy: Labels,
) -> PlantedRow | None:
    """The control `name` on one specimen; None where it does not fit."""
    specimen = specimens[number]
    if name in ROW_CORRUPTIONS:
        return ROW_CORRUPTIONS[name].corrupt(specimen, tokenizer, policy)
    other = specimens[(number + 1) % len(specimens)].stored
    labels = LABEL_CORRUPTIONS[name].corrupt(specimen.stored, other)
    if labels is None:
        return None
    expected = expected_of_labels(specimen.stored, labels, specimen.undecided)
    if not expected.faults:
        return None
    return PlantedRow(replace(specimen.row, labels=labels), expected)
