"""Are the labels right? Judged from tokens, labels and messages alone.

Nothing here knows how labels were made: no spans, no offsets, no sentinels. A row's tokens are
decoded, its messages are looked up in that text, and what is supervised must be exactly what the
policy in `labels` says of each answer. What differs is named token by token.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..chat.labels import IGNORE_INDEX, Role, supervised_runs
from ..chat.token_store import TokenRow
from ..chat.tokenizer import ChatTokenizer
from ..config.schema import Labels
from .findings import Audit, Finding, Kind, Row
from .row_reader import Part, RowReader, Want

FAULT_OF_WANT: dict[Want, Kind] = {
    Want.PROMPT: "prompt_supervised",
    Want.HEADER: "header_supervised",
    Want.SCAFFOLD: "scaffold_differs",
    Want.CONTENT: "content_masked",
    Want.REASONING: "reasoning_differs",
    Want.CALL: "call_differs",
    Want.STOP: "stop_masked",
}


@dataclass(frozen=True)
class Expected:
    """What every token of a row must be. want: uint8 [T], of Want; supervised: bool [T]."""

    want: NDArray[np.uint8]
    supervised: NDArray[np.bool_]


def audit_rows(rows: Sequence[Row], tokenizer: ChatTokenizer, policy: Labels, audit: Audit) -> None:
    """Audit rows against their messages and add what is found to `audit`."""
    readable = [row for row in rows if _is_readable(row, tokenizer.vocab_size, audit)]
    audit.rows += len(rows)
    stretches = [_cuts(row.labels) for row in readable]
    pieces = [
        row.input_ids[start:end].tolist()
        for row, cuts in zip(readable, stretches, strict=True)
        for start, end in itertools.pairwise(cuts)
    ]
    texts = iter(tokenizer.decode_batch(pieces))
    for row, cuts in zip(readable, stretches, strict=True):
        _audit_row(row, cuts, [next(texts) for _ in cuts[1:]], tokenizer, policy, audit)


def _is_readable(row: Row, vocab_size: int, audit: Audit) -> bool:
    """Report what needs no text: lengths, ids, labels that are no copies of their tokens."""
    ids, labels = row.input_ids, row.labels
    if len(ids) != len(labels):
        detail = f"{len(labels)} labels for {len(ids)} tokens"
        audit.add(Finding("label_differs_from_input", row.source, -1, len(ids), detail))
        return False
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        detail = f"id {ids[outside[0]]}, but the vocabulary has {vocab_size}"
        finding = Finding(
            "id_outside_vocabulary", row.source, int(outside[0]), len(outside), detail
        )
        audit.add(finding)
        return False
    differs = np.flatnonzero((labels != IGNORE_INDEX) & (labels != ids))
    if len(differs):
        first = int(differs[0])
        detail = f"label {labels[first]} on token {ids[first]}"
        audit.add(Finding("label_differs_from_input", row.source, first, len(differs), detail))
    if not (labels != IGNORE_INDEX).any():
        audit.add(Finding("no_supervised_token", row.source, -1, 1, "the row trains nothing"))
    return True


def _cuts(labels: NDArray[np.int32]) -> list[int]:
    """Cuts of a row into stretches, masked and supervised by turns; the first is masked."""
    return [0, *(edge for run in supervised_runs(labels) for edge in run), len(labels)]


def _audit_row(
    row: Row,
    cuts: list[int],
    texts: list[str],
    tokenizer: ChatTokenizer,
    policy: Labels,
    audit: Audit,
) -> None:
    text = "".join(texts)
    if "\ufffd" in text:  # a cut may go through the bytes of one character
        text = tokenizer.decode(row.input_ids.tolist())
    parts, free = RowReader(row, text, tokenizer, policy, audit).read()
    ends = list(itertools.accumulate(map(len, texts)))
    supervised = [(ends[i - 1], ends[i]) for i in range(1, len(texts), 2)]
    if ends[-1] == len(text) and supervised == _supervised_stretches(parts):
        tokens = sum(cuts[i + 1] - cuts[i] for i in range(1, len(texts), 2))
        audit.must_supervise += tokens
        audit.must_mask += len(row.labels) - tokens
    else:
        expected = expected_tokens(row, text, parts, free, tokenizer, policy)
        compare(row.source, expected, row.labels, tokenizer, row.input_ids, audit)


def _supervised_stretches(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """[start, end) of every unbroken stretch of characters that must be supervised."""
    stretches: list[tuple[int, int]] = []
    for part in parts:
        if part.supervised and part.end > part.start:
            if stretches and stretches[-1][1] == part.start:
                stretches[-1] = (stretches[-1][0], part.end)
            else:
                stretches.append((part.start, part.end))
    return stretches


def expected_tokens(
    row: Row,
    text: str,
    parts: Sequence[Part],
    free: Sequence[tuple[int, int]],
    tokenizer: ChatTokenizer,
    policy: Labels,
) -> Expected:
    """What every token must be, by the characters that it holds; in `free`, it is what it is."""
    starts, ends = token_bounds(row.input_ids.tolist(), text, tokenizer)
    want = np.full(len(starts), Want.PROMPT, np.uint8)
    supervised = np.zeros(len(starts), bool)
    for part in sorted(parts, key=lambda one: one.supervised):
        if part.end <= part.start:
            continue
        first, last = (
            np.searchsorted(ends, part.start, side="right"),
            np.searchsorted(starts, part.end),
        )
        want[first:last] = part.want
        supervised[first:last] = part.supervised
    if policy.straddling == "mask":
        for edge in itertools.chain(*_supervised_stretches(parts)):
            supervised[(starts < edge) & (ends > edge)] = False
    for part in parts:
        if part.want == Want.HEADER:
            across = (starts < part.end) & (ends > part.end)
            want[across], supervised[across] = Want.HEADER, False
    for start, end in free:
        either = (starts < end) & (ends > start) & ((ends <= end) | (policy.straddling == "mask"))
        supervised[either] = row.labels[either] != IGNORE_INDEX
    return Expected(want, supervised)


def token_bounds(
    ids: list[int], text: str, tokenizer: ChatTokenizer
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Characters [start, end) of every token; all tokens of a character have its bounds."""
    alone = tokenizer.pieces(ids)
    if "".join(alone) == text:
        ends = np.cumsum([len(piece) for piece in alone])
        return np.concatenate(([0], ends[:-1])), ends
    prefixes = tokenizer.decode_batch([ids[:length] for length in range(len(ids) + 1)])
    reached = np.array([len(prefix.rstrip("\ufffd")) for prefix in prefixes])
    starts = np.maximum.accumulate(reached[:-1])
    return starts, np.maximum(reached[1:], starts + 1)


def compare(
    source: str,
    expected: Expected,
    labels: NDArray[np.int32],
    tokenizer: ChatTokenizer,
    input_ids: NDArray[np.int32],
    audit: Audit,
) -> None:
    """Hold labels against what every token must be, and add a finding for each kind of fault."""
    supervised = labels != IGNORE_INDEX
    audit.must_supervise += int(expected.supervised.sum())
    audit.must_mask += int((~expected.supervised).sum())
    for kind_of_token in Want:
        of_kind = expected.want == kind_of_token
        for too_much in (False, True):
            wrong = np.flatnonzero(
                of_kind & (supervised == too_much) & (expected.supervised != too_much)
            )
            if len(wrong):
                shown = tokenizer.decode(input_ids[wrong[:8]].tolist())
                kind = FAULT_OF_WANT[kind_of_token]
                if too_much and kind_of_token in (Want.CONTENT, Want.STOP):
                    kind = "prompt_supervised"  # of a turn that the policy leaves out
                detail, runs = f"tokens {shown!r}", tuple(_runs(wrong))
                audit.add(Finding(kind, source, int(wrong[0]), len(wrong), detail, runs))


def _runs(positions: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """[start, end) of every unbroken stretch of ascending positions."""
    for run in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1):
        yield int(run[0]), int(run[-1]) + 1


def audit_collated(
    batch: Mapping[str, NDArray[np.int64]],
    rows: Sequence[TokenRow],
    tokenizer: ChatTokenizer,
    audit: Audit,
) -> None:
    """Hold a collated batch against the audited rows that it was made from, in their order.

    batch: input_ids, attention_mask, labels, each int64 [rows, length], as they reach `forward`.
    """
    audit.rows += len(rows)
    for index, row in enumerate(rows):
        ids, mask, labels = (
            batch[name][index] for name in ("input_ids", "attention_mask", "labels")
        )
        real = mask == 1
        padded = np.flatnonzero(~real & (labels != IGNORE_INDEX))
        if len(padded):
            detail = f"labels {labels[padded[:8]].tolist()} on padding"
            finding = Finding("padding_supervised", row.source, int(padded[0]), len(padded), detail)
            audit.add(finding)
        if int(real.sum()) != len(row.input_ids):
            detail = (
                f"{int(real.sum())} positions attended, the row has {len(row.input_ids)} tokens"
            )
            audit.add(Finding("attention_mask_wrong", row.source, -1, 1, detail))
            continue
        changed = np.flatnonzero(ids[real] != row.input_ids)
        if len(changed):
            detail = f"token {row.input_ids[changed[0]]} became {ids[real][changed[0]]}"
            first = int(changed[0])
            audit.add(Finding("collated_tokens_differ", row.source, first, len(changed), detail))
        row_labels = labels[real].astype(np.int32)
        differs = np.flatnonzero((row_labels != IGNORE_INDEX) & (row_labels != row.input_ids))
        if len(differs):
            first = int(differs[0])
            detail = f"label {row_labels[first]} on token {row.input_ids[first]}"
            audit.add(Finding("label_differs_from_input", row.source, first, len(differs), detail))
            if place := _other_place(row_labels, row.input_ids):
                supervised = int((row_labels != IGNORE_INDEX).sum())
                detail = f"every label is the id of the token {place}"
                audit.add(Finding("labels_shifted", row.source, -1, supervised, detail))
        compare(row.source, _expected_by_store(row), row_labels, tokenizer, row.input_ids, audit)


def _other_place(labels: NDArray[np.int32], ids: NDArray[np.int32]) -> str | None:
    """Beside which tokens do the labels of a row stand, all of them? None: not one place off."""
    for place, own, beside in (
        ("after it", labels[:-1], ids[1:]),
        ("before it", labels[1:], ids[:-1]),
    ):
        supervised = own != IGNORE_INDEX
        whole = supervised.sum() == (labels != IGNORE_INDEX).sum()
        if whole and np.array_equal(own[supervised], beside[supervised]):
            return place
    return None


WANT_OF_ROLE = {
    Role.HEADER: Want.HEADER,
    Role.SCAFFOLD: Want.SCAFFOLD,
    Role.CONTENT: Want.CONTENT,
    Role.REASONING: Want.REASONING,
    Role.TOOL_CALL: Want.CALL,
    Role.STOP: Want.STOP,
}


def _expected_by_store(row: TokenRow) -> Expected:
    """What every token must be by the labels that passed the audit.

    What the policy masks is prompt here, but for headers: whoever supervises it changed the labels.
    """
    supervised = row.labels != IGNORE_INDEX
    want = np.full(len(row.labels), Want.PROMPT, np.uint8)
    want[row.roles == Role.HEADER] = Want.HEADER
    for role, kind in WANT_OF_ROLE.items():
        want[supervised & (row.roles == role)] = kind
    return Expected(want, supervised)
