"""Which rows does gate 1 corrupt to prove itself? A bounded sample of what it kept, of every kind.

The choice depends on lengths, roles and order alone, so that it repeats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import Conversation, Message
from ..chat.labels import IGNORE_INDEX, Role
from ..chat.split import Split
from ..chat.token_store import TokenRow, TokenStore
from ..chat.tokenizer import ChatTokenizer
from ..config.errors import UserError
from ..config.schema import Labels
from .findings import Row

SPECIMENS: dict[Split, int] = {"train": 36, "validation": 12}
CANDIDATES = 512
"""Rows that are looked at, evenly spaced, beside the shortest and the longest."""
ROWS_PER_FEATURE = 4
BEFORE_CONTENT = (Role.SCAFFOLD, Role.REASONING)
BUDGET = 15_000
"""Token decodes that one audit of all specimens may cost; at 2 us each, 20 audits take 0.6 s."""


@dataclass(frozen=True)
class Specimen:
    """A row that is right, to be corrupted. truncated: its end may have been cut off; undecided:
    bool [T], see `undecided_tokens`."""

    stored: TokenRow
    messages: Sequence[Message]
    undecided: NDArray[np.bool_]
    truncated: bool = False

    @property
    def row(self) -> Row:
        stored = self.stored
        return Row(
            stored.source, stored.input_ids, stored.labels, self.messages, truncated=self.truncated
        )


def undecided_tokens(row: TokenRow, tokenizer: ChatTokenizer, policy: Labels) -> NDArray[np.bool_]:
    """Which tokens are white space where an answer's content begins: bool [T].

    Where both the template and the answer write white space there, nobody can tell whose it is;
    nor, when labels.straddling is `mask`, whether a token that goes on with text straddles.
    """
    pieces = tokenizer.decode_batch([[token] for token in row.input_ids.tolist()])
    loose = policy.straddling == "mask"
    blank = [(piece[:1] if loose else piece).isspace() for piece in pieces]
    content = row.roles == Role.CONTENT
    begins = np.flatnonzero(content & ~np.append(False, content[:-1])).tolist()
    undecided = np.zeros(len(blank), bool)
    for begin in begins:
        first, last = begin, begin
        while first and blank[first - 1] and row.roles[first - 1] in BEFORE_CONTENT:
            first -= 1
        while last < len(blank) and blank[last] and content[last]:
            last += 1
        undecided[first:last] = True
    return undecided


def choose_specimens(
    dataset: Path,
    stores: Mapping[Split, TokenStore],
    tokenizer: ChatTokenizer,
    policy: Labels,
    cut_at: int | None,
) -> list[Specimen]:
    """Specimens of every split, in the order of its rows.

    dataset: where the normalised conversations are; cut_at: tokens at which rows were cut, if any.
    """
    specimens = []
    for split, store in stores.items():
        wanted = SPECIMENS[split]
        rows = choose_rows(store, tokenizer, wanted, BUDGET * wanted // sum(SPECIMENS.values()))
        path = dataset / f"{split}.jsonl"
        messages = _messages_of(path, {row.source for row in rows})
        if lost := [row.source for row in rows if row.source not in messages]:
            raise UserError(
                f"{path} has no row {lost[0]}, which the tokens were made from; run "
                "`dvc repro mask_report`"
            )
        specimens += [
            Specimen(
                row,
                messages[row.source],
                undecided_tokens(row, tokenizer, policy),
                truncated=len(row.input_ids) == cut_at,
            )
            for row in rows
        ]
    return specimens


def choose_rows(
    store: TokenStore, tokenizer: ChatTokenizer, wanted: int, budget: int
) -> list[TokenRow]:
    """Up to `wanted` rows, in their order: shortest, longest, some of every kind, and others.

    One that would go beyond the budget is left out, but for the shortest.
    """
    if not len(store):
        return []
    lengths = store.lengths()
    spaced = np.unique(np.linspace(0, len(store) - 1, min(len(store), CANDIDATES)).astype(int))
    candidates = {int(index): store[int(index)] for index in spaced}
    shortest = int(lengths.argmin())
    fitting = np.flatnonzero(lengths <= budget)
    longest = int(fitting[lengths[fitting].argmax()]) if len(fitting) else shortest
    for index in (shortest, longest):
        candidates.setdefault(index, store[index])
    chosen: dict[int, TokenRow] = {}
    order = (shortest, longest, *_of_every_kind(candidates), *_spread(list(candidates)))
    for index in list(dict.fromkeys(order))[: 2 * wanted]:
        row = candidates[index]
        affordable = len(row.input_ids) <= budget and _decodes(row, tokenizer) <= budget
        if not chosen or (affordable and len(chosen) < wanted):
            chosen[index] = row
            budget -= _decodes(row, tokenizer)
    return [chosen[index] for index in sorted(chosen)]


def _of_every_kind(candidates: Mapping[int, TokenRow]) -> list[int]:
    """The first rows with each role, with several answers, with something masked in an answer."""
    by_feature: dict[str, list[int]] = {}
    for index, row in sorted(candidates.items()):
        for feature in _features(row):
            by_feature.setdefault(feature, []).append(index)
    rarest_first = sorted(by_feature.values(), key=lambda found: (len(found), found))
    return [index for found in rarest_first for index in found[:ROWS_PER_FEATURE]]


def _features(row: TokenRow) -> list[str]:
    names = [Role(role).name for role in np.unique(row.roles)]
    stops = row.labels[row.roles == Role.STOP] != IGNORE_INDEX
    several = ["SEVERAL ANSWERS"] if stops.sum() > 1 else []
    return [*names, *several, *(["MASKED ANSWER"] if not stops.all() else [])]


def _spread(indices: Sequence[int]) -> list[int]:
    """The same indices, ordered so that any first few of them lie far apart: by halves."""
    ordered = sorted(indices)
    bits = len(ordered).bit_length()
    reverse = [int(f"{n:0{bits}b}"[::-1], 2) for n in range(2**bits)]
    return [ordered[n] for n in reverse if n < len(ordered)]


def _decodes(row: TokenRow, tokenizer: ChatTokenizer) -> int:
    """What an audit of the row costs: many times more where tokens split characters."""
    ids = row.input_ids.tolist()
    whole = "".join(tokenizer.decode_batch([[token] for token in ids])) == tokenizer.decode(ids)
    return len(ids) if whole else len(ids) + len(ids) ** 2 // 10


class _Source(msgspec.Struct):
    source: str


def _messages_of(path: Path, sources: set[str]) -> dict[str, list[Message]]:
    """source -> messages, of some conversations in a file; only these are decoded whole."""
    name, whole = msgspec.json.Decoder(_Source), msgspec.json.Decoder(Conversation)
    found = {}
    with path.open("rb") as file:
        for line in file:
            if (source := name.decode(line).source) in sources:
                found[source] = whole.decode(line).messages
    return found
