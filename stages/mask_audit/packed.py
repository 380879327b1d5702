"""Are packed rows what they should be? Each document is taken out again and audited as a row.

Where a document must stand follows from the lengths of the audited rows alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..chat.labels import IGNORE_INDEX
from ..chat.token_store import TokenRow
from ..chat.tokenizer import ChatTokenizer
from .audit import audit_collated
from .findings import Audit, Finding

Batch = dict[str, NDArray[np.int64]]


def audit_packed(
    packed: Mapping[str, NDArray[np.int64]],
    packs: Sequence[Sequence[TokenRow]],
    tokenizer: ChatTokenizer,
    audit: Audit,
) -> Batch:
    """Hold packed rows against the audited rows that share them, in their order.

    packed: input_ids, position_ids, labels, each int64 [packs, length], as they reach `forward`.
    Positions must restart at 0 with each document and with the padding, and the first token of a
    document must be no target: it would be predicted from the document before it. Returns the
    documents as rows of a padded batch, with an attention mask.
    """
    documents = [_places(rows) for rows in packs]
    for number, (rows, places) in enumerate(zip(packs, documents, strict=True)):
        positions, labels = packed["position_ids"][number], packed["labels"][number]
        for row, here in zip(rows, places, strict=True):
            _check_positions(row, positions[here], audit)
            if here.start:
                _check_first_label(row, labels[here], audit)
        padding = positions[places[-1].stop :]
        if len(padding) and padding[0] != 0:
            detail = f"the padding behind it goes on with position {padding[0]}"
            audit.add(Finding("positions_wrong", rows[-1].source, -1, 1, detail))
    batch = _as_rows(packed, documents)
    audit_collated(batch, list(map(_without_first_target, chain(*packs))), tokenizer, audit)
    return batch


def _places(rows: Sequence[TokenRow]) -> list[slice]:
    """Where each document of a packed row stands."""
    ends = np.cumsum([len(row.input_ids) for row in rows]).tolist()
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _check_positions(row: TokenRow, positions: NDArray[np.int64], audit: Audit) -> None:
    wrong = np.flatnonzero(positions != np.arange(len(positions)))
    if len(wrong):
        first = int(wrong[0])
        detail = f"token {first} of the document has position {positions[first]}"
        audit.add(Finding("positions_wrong", row.source, first, len(wrong), detail))


def _check_first_label(row: TokenRow, labels: NDArray[np.int64], audit: Audit) -> None:
    if len(labels) and labels[0] != IGNORE_INDEX:
        detail = f"its first token has the label {labels[0]}, the target of the document before it"
        audit.add(Finding("target_across_border", row.source, 0, 1, detail))


def _as_rows(
    packed: Mapping[str, NDArray[np.int64]], documents: Sequence[Sequence[slice]]
) -> Batch:
    """A padded batch of all documents; padding stays behind the last of its row."""
    length = packed["input_ids"].shape[1]
    shape = (sum(map(len, documents)), length)
    batch = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask")}
    batch["labels"] = np.full(shape, IGNORE_INDEX, np.int64)
    places = [(number, here) for number, found in enumerate(documents) for here in found]
    for index, (number, here) in enumerate(places):
        last = here is documents[number][-1]
        taken = slice(here.start, length if last else here.stop)
        for name in ("input_ids", "labels"):
            values = packed[name][number][taken]
            batch[name][index, : len(values)] = values
        batch["labels"][index, 0] = IGNORE_INDEX
        batch["attention_mask"][index, : here.stop - here.start] = 1
    return batch


def _without_first_target(row: TokenRow) -> TokenRow:
    labels = row.labels.copy()
    labels[:1] = IGNORE_INDEX
    return replace(row, labels=labels)
