"""Are the labels right? Judged from tokens, labels and messages alone.

Nothing here knows how labels were made: no spans, no offsets, no sentinels. A row's tokens are
decoded, its answers are looked up in that text, and the supervised stretches must cover exactly
each answer and the stop token behind it. What differs is named token by token.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .conversation import ASSISTANT, Message
from .labels import IGNORE_INDEX, Role, supervised_runs, supervised_turns
from .token_store import TokenRow
from .tokenizer import ChatTokenizer

Kind = Literal[
    "prompt_supervised",
    "header_supervised",
    "content_masked",
    "stop_masked",
    "label_differs_from_input",
    "id_outside_vocabulary",
    "no_supervised_token",
    "answer_not_found",
    "collated_tokens_differ",
    "padding_supervised",
    "attention_mask_wrong",
]


class Want(IntEnum):
    """What a token of an audited row must be: the first two masked, the others supervised."""

    PROMPT = 0
    HEADER = 1
    CONTENT = 2
    STOP = 3


FAULT_OF_WANT: dict[Want, Kind] = {
    Want.PROMPT: "prompt_supervised",
    Want.HEADER: "header_supervised",
    Want.CONTENT: "content_masked",
    Want.STOP: "stop_masked",
}


@dataclass(frozen=True)
class Row:
    """What is audited. input_ids, labels: int32 [T]; truncated: the end of the text was cut off."""

    source: str
    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    messages: Sequence[Message]
    truncated: bool = False


@dataclass(frozen=True)
class Finding:
    """One kind of fault in one row. position: its first token, or -1; count: its tokens."""

    kind: Kind
    source: str
    position: int
    count: int
    detail: str


@dataclass
class Audit:
    """Counts over all audited rows. must_mask and must_supervise are tokens, faults by kind."""

    rows: int = 0
    must_mask: int = 0
    must_supervise: int = 0
    faults: Counter[Kind] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.faults[finding.kind] += finding.count
        self.findings.append(finding)


@dataclass(frozen=True)
class _Answer:
    """Characters of one assistant turn: header, content from `start`, stop token from `stop`."""

    header: int
    start: int
    stop: int
    end: int
    supervised: bool


def audit_rows(
    rows: Sequence[Row], tokenizer: ChatTokenizer, turns: Literal["all", "last"], audit: Audit
) -> None:
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
        _audit_row(row, cuts, [next(texts) for _ in cuts[1:]], tokenizer, turns, audit)


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
    turns: Literal["all", "last"],
    audit: Audit,
) -> None:
    try:
        answers = _find_answers(row, "".join(texts), tokenizer, turns)
    except LookupError as error:
        audit.add(Finding("answer_not_found", row.source, -1, 1, str(error)))
        return
    ends = np.cumsum([len(text) for text in texts]).tolist()
    supervised = [(ends[i - 1], ends[i]) for i in range(1, len(texts), 2)]
    if supervised == [(answer.start, answer.end) for answer in answers if answer.supervised]:
        tokens = sum(cuts[i + 1] - cuts[i] for i in range(1, len(texts), 2))
        audit.must_supervise += tokens
        audit.must_mask += len(row.labels) - tokens
    else:
        want = _wanted_tokens(row.input_ids, answers, tokenizer)
        compare(row.source, want, row.labels, tokenizer, row.input_ids, audit)


def _find_answers(
    row: Row, text: str, tokenizer: ChatTokenizer, turns: Literal["all", "last"]
) -> list[_Answer]:
    """Look every message up in the text, in order. Raises LookupError naming the one not found."""
    chosen = set(supervised_turns(row.messages, turns))
    answers, position = [], 0
    for index, message in enumerate(row.messages):
        content = message.get("content") or ""
        is_answer = message["role"] == ASSISTANT
        lead, tail = (tokenizer.header, tokenizer.stop_token) if is_answer else ("", "")
        found = text.find(lead + content + tail, position)
        if found < 0 and row.truncated:
            found = _find_cut(text, lead, content + tail, position)
            if found < 0:
                break  # the text ends before this message
        if found < 0:
            raise LookupError(
                f"message {index} ({message['role']}) is not in the row as it was said"
            )
        start = found + len(lead)
        end = min(start + len(content + tail), len(text))
        if is_answer:
            stop = min(start + len(content), len(text))
            answers.append(_Answer(found, start, stop, end, index in chosen))
        position = end
    return answers


def _find_cut(text: str, lead: str, rest: str, position: int) -> int:
    """Where `lead` stands in a cut text such that the text ends within `rest`, or -1."""
    found = text.find(lead, position)
    while found >= 0 and not rest.startswith(text[found + len(lead) :]):
        found = text.find(lead, found + 1)
    return found


def _wanted_tokens(
    input_ids: NDArray[np.int32], answers: Sequence[_Answer], tokenizer: ChatTokenizer
) -> NDArray[np.uint8]:
    """Want of every token: uint8 [T]. A token on an edge goes where its first character is."""
    ids = input_ids.tolist()
    prefixes = tokenizer.decode_batch([ids[:length] for length in range(len(ids))])
    starts = np.array([len(prefix.rstrip("\ufffd")) for prefix in prefixes])
    want = np.full(len(ids), Want.PROMPT, np.uint8)
    for answer in answers:
        if answer.supervised:
            bounds = (answer.header, answer.start, answer.stop, answer.end)
            header, start, stop, end = np.searchsorted(starts, bounds)
            want[header:start], want[start:stop] = Want.HEADER, Want.CONTENT
            want[stop:end] = Want.STOP
    return want


def compare(
    source: str,
    want: NDArray[np.uint8],
    labels: NDArray[np.int32],
    tokenizer: ChatTokenizer,
    input_ids: NDArray[np.int32],
    audit: Audit,
) -> None:
    """Hold labels against what every token must be, and add a finding for each kind of fault."""
    supervised = labels != IGNORE_INDEX
    must_supervise = want >= Want.CONTENT
    audit.must_supervise += int(must_supervise.sum())
    audit.must_mask += int((~must_supervise).sum())
    for kind_of_token in Want:
        wrong = np.flatnonzero((want == kind_of_token) & (supervised != must_supervise))
        if len(wrong):
            shown = tokenizer.decode(input_ids[wrong[:8]].tolist())
            kind = FAULT_OF_WANT[kind_of_token]
            audit.add(Finding(kind, source, int(wrong[0]), len(wrong), f"tokens {shown!r}"))


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
        compare(row.source, _wanted_by_store(row), row_labels, tokenizer, row.input_ids, audit)


def _wanted_by_store(row: TokenRow) -> NDArray[np.uint8]:
    """Want of every token by the labels that passed the audit: uint8 [T]."""
    want = np.full(len(row.labels), Want.PROMPT, np.uint8)
    want[row.roles == Role.HEADER] = Want.HEADER
    supervised = row.labels != IGNORE_INDEX
    want[supervised] = Want.CONTENT
    want[supervised & (row.roles == Role.STOP)] = Want.STOP
    return want
