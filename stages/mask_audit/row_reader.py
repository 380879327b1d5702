"""Where does each message stand in the decoded text of a row?

A second way to the spans that labels are made from, and none that shares anything with the first:
the row's text is searched for each message, in order.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..chat.conversation import ASSISTANT, Message
from ..chat.labels import supervised_turns
from ..chat.spans import REASONING_ENDS, trimmed_forms
from ..chat.tokenizer import ChatTokenizer
from ..config.schema import Labels
from .findings import Audit, Finding, Kind, Row

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


NAME_IN_POLICY = {
    Want.SCAFFOLD: "scaffold",
    Want.CONTENT: "content",
    Want.REASONING: "reasoning",
    Want.CALL: "tool_call",
}


@dataclass(frozen=True)
class Part:
    """Characters [start, end) of an assistant turn, and whether the policy supervises them."""

    start: int
    end: int
    want: Want
    supervised: bool


class RowReader:
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
        if place is None and begin > self._position:  # an answer that says what was thought
            place = self._find_answer(said, self._position, bool(calls), after_tool)
        if place is None and said != (whole := "".join(texts_of(message))):
            reasoning, said = [], whole
            place = self._find_answer(said, self._position, bool(calls), after_tool)
        if place is None and said != (joined := "".join(map(str.strip, texts_of(message)))):
            place = self._find_answer(joined, self._position, bool(calls), after_tool)
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
            elif not self._ends_a_turn(begin if reasoned else body, found):
                return head, body, found, form
            found = text.find(form + stop, found + 1)
        if after_tool and without_header is not None:
            return without_header, without_header, without_header, form
        return None

    def _ends_a_turn(self, start: int, end: int) -> bool:
        return self._tokenizer.stops.search(self._text, start, end) is not None

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
            limit = self._end_of_turn(position)
            found = self._text.find(name, position, limit)
            if found < 0 and self._row.truncated:
                return len(self._text)
            places = [self._place_of(value, found, limit) for value in values if found >= 0]
            if found < 0 or not all(places):
                self._report("call_dropped", f"message {index} calls {name!r}: not in the row")
            else:
                position = found + len(name)
                last = max(last, position, *places)
        return last

    def _end_of_turn(self, position: int) -> int:
        """Where the first stop token stands behind which the same turn does not go on."""
        header = self._tokenizer.header
        for stop in self._tokenizer.stops.finditer(self._text, position):
            if not header or not self._text.startswith(header, stop.end()):
                return stop.start()
        return len(self._text)

    def _place_of(self, value: str, position: int, limit: int) -> int:
        """Where an argument ends behind `position`, plain or as JSON; 0 when it is absent."""
        escaped = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
        for form in dict.fromkeys((value, value.strip(), *escaped)):
            end = None if self._tokenizer.stops.search(form) else limit
            found = self._text.find(form, position, end)
            if found >= 0:
                return found + len(form)
        return 0

    def _find_stop(self, position: int) -> tuple[int, str]:
        """(where the stop token begins, its text); the end of the row and nothing without one."""
        found = self._tokenizer.stops.search(self._text, position)
        return (found.start(), found[0]) if found else (min(position, len(self._text)), "")

    def _miss(self, index: int, said: str) -> None:
        if self._row.truncated:
            self._position = len(self._text)
        else:
            detail = f"message {index} ({ASSISTANT}) is not in the row as it was said"
            self._report("content_dropped", detail)

    def _report_trimmed(self, index: int, role: str, said: str, form: str) -> None:
        if form == said or self._row.truncated:
            return
        if form in said:
            lost = said.replace(form, "", 1)
            self._report("content_trimmed", f"message {index} ({role}) has lost {lost!r}")
        elif form.split() != said.split() and "".join(form.split()) == "".join(said.split()):
            detail = f"message {index} ({role}) has lost white space between its parts"
            self._report("content_trimmed", detail)

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
