"""Are the labels right? Judged from tokens, labels and messages alone.

Nothing here knows how labels were made: no spans, no offsets, no sentinels. A row's tokens are
decoded, its messages are looked up in that text, and what is supervised must be exactly what the
policy in `labels` says of each answer. What differs is named token by token.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..config.schema import Labels
from .conversation import ASSISTANT, Message
from .labels import IGNORE_INDEX, Role, supervised_runs, supervised_turns
from .spans import REASONING_ENDS, trimmed_forms
from .token_store import TokenRow
from .tokenizer import ChatTokenizer

Kind = Literal[
    "prompt_supervised",
    "header_supervised",
    "scaffold_differs",
    "content_masked",
    "reasoning_differs",
    "call_differs",
    "stop_masked",
    "stop_missing",
    "label_differs_from_input",
    "id_outside_vocabulary",
    "no_supervised_token",
    "content_dropped",
    "content_trimmed",
    "reasoning_dropped",
    "call_dropped",
    "markers_differ",
    "double_bos",
    "open_generation_prompt",
    "ends_without_answer",
    "unknown_role",
    "default_system_injected",
    "control_token_in_content",
    "collated_tokens_differ",
    "padding_supervised",
    "attention_mask_wrong",
]


_BLANK = re.compile(r"\s*")


class Want(IntEnum):
    """What a token of an audited row is: the first two are masked, the others by the policy."""

    PROMPT = 0
    HEADER = 1
    SCAFFOLD = 2
    CONTENT = 3
    REASONING = 4
    CALL = 5
    STOP = 6


FAULT_OF_WANT: dict[Want, Kind] = {
    Want.PROMPT: "prompt_supervised",
    Want.HEADER: "header_supervised",
    Want.SCAFFOLD: "scaffold_differs",
    Want.CONTENT: "content_masked",
    Want.REASONING: "reasoning_differs",
    Want.CALL: "call_differs",
    Want.STOP: "stop_masked",
}
NAME_IN_POLICY = {
    Want.SCAFFOLD: "scaffold",
    Want.CONTENT: "content",
    Want.REASONING: "reasoning",
    Want.CALL: "tool_call",
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
    """One kind of fault in one row. position: its first token, or -1; count: its tokens.

    runs: [start, end) of every unbroken stretch of these, where labels were compared.
    """

    kind: Kind
    source: str
    position: int
    count: int
    detail: str
    runs: tuple[tuple[int, int], ...] = ()


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
class Expected:
    """What every token of a row must be. want: uint8 [T], of Want; supervised: bool [T]."""

    want: NDArray[np.uint8]
    supervised: NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """Characters [start, end) of an assistant turn, and whether the policy supervises them."""

    start: int
    end: int
    want: Want
    supervised: bool


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
    parts, free = _Reader(row, text, tokenizer, policy, audit).read()
    ends = np.cumsum([len(piece) for piece in texts]).tolist()
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


class _Reader:
    """Looks the messages of one row up in its text, in their order."""

    def __init__(
        self, row: Row, text: str, tokenizer: ChatTokenizer, policy: Labels, audit: Audit
    ) -> None:
        self._row, self._text, self._tokenizer, self._audit = row, text, tokenizer, audit
        self._named = set(policy.supervise)
        self._chosen = set(supervised_turns(row.messages, policy.turns))
        self._position = 0
        self._parts: list[Part] = []
        self._free: list[tuple[int, int]] = []

    def read(self) -> tuple[list[Part], list[tuple[int, int]]]:
        """All parts of all assistant turns, and characters of which either is right.

        What is not found is reported.
        """
        for index, message in enumerate(self._row.messages):
            if self._row.truncated and self._position >= len(self._text):
                break
            if message["role"] == ASSISTANT:
                self._read_answer(index, message)
            else:
                for said in texts_of(message):
                    self._pass_over(index, message["role"], said)
        return self._parts, self._free

    def _pass_over(self, index: int, role: str, said: str) -> None:
        header = self._tokenizer.header
        next_answer = self._text.find(header, self._position) if header else -1
        for end in (next_answer, len(self._text)):
            for form in _forms(said, self._tokenizer) if end >= 0 else ():
                found = self._text.find(form, self._position, end)
                if found >= 0:
                    self._position = found + len(form)
                    self._report_trimmed(index, role, said, form)
                    return
        if any(form in self._text for form in _forms(said, self._tokenizer)):
            return  # the template moved it to the front, as some do with a system turn
        if self._row.truncated:
            self._position = len(self._text)
        else:
            self._report("content_dropped", f"message {index} ({role}) is not in the row as said")

    def _read_answer(self, index: int, message: Message) -> None:
        reasoning, said = self._split_reasoning(message)
        calls = list(called(message))
        after_tool = index > 0 and self._row.messages[index - 1]["role"] == "tool"
        begin = self._skip_reasoning(reasoning)
        place = self._find_answer(said, begin, bool(calls), after_tool)
        if place is None and said != (whole := "".join(texts_of(message))):
            reasoning, said, begin = [], whole, self._position
            place = self._find_answer(said, begin, bool(calls), after_tool)
        if place is None:
            self._miss(index, said)
            if not calls or (place := self._find_header()) is None:
                return
            said = ""
        header, body, start, form = place
        if said:
            self._report_trimmed(index, ASSISTANT, said, form)
        end = start + len(form)
        told = self._find_reasoning(index, reasoning, body, start if said else len(self._text))
        end_of_calls = self._find_calls(index, calls, end)
        stop, stop_text = self._find_stop(max(end, end_of_calls))
        end = min(end, stop)
        lead = Want.REASONING if told else Want.SCAFFOLD
        tail = Want.CALL if end_of_calls else Want.SCAFFOLD
        if tail == Want.CALL and not said:
            lead_end = told if told else body
            bounds = [(body, lead_end, lead), (lead_end, stop, tail)]
        else:
            margin = len(form) - len(form.lstrip()) if start > body else 0
            bounds = [(body, start, lead), (start + margin, end, Want.CONTENT), (end, stop, tail)]
            if margin:  # white space of the template, or of the answer: nobody can tell
                self._free.append((start, start + margin))
        bounds = [(header, body, Want.HEADER), *bounds]
        behind = stop + len(stop_text)
        blank = _BLANK.match(self._text, behind)
        assert blank is not None
        bounds.append((stop, behind, Want.STOP))
        for first, last, want in bounds:
            supervised = index in self._chosen and self._is_supervised(want)
            self._parts.append(Part(first, last, want, supervised))
        self._parts.append(Part(behind, blank.end(), Want.SCAFFOLD, False))
        if not stop_text and not (self._row.truncated and stop >= len(self._text)):
            self._report("stop_missing", f"no stop token ends message {index} ({ASSISTANT})")
        self._position = behind

    def _is_supervised(self, want: Want) -> bool:
        return want == Want.STOP or NAME_IN_POLICY.get(want) in self._named

    def _split_reasoning(self, message: Message) -> tuple[list[str], str]:
        """(what is thought, what is said): by a field, or by a tag that this template looks for."""
        said = "".join(texts_of(message))
        if reasoning := message.get("reasoning_content"):
            return [str(reasoning)], said
        for tag in REASONING_ENDS:
            if tag in said and tag in self._tokenizer.inspected:
                thought, _, rest = said.rpartition(tag)
                pieces = thought.replace(tag, tag.replace("/", "")).split(tag.replace("/", ""))
                return [piece.strip() for piece in pieces if piece.strip()], rest
        return [], said

    def _skip_reasoning(self, reasoning: Sequence[str]) -> int:
        """Where to look for what is said: behind the reasoning, if this turn holds it."""
        header = self._tokenizer.header
        head = self._text.find(header, self._position)
        if not reasoning or head < 0:
            return self._position
        body = head + len(header)
        for form in _forms(reasoning[-1], self._tokenizer):
            found = self._text.find(form, body)
            if found >= 0 and not self._ends_a_turn(body, found):
                end = found + len(form)
                again = [stop + header for stop in self._tokenizer.stop_tokens]
                return end + next((len(one) for one in again if self._text.startswith(one, end)), 0)
        return self._position

    def _find_answer(
        self, said: str, begin: int, has_calls: bool, after_tool: bool
    ) -> tuple[int, int, int, str] | None:
        """(start of the header, its end, start of the content, the content as it stands)."""
        if has_calls and not said:
            return self._find_header()
        next_header = self._text.find(self._tokenizer.header, self._position)
        best: tuple[int, int, int, str] | None = None
        stops = [""] if has_calls else self._tokenizer.stop_tokens
        for form in _forms(said, self._tokenizer):
            for stop in stops:
                place = self._find_form(form, stop, begin, after_tool)
                if place and place[0] == next_header:
                    return place
                if place and (best is None or place[2] < best[2]):
                    best = place
        return best if best is not None else self._find_unfinished(said)

    def _find_form(
        self, form: str, stop: str, begin: int, after_tool: bool
    ) -> tuple[int, int, int, str] | None:
        """The first place behind a header, with nothing that ends a turn in between.

        begin: where to start, behind this turn's reasoning if it has one. Some templates write no
        header behind the result of a tool.
        """
        text, header = self._text, self._tokenizer.header
        reasoned = begin > self._position
        without_header: int | None = None
        found = text.find(form + stop, begin)
        while found >= 0:
            look = text.find if reasoned else text.rfind
            head = look(header, self._position, found) if header else found
            body = head + len(header)
            if head < 0:
                without_header = found if without_header is None else without_header
            elif reasoned or not self._ends_a_turn(body, found):
                return head, body, found, form
            found = text.find(form + stop, found + 1)
        if after_tool and without_header is not None:
            return without_header, without_header, without_header, form
        return None

    def _ends_a_turn(self, start: int, end: int) -> bool:
        return any(stop in self._text[start:end] for stop in self._tokenizer.stop_tokens)

    def _find_header(self) -> tuple[int, int, int, str] | None:
        header = self._tokenizer.header
        found = self._text.find(header, self._position) if header else -1
        if found < 0:
            return None
        return found, found + len(header), found + len(header), ""

    def _find_unfinished(self, said: str) -> tuple[int, int, int, str] | None:
        """An answer at the very end: cut off there, or by a template that never ends it."""
        text, header = self._text, self._tokenizer.header
        head = text.find(header, self._position) if header else self._position
        while head >= 0:
            body = head + len(header)
            rest = text[body:]
            if self._row.truncated and said.startswith(rest):
                return head, body, body, rest
            if not self._row.truncated and said and rest.rstrip() == said.strip():
                return head, body, body + len(rest) - len(rest.lstrip()), said.strip()
            head = text.find(header, head + 1) if header else -1
        return None

    def _find_reasoning(self, index: int, reasoning: Sequence[str], body: int, end: int) -> int:
        """Where the reasoning ends; 0 when the row holds none. What is missing is reported."""
        position = 0
        for piece in reasoning:
            for form in _forms(piece, self._tokenizer):
                found = self._text.find(form, position or body, end)
                if found >= 0:
                    position = found + len(form)
                    break
            else:
                self._report("reasoning_dropped", f"the row lacks reasoning of message {index}")
        return position

    def _find_calls(self, index: int, calls: list[tuple[str, list[str]]], position: int) -> int:
        """Where the last call ends; 0 when there is none. A call that is missing is reported."""
        last = 0
        for name, values in calls:
            found = self._text.find(name, position)
            if found < 0 and self._row.truncated:
                return len(self._text)
            places = [_place_of(value, self._text, found) for value in values] if found >= 0 else []
            if found < 0 or not all(places):
                self._report("call_dropped", f"message {index} calls {name!r}: not in the row")
            else:
                position = found + len(name)
                last = max(last, position, *places)
        return last

    def _find_stop(self, position: int) -> tuple[int, str]:
        """(where the stop token begins, its text); the end of the row and nothing without one."""
        found = [
            (self._text.find(stop, position), stop)
            for stop in self._tokenizer.stop_tokens
            if stop in self._text[position:]
        ]
        return min(found, default=(min(position, len(self._text)), ""))

    def _miss(self, index: int, said: str) -> None:
        if self._row.truncated:
            self._position = len(self._text)
        else:
            detail = f"message {index} ({ASSISTANT}) is not in the row as it was said"
            self._report("content_dropped", detail)

    def _report_trimmed(self, index: int, role: str, said: str, form: str) -> None:
        if form != said and form in said and not self._row.truncated:
            lost = said.replace(form, "", 1)
            self._report("content_trimmed", f"message {index} ({role}) has lost {lost!r}")

    def _report(self, kind: Kind, detail: str) -> None:
        self._audit.add(Finding(kind, self._row.source, -1, 1, detail))


def texts_of(message: Message) -> list[str]:
    """The texts of a message's content, in their order; empty ones are left out."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str) and text]


def called(message: Message) -> Iterator[tuple[str, list[str]]]:
    """(name, texts of the arguments) of every function that a message calls."""
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, dict) else {}
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            yield name, list(_leaves(function.get("arguments")))


def _leaves(value: Any) -> Iterator[str]:
    """The texts in nested arguments; numbers are left out, which templates write in many ways."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _leaves(one)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one)


def _place_of(value: str, text: str, position: int) -> int:
    """Where an argument ends in `text` after `position`, plain or as JSON; 0 when it is absent."""
    escaped = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
    for form in (value, value.strip(), *escaped):
        found = text.find(form, position)
        if found >= 0:
            return found + len(form)
    return 0


def _forms(text: str, tokenizer: ChatTokenizer) -> Iterator[str]:
    """A text as templates and tokenizers write it: as it is, trimmed, as JSON, normalised."""
    yield text
    for form in trimmed_forms(text):
        if form != text:
            yield form
    normalised = tokenizer.round_trip(text)
    if normalised != text:
        yield normalised
        yield from trimmed_forms(normalised)


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
            inside = (starts[first:last] >= part.start) & (ends[first:last] <= part.end)
            supervised[first:last] &= inside
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
        compare(row.source, _expected_by_store(row), row_labels, tokenizer, row.input_ids, audit)


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
