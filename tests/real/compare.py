"""Production's labels against an oracle's pieces, token by token and turn by turn."""

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from stages.chat.conversation import Conversation, Message
from stages.chat.labels import IGNORE_INDEX, Labelled, Role
from stages.chat.template_at_work import TemplateError
from stages.chat.tokenizer import ChatTokenizer, Encoded
from stages.config.schema import Data, Labels
from stages.mask_audit.findings import Audit
from stages.mask_audit.prepare import Preparer
from stages.reading.dialects import RowParser

from .fetch import tokenizer_directory
from .oracles import ORACLES, Piece, Refused, without_none

TODAY = datetime.date(2026, 1, 1)

CRASH = "crash"
DATA = Data(
    path="data",
    dialect="openai",
    validation_path=None,
    validation_fraction=0.1,
    split_seed=0,
    sha256=None,
    on_bad_row="report",
    max_length=100_000,
    truncation="drop",
    collator=None,
)
LABELS = Labels(
    turns="all",
    supervise=["content", "reasoning", "tool_call"],
    straddling="supervise",
    template_date=TODAY.isoformat(),
)


@dataclass(frozen=True)
class Produced:
    """What the pipeline makes of a conversation. reason: why there is no row, if there is none;
    findings: kinds of faults that its own audit names in the row."""

    text: str
    row: Labelled | None
    reason: str
    findings: tuple[str, ...]


@cache
def chat_tokenizer(family: str) -> ChatTokenizer:
    return ChatTokenizer(str(tokenizer_directory(family)), TODAY)


@cache
def preparer(family: str) -> Preparer:
    return Preparer(chat_tokenizer(family), DATA, LABELS)


def normalised(messages: Sequence[Message], tools: list[Any] | None) -> list[Message]:
    """Messages as the pipeline reads them from a line of a file."""
    return without_none(parsed(messages, tools).messages)


def parsed(messages: Sequence[Message], tools: list[Any] | None) -> Conversation:
    line = msgspec.json.encode({"messages": messages, "tools": tools})
    return RowParser("openai").parse(msgspec.json.decode(line), "conversation:1")


def produce(family: str, messages: Sequence[Message], tools: list[Any] | None) -> Produced:
    """The production path, from a line of a file to labels; the only place that calls it."""
    conversation = parsed(messages, tools)
    try:
        (prepared,) = preparer(family).prepare([conversation], Audit())
    except Exception as crash:
        return Produced("", None, f"{CRASH}: {type(crash).__name__}: {crash}", ())
    kept = prepared.row if prepared.dropped in (None, "no_supervised_token") else None
    reason = "" if kept else f"{prepared.dropped}: {prepared.detail}"
    kinds = sorted({finding.kind for finding in prepared.findings})
    return Produced(prepared.text, kept, reason, tuple(kinds))


class Want(IntEnum):
    """What a token must be. FREE: the template's own text within an answer (think and call tags,
    channels), and tokens on the edges between it and what must be supervised."""

    MASKED = 0
    FREE = 1
    SUPERVISED = 2


ROLE_OF_PIECE = {
    "content": Role.CONTENT.name,
    "reasoning": "REASONING",
    "tool_call": "TOOL_CALL",
    "stop": Role.STOP.name,
}

Outcome = Literal["right", "reported", "found", "wrong"]
"""reported: there is no row, and a reason; found: the labels are wrong, and the audit says so of
the row; wrong: nobody would know."""


@dataclass(frozen=True)
class Turn:
    """One assistant turn. lossless: the template writes every message of the conversation in full;
    lost: what it leaves out of this turn or spoils in it; findings: kinds that the audit names."""

    family: str
    conversation: str
    index: int
    outcome: Outcome
    reason: str
    lossless: bool
    lost: str = ""
    findings: tuple[str, ...] = ()


@dataclass
class Comparison:
    """Turns, and counts of tokens over all judged conversations.

    straddling: tokens of an answer that are masked since they also cover text outside of it; free:
    supervised or not -> tokens for which both are allowed; roles: names that differ.
    """

    turns: list[Turn] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    straddling: int = 0
    free: Counter[bool] = field(default_factory=Counter)
    roles: list[tuple[str, str, str]] = field(default_factory=list)

    def of(self, *outcomes: Outcome, lossless: bool | None = None) -> list[Turn]:
        return [
            turn
            for turn in self.turns
            if turn.outcome in outcomes and lossless in (None, turn.lossless)
        ]


def wanted(piece: Piece, unsupervised: set[int]) -> Want:
    if piece.turn is None or piece.turn in unsupervised or piece.role == "header":
        return Want.MASKED
    return Want.SUPERVISED if piece.role in ROLE_OF_PIECE else Want.FREE


def compare(
    family: str, name: str, messages: Sequence[Message], tools: list[Any] | None, into: Comparison
) -> None:
    """Judge every assistant turn of one conversation."""
    answers = [index for index, turn in enumerate(messages) if turn["role"] == "assistant"]
    produced = produce(family, messages, tools)
    try:
        written = ORACLES[family](normalised(messages, tools), tools)
    except Refused:
        if produced.row is None and not produced.reason.startswith(CRASH):
            into.refused.append((family, name))
        else:
            reason = produced.reason or "the template refuses this"
            _judge_all(family, name, answers, "wrong", reason, True, into)
        return
    lossless = all(index < 0 for index in written.lost)
    if produced.row is None:
        crashed = produced.reason.startswith(CRASH)
        unjudged: Outcome = "wrong" if crashed else "reported"
        _judge_all(family, name, answers, unjudged, produced.reason, lossless, into)
    elif produced.text != written.text:
        detail = "production renders another text"
        _judge_all(family, name, answers, "wrong", detail, lossless, into)
    else:
        tokenizer, row = chat_tokenizer(family), produced.row
        encoded = tokenizer.encode([written.text])[0]
        assert encoded.input_ids.tolist() == row.input_ids.tolist()
        faults = find_faults(encoded, row.labels, written.pieces, messages, tokenizer)
        into.straddling += faults.straddling
        into.free += faults.free
        _compare_roles(family, name, encoded, written.pieces, row, into)
        faulty: Outcome = "found" if produced.findings else "wrong"
        for index in answers:
            outcome = faulty if index in faults.by_turn else "right"
            reason = "; ".join(faults.by_turn.get(index, []))
            found = produced.findings
            lost = written.lost.get(index, "")
            into.turns.append(Turn(family, name, index, outcome, reason, lossless, lost, found))


def _judge_all(
    family: str,
    name: str,
    answers: Sequence[int],
    outcome: Outcome,
    reason: str,
    lossless: bool,
    into: Comparison,
) -> None:
    for index in answers:
        into.turns.append(Turn(family, name, index, outcome, reason, lossless))


@dataclass
class Faults:
    """by_turn: turn -> what is wrong with it; a fault outside all turns goes to the turn before
    it. straddling, free: as in Comparison."""

    by_turn: dict[int, list[str]] = field(default_factory=dict)
    straddling: int = 0
    free: Counter[bool] = field(default_factory=Counter)


def find_faults(
    encoded: Encoded,
    labels: NDArray[np.int32],
    pieces: Sequence[Piece],
    messages: Sequence[Message],
    tokenizer: ChatTokenizer,
) -> Faults:
    """Hold labels, int32 [T], against pieces; `encoded` are the tokens of the pieces' text."""
    unsupervised = {i for i, message in enumerate(messages) if message.get("weight", 1) == 0}
    want, owner, straddling = tokens_wanted(encoded, pieces, unsupervised)
    supervised = labels != IGNORE_INDEX
    faults = Faults({}, straddling, Counter(supervised[want == Want.FREE].tolist()))
    turns = np.array(_turn_of_piece(pieces))[owner]
    for told, wrong in (
        ("masks", (want == Want.SUPERVISED) & ~supervised),
        ("supervises", (want == Want.MASKED) & supervised),
        ("changes", supervised & (labels != encoded.input_ids)),
    ):
        for turn in np.unique(turns[wrong]).tolist():
            here = np.flatnonzero(wrong & (turns == turn))
            roles = "/".join(sorted({pieces[piece].role for piece in owner[here]}))
            shown = tokenizer.decode(encoded.input_ids[here[:8]].tolist())
            told_here = f"{told} {len(here)} of {roles} ({shown!r})"
            faults.by_turn.setdefault(turn, []).append(told_here)
    return faults


def tokens_wanted(
    encoded: Encoded, pieces: Sequence[Piece], unsupervised: set[int]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], int]:
    """Want of every token, uint8 [T], the piece that holds its last character, int64 [T], and how
    many tokens straddle an edge between what must be masked and what must be supervised.

    A token belongs to a piece when all its characters do, so that a straddling one is masked.
    """
    of_character = _piece_of_character(pieces)
    wants = np.array([wanted(piece, unsupervised) for piece in pieces], np.uint8)[of_character]
    count = len(encoded.starts)
    want, owner, straddling = np.zeros(count, np.uint8), np.zeros(count, np.int64), 0
    for i, (start, end) in enumerate(zip(encoded.starts, encoded.ends, strict=True)):
        covered = wants[start : max(end, start + 1)]
        want[i] = covered.min()
        owner[i] = of_character[max(end, start + 1) - 1]
        straddling += covered.min() == Want.MASKED and covered.max() == Want.SUPERVISED
    return want, owner, straddling


def _piece_of_character(pieces: Sequence[Piece]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(pieces)), [len(piece.text) for piece in pieces])


def _mixed(encoded: Encoded, pieces: Sequence[Piece]) -> NDArray[np.bool_]:
    """Which tokens cover the edge of two pieces: bool [T]."""
    of_character = _piece_of_character(pieces)
    starts = np.array(encoded.starts)
    last = np.maximum(encoded.ends, starts + 1) - 1
    return np.asarray(of_character[starts] != of_character[last])


def _turn_of_piece(pieces: Sequence[Piece]) -> list[int]:
    """The turn of every piece; of one outside all turns, the turn before it, or the first."""
    turns, known = [], next((piece.turn for piece in pieces if piece.turn is not None), -1)
    for piece in pieces:
        known = known if piece.turn is None else piece.turn
        turns.append(known)
    return turns


def _compare_roles(
    family: str,
    name: str,
    encoded: Encoded,
    pieces: Sequence[Piece],
    row: Labelled,
    into: Comparison,
) -> None:
    """Names of roles of tokens that lie within one piece of an answer."""
    owner = _piece_of_character(pieces)[list(encoded.starts)]
    mixed = _mixed(encoded, pieces)
    for position in np.flatnonzero(~mixed):
        role = ROLE_OF_PIECE.get(pieces[owner[position]].role)
        found = Role(int(row.roles[position])).name
        if role and role != found:
            entry = (family, name, f"{role} is {found}")
            if entry not in into.roles:
                into.roles.append(entry)


def oracle_fault(family: str, messages: Sequence[Message], tools: list[Any] | None) -> str:
    """How an oracle differs from its template; empty where it does not."""
    try:
        text: str | None = chat_tokenizer(family).render(messages, tools)
    except TemplateError:
        text = None
    try:
        told: str | None = ORACLES[family](without_none(messages), tools).text
    except Refused:
        told = None
    if told == text:
        return ""
    if told is None or text is None:
        return "only the template refuses" if text is None else "only the oracle refuses"
    same = next((i for i, (a, b) in enumerate(zip(told, text, strict=False)) if a != b), -1)
    return f"the oracle writes {told[same : same + 60]!r}, the template {text[same : same + 60]!r}"
