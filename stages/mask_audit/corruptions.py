"""The ways in which gate 1 corrupts right rows and batches, and what must be found then.

What must be named is told from the roles in the token store, of which the audit of rows knows
nothing. Each choice follows from the row alone, so that it repeats.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..chat.collator import collate
from ..chat.labels import IGNORE_INDEX, Role, supervised_runs, supervised_turns
from ..chat.packed import pack_batch
from ..chat.token_store import TokenRow
from ..chat.tokenizer import ChatTokenizer
from ..config.schema import Labels
from .findings import Finding, Kind, Row
from .specimens import Specimen

IntLabels = NDArray[np.int32]
Batch = dict[str, NDArray[np.int64]]

UNFINISHED: tuple[Kind, ...] = (
    "content_dropped",
    "call_dropped",
    "reasoning_dropped",
    "stop_missing",
)


@dataclass(frozen=True)
class Fault:
    """A finding that must be there: one of these kinds, at one of these tokens.

    positions: the first corrupted token, and those before it of which nobody can tell; -1 for a
    fault of the whole row. message: the message that its detail must name then.
    """

    kinds: tuple[Kind, ...]
    positions: tuple[int, ...] = (-1,)
    message: int | None = None

    def is_named_by(self, finding: Finding) -> bool:
        said = self.message is None or f"message {self.message} " in f"{finding.detail} "
        return finding.kind in self.kinds and finding.position in self.positions and said

    def __str__(self) -> str:
        place = f"token {self.positions[-1]}" if self.message is None else f"message {self.message}"
        return f"{place}: expected {' or '.join(self.kinds)}"


@dataclass(frozen=True)
class Expected:
    """What the audit must say of one corrupted row. touched: the tokens that it may name; also:
    kinds that may be found of the row as a whole."""

    source: str
    faults: tuple[Fault, ...]
    touched: frozenset[int]
    also: tuple[Kind, ...] = ()


@dataclass(frozen=True)
class PlantedRow:
    row: Row
    expected: Expected


@dataclass(frozen=True)
class PlantedBatch:
    """rows: what the batch should hold, in its order."""

    rows: Sequence[TokenRow]
    batch: Batch
    expected: Sequence[Expected]


@dataclass(frozen=True)
class LabelCorruption:
    """corrupt(row, another row) -> labels, or None where it does not fit; needs: what it takes."""

    needs: str
    corrupt: Callable[[TokenRow, TokenRow], IntLabels | None]


@dataclass(frozen=True)
class RowCorruption:
    needs: str
    corrupt: Callable[[Specimen, ChatTokenizer, Labels], PlantedRow | None]


@dataclass(frozen=True)
class BatchCorruption:
    """corrupt(batch, index, rows, tokenizer) changes the batch in place."""

    needs: str
    corrupt: Callable[[Batch, int, Sequence[TokenRow], ChatTokenizer], Sequence[Expected] | None]


def expected_of_labels(
    row: TokenRow, labels: IntLabels, undecided: NDArray[np.bool_] | None = None
) -> Expected:
    """What must be said of a row whose labels, int32 [T], were changed to `labels`.

    The first token of each group: header; what is said, thought or called; stop; all else; and
    labels that are no copies of their tokens.
    undecided: bool [T], tokens of which nobody can tell whether they are the template's.
    """
    was, now = row.labels != IGNORE_INDEX, labels != IGNORE_INDEX
    changed, other = was != now, now & (labels != row.input_ids)
    groups = {role: changed & (row.roles == role) for role in (Role.HEADER, Role.STOP)}
    groups[Role.CONTENT] = changed & np.isin(row.roles, ANSWERED)
    groups[Role.OTHER] = changed & ~np.logical_or.reduce(list(groups.values()))
    unsure = np.zeros(len(was), bool) if undecided is None else undecided
    faults = [
        Fault(KINDS[role], positions)
        for role, group in groups.items()
        if (positions := _first(group, unsure))
    ]
    if other.any():
        faults.append(Fault(("label_differs_from_input",), (int(other.argmax()),)))
    if not now.any():
        faults.append(Fault(("no_supervised_token",)))
    touched = frozenset(np.flatnonzero(changed | other).tolist())
    return Expected(row.source, tuple(faults), touched)


ANSWERED = (Role.CONTENT, Role.REASONING, Role.TOOL_CALL)
KINDS: dict[Role, tuple[Kind, ...]] = {
    Role.HEADER: ("header_supervised",),
    Role.STOP: ("stop_masked", "prompt_supervised"),
    Role.CONTENT: ("content_masked", "reasoning_differs", "call_differs", "prompt_supervised"),
    Role.OTHER: ("prompt_supervised", "scaffold_differs"),
}
"""What a change of labels may be called. Text between parts of an answer belongs to either."""


def _first(group: NDArray[np.bool_], unsure: NDArray[np.bool_]) -> tuple[int, ...]:
    """The first position of a group that is sure, after the unsure ones before it."""
    positions = np.flatnonzero(group)
    sure = np.flatnonzero(~unsure[positions])
    return tuple(positions[: sure[0] + 1].tolist()) if len(sure) else ()


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


def _middle(positions: NDArray[np.int64]) -> NDArray[np.int64]:
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
    (position,) = _middle(np.flatnonzero(row.labels != IGNORE_INDEX)).tolist()
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
        lambda row, _: _flip(row, _middle(_supervised(row, Role.CONTENT))),
    ),
    "one reasoning token masked": LabelCorruption(
        "a supervised reasoning token",
        lambda row, _: _flip(row, _middle(_supervised(row, Role.REASONING))),
    ),
    "one token of a call masked": LabelCorruption(
        "a supervised token of a call",
        lambda row, _: _flip(row, _middle(_supervised(row, Role.TOOL_CALL))),
    ),
    "a header supervised": LabelCorruption("a header", _unmask_first_header),
    "the token after a stop token supervised": LabelCorruption(
        "template text after a stop token", _unmask_after_stop
    ),
    "one user token supervised": LabelCorruption(
        "a user token", lambda row, _: _flip(row, _middle(_masked(row, Role.USER)))
    ),
    "one system or tool token supervised": LabelCorruption(
        "a system or tool token",
        lambda row, _: _flip(row, _middle(_masked(row, Role.SYSTEM, Role.TOOL))),
    ),
    "the beginning-of-sequence token supervised": LabelCorruption(
        "a beginning-of-sequence token", lambda row, _: _flip(row, _masked(row, Role.BOS))
    ),
    "one label changed to another id": LabelCorruption("a supervised token", _change_one_label),
}


def _drop_last_label(specimen: Specimen, _: ChatTokenizer, policy: Labels) -> PlantedRow:
    row = specimen.row
    faults = (Fault(("label_differs_from_input",)),)
    expected = Expected(row.source, faults, frozenset())
    return PlantedRow(replace(row, labels=row.labels[:-1]), expected)


def _leave_vocabulary(specimen: Specimen, tokenizer: ChatTokenizer, _: Labels) -> PlantedRow:
    """Input and label alike, in the middle of what is supervised."""
    row = specimen.row
    (position,) = _middle(np.flatnonzero(row.labels != IGNORE_INDEX)).tolist()
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


def _supervise_one_pad(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    return _supervise_padding(batch, index, rows, np.flatnonzero(_is_pad(batch, index))[-1:])


def _supervise_every_pad(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    return _supervise_padding(batch, index, rows, np.flatnonzero(_is_pad(batch, index)))


def _is_pad(batch: Batch, index: int) -> NDArray[np.bool_]:
    return np.asarray(batch["attention_mask"][index] == 0)


def _supervise_padding(
    batch: Batch, index: int, rows: Sequence[TokenRow], pads: NDArray[np.int64]
) -> Sequence[Expected] | None:
    if not len(pads):
        return None
    batch["labels"][index, pads] = batch["input_ids"][index, pads]
    faults = (Fault(("padding_supervised",), (int(pads[0]),)),)
    return [Expected(rows[index].source, faults, frozenset(pads.tolist()))]


def _mask_every_stop(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    labels = batch["labels"][index]
    return _relabel(
        batch, index, rows, np.where(np.isin(labels, tokenizer.stop_token_ids), -100, labels)
    )


def _shift_batch(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    told = _relabel(batch, index, rows, np.append(batch["labels"][index, 1:], IGNORE_INDEX))
    shifted = Fault(("labels_shifted",))
    return told and [replace(one, faults=(*one.faults, shifted)) for one in told]


def _relabel(
    batch: Batch, index: int, rows: Sequence[TokenRow], labels: NDArray[np.int64]
) -> Sequence[Expected] | None:
    row = rows[index]
    of_row = labels[: len(row.labels)].astype(np.int32)
    if np.array_equal(of_row, row.labels):
        return None
    batch["labels"][index] = labels
    unlearned = (row.labels == IGNORE_INDEX) & (row.roles != Role.HEADER)
    prompt = replace(row, roles=np.where(unlearned, Role.OTHER, row.roles).astype(np.uint8))
    told = expected_of_labels(prompt, of_row)
    faults = tuple(fault for fault in told.faults if fault.kinds != ("no_supervised_token",))
    return [replace(told, faults=faults)]


def _attend_too_little(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    last = len(rows[index].input_ids) - 1
    batch["attention_mask"][index, last] = 0
    faults = (Fault(("attention_mask_wrong",)),)
    return [Expected(rows[index].source, faults, frozenset([last]))]


def _attend_to_padding(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    pads = np.flatnonzero(_is_pad(batch, index))
    if not len(pads):
        return None
    batch["attention_mask"][index, pads[0]] = 1
    faults = (Fault(("attention_mask_wrong",)),)
    return [Expected(rows[index].source, faults, frozenset(pads[:1].tolist()))]


def _swap_rows(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    one, other = rows
    same_length = len(one.input_ids) == len(other.input_ids)
    differs = np.flatnonzero(one.input_ids != other.input_ids) if same_length else np.zeros(0)
    if same_length and not len(differs):
        return None
    for name in batch:
        batch[name] = batch[name][::-1]
    fault = Fault(("attention_mask_wrong",))
    if same_length:
        fault = Fault(("collated_tokens_differ",), (int(differs[0]),))
    return [
        Expected(row.source, (fault,), frozenset(range(batch["labels"].shape[1]))) for row in rows
    ]


def _change_one_token(
    batch: Batch, index: int, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> Sequence[Expected] | None:
    position = len(rows[index].input_ids) // 2
    batch["input_ids"][index, position] += -1 if batch["input_ids"][index, position] else 1
    faults = (Fault(("collated_tokens_differ",), (position,)),)
    return [Expected(rows[index].source, faults, frozenset([position]))]


BATCH_CORRUPTIONS = {
    "batch: one pad supervised": BatchCorruption("padding", _supervise_one_pad),
    "batch: every pad supervised": BatchCorruption("padding", _supervise_every_pad),
    "batch: stop tokens masked as if they were padding": BatchCorruption(
        "a supervised stop token", _mask_every_stop
    ),
    "batch: labels shifted left by one": BatchCorruption("a supervised token", _shift_batch),
    "batch: attention mask too short": BatchCorruption("another row beside it", _attend_too_little),
    "batch: attention mask too long": BatchCorruption("padding", _attend_to_padding),
    "batch: rows swapped": BatchCorruption("another row beside it", _swap_rows),
    "batch: one token changed": BatchCorruption("another row beside it", _change_one_token),
}


def _run_positions_on(packed: Batch, row: TokenRow, start: int) -> Expected:
    end = start + len(row.input_ids)
    packed["position_ids"][0, start:end] += start
    faults = (Fault(("positions_wrong",), (0,)),)
    return Expected(row.source, faults, frozenset([0]))


def _supervise_first_token(packed: Batch, row: TokenRow, start: int) -> Expected:
    packed["labels"][0, start] = row.input_ids[0]
    faults = (Fault(("target_across_border",), (0,)),)
    return Expected(row.source, faults, frozenset([0]))


PACK_CORRUPTIONS: dict[str, Callable[[Batch, TokenRow, int], Expected]] = {
    "packed: positions run on into the next document": _run_positions_on,
    "packed: first token of the next document supervised": _supervise_first_token,
}
"""corrupt(packed, document, where it begins) changes the first of the packed rows in place."""


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


def plant_in_batch(
    name: str, rows: Sequence[TokenRow], index: int, tokenizer: ChatTokenizer
) -> PlantedBatch | None:
    """The control `name` on row `index` of two that are batched; None where it does not fit."""
    tensors = collate(rows, tokenizer.pad_token_id)
    batch = {key: tensor.numpy() for key, tensor in tensors.items()}
    expected = BATCH_CORRUPTIONS[name].corrupt(batch, index, rows, tokenizer)
    return None if expected is None else PlantedBatch(rows, batch, expected)


def plant_in_pack(
    name: str, rows: Sequence[TokenRow], tokenizer: ChatTokenizer
) -> tuple[Batch, Expected]:
    """The control `name` on the second of two rows that are packed; the first is alone below."""
    tensors = collate([*rows, rows[0]], tokenizer.pad_token_id)
    packed = pack_batch(tensors, [2, 1], tokenizer.pad_token_id)
    batch = {key: tensor.numpy() for key, tensor in packed.items()}
    return batch, PACK_CORRUPTIONS[name](batch, rows[1], len(rows[0].input_ids))
