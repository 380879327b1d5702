"""Which characters of a rendered conversation did each message put there?

Every text of every message (content, reasoning, the names of called functions) is replaced by a
sentinel, and the whole conversation is rendered once more; what stands between the sentinels is the
template's own text. If the real rendering is exactly that text with the messages' texts in place of
the sentinels, every span is known to the character. No part of a conversation is ever rendered
alone, since templates treat last turns and histories differently.

A template that looks into a content (`'</think>' in content`) would take another branch for a
sentinel. The constants that it looks for are therefore kept, and sentinels stand around them.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jinja2

from .conversation import Message

SENTINEL = "qZ{}Zq"
"""Letters and digits alone: nothing trims, escapes or splits them."""
_SENTINEL = re.compile(r"qZ(\d+)Zq")
REASONING_ENDS = ("</think>", "[/THINK]")

SHAPES_KEPT = 1024
"""Shapes that are remembered; calls with arguments of their own make a shape of every row."""

PART_AS_PYTHON = ("'text': '", "'text': \"")
"""How a list of content parts looks to a template that takes it for a text."""

Render = Callable[[Sequence[Message], list[Any] | None], str]
Kind = Literal["content", "reasoning", "call"]


class NotJudgeable(ValueError):
    """The template rewrites what it is given, so that its spans are not certain."""


@dataclass(frozen=True)
class Slot:
    """A text of message `index` that a sentinel replaces.

    before, after: constants of the template beside it in the same field, which are kept.
    """

    index: int
    kind: Kind
    text: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a rendering that hold a text of message `index`.

    A content in which the template looks for constants may have several spans.
    """

    index: int
    kind: Kind
    start: int
    end: int


@dataclass(frozen=True)
class _Scaffold:
    """The template's own text: pieces[n] stands before the n-th sentinel, the last one at the end.

    order: the slot of the n-th sentinel; missing: slots without one.
    """

    pieces: list[str]
    order: list[int]
    missing: list[int]


class SpanFinder:
    """Finds spans; remembers the template's own text for conversations of the same shape.

    The shape is all of a conversation but its texts: as many renderings are saved as there are
    conversations that differ in their texts alone.

    constants: the strings that the template looks for in contents.
    """

    def __init__(self, render: Render, constants: Sequence[str] = ()) -> None:
        self._render = render
        longest_first = sorted(constants, key=len, reverse=True)
        alternatives = "|".join(re.escape(constant) for constant in longest_first)
        self._constants = re.compile(f"({alternatives})") if constants else None
        self._scaffolds: dict[str, _Scaffold | NotJudgeable] = {}

    def find(self, text: str, messages: Sequence[Message], tools: list[Any] | None) -> list[Span]:
        """Spans of all texts in `text`, the rendering of `messages`, in their order there.

        Raises NotJudgeable, whose text names the message that the template changed.
        """
        reasons: list[NotJudgeable] = []
        for hollow, slots in self._attempts(messages):
            try:
                return self._place(text, slots, self._scaffold(hollow, slots, tools), messages)
            except NotJudgeable as reason:
                reasons.append(reason)
        raise reasons[0]

    def _attempts(self, messages: Sequence[Message]) -> Iterator[tuple[list[Message], list[Slot]]]:
        """Ways of replacing texts: a template may test whether a content is empty, or look into it.

        Empty contents are anchors too, where the template does not mind.
        """
        seen: list[list[Message]] = []
        for split in (True, False):
            for fill_empty in (True, False):
                hollow, slots = self._hollow(messages, split=split, fill_empty=fill_empty)
                if hollow not in seen:
                    seen.append(hollow)
                    yield hollow, slots

    def _hollow(
        self, messages: Sequence[Message], *, split: bool, fill_empty: bool
    ) -> tuple[list[Message], list[Slot]]:
        slots: list[Slot] = []

        def fill(index: int, kind: Kind, text: str) -> str:
            if not text and not fill_empty:
                return text
            if split and self._constants is not None and self._constants.search(text):
                thinks = kind == "content" and not messages[index].get("reasoning_content")
                return self._fill_around_constants(index, kind, text, slots, thinks)
            slots.append(Slot(index, kind, text))
            return SENTINEL.format(len(slots) - 1)

        return [
            _fill_message(index, message, fill) for index, message in enumerate(messages)
        ], slots

    def _fill_around_constants(
        self, index: int, kind: Kind, text: str, slots: list[Slot], thinks: bool
    ) -> str:
        """Sentinels around constants; `thinks`: what stands before a closing tag is reasoning."""
        assert self._constants is not None
        filled, kept = "", ""
        first = len(slots)
        for number, piece in enumerate(self._constants.split(text)):
            if number % 2 or not piece.strip():
                if piece in REASONING_ENDS and thinks:
                    slots[first:] = [replace(slot, kind="reasoning") for slot in slots[first:]]
                filled, kept = filled + piece, kept + piece
            else:
                filled += SENTINEL.format(len(slots))
                slots.append(Slot(index, kind, piece, before=kept))
                kept = ""
        if len(slots) == first:  # nothing but constants: as a whole, it still has its place
            slots.append(Slot(index, kind, text))
            return SENTINEL.format(first)
        slots[-1] = replace(slots[-1], after=kept)
        return filled

    def _scaffold(
        self, hollow: list[Message], slots: list[Slot], tools: list[Any] | None
    ) -> _Scaffold:
        shape = repr((hollow, tools))
        if shape not in self._scaffolds:
            if len(self._scaffolds) == SHAPES_KEPT:
                self._scaffolds.clear()
            try:
                self._scaffolds[shape] = _take_apart(self._render(hollow, tools), slots)
            except NotJudgeable as reason:
                self._scaffolds[shape] = reason
            except (ValueError, jinja2.TemplateError) as error:
                self._scaffolds[shape] = NotJudgeable(
                    f"the template refuses other texts in the same places ({error})"
                )
        found = self._scaffolds[shape]
        if isinstance(found, NotJudgeable):
            raise found
        return found

    def _place(
        self, text: str, slots: list[Slot], scaffold: _Scaffold, messages: Sequence[Message]
    ) -> list[Span]:
        spans: list[Span] = []
        placed: set[int] = set()
        last = None
        pieces, position = scaffold.pieces, 0
        for number, lead in zip(scaffold.order, pieces, strict=False):
            slot, start = slots[number], position + len(lead)
            tail = pieces[len(spans) + 1]
            kept = _kept(slot.text, text, start, tail) if text.startswith(lead, position) else None
            if kept is None:
                at_fault = slot if text.startswith(lead, position) else last or slot
                raise _rewritten(at_fault, messages)
            position = start + len(kept)
            spans.append(_with_constants(slot, text, start, position))
            if number in placed:  # the name of a called function, told again with its result
                spans[-1] = replace(spans[-1], index=-1)
            placed.add(number)
            last = slot
        if text[position:] != pieces[-1]:
            missing = [slots[number] for number in scaffold.missing]
            raise _rewritten((missing or [last or slots[0]])[0], messages)
        return [span for span in spans if span.index >= 0]


def _rewritten(slot: Slot, messages: Sequence[Message]) -> NotJudgeable:
    role = messages[slot.index]["role"]
    return NotJudgeable(f"the template rewrites the {slot.kind} of message {slot.index} ({role})")


def _fill_message(index: int, message: Message, fill: Callable[[int, Kind, str], str]) -> Message:
    """A copy of a message with all its texts filled in."""
    filled = dict(message)
    if isinstance(reasoning := message.get("reasoning_content"), str) and reasoning:
        filled["reasoning_content"] = fill(index, "reasoning", reasoning)
    content = message.get("content")
    if isinstance(content, str):
        filled["content"] = fill(index, "content", content)
    elif isinstance(content, list):
        filled["content"] = [
            {**part, "text": fill(index, "content", part["text"])}
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]
    if calls := message.get("tool_calls"):
        filled["tool_calls"] = [_fill_call(index, call, fill) for call in calls]
    return filled


def _fill_call(index: int, call: Any, fill: Callable[[int, Kind, str], str]) -> Any:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return call
    named = {**function, "name": fill(index, "call", function["name"])}
    return {**call, "function": named} if "function" in call else named


def _take_apart(rendered: str, slots: list[Slot]) -> _Scaffold:
    pieces, order, position = [], [], 0
    for match in _SENTINEL.finditer(rendered):
        number = int(match[1])
        if number >= len(slots) or (number in order and slots[number].kind != "call"):
            where = f"message {slots[number].index}" if number < len(slots) else "a message"
            raise NotJudgeable(f"the template repeats the content of {where}")
        if rendered.endswith(PART_AS_PYTHON, position, match.start()):
            raise NotJudgeable(
                f"the template writes the parts of message {slots[number].index} as a Python list"
            )
        pieces.append(rendered[position : match.start()])
        order.append(number)
        position = match.end()
    missing = [number for number in range(len(slots)) if number not in order]
    return _Scaffold([*pieces, rendered[position:]], order, missing)


def _kept(slot: str, text: str, start: int, tail: str) -> str | None:
    """What the template kept of a text: all of it, or all but white space at its ends."""
    if text.startswith(slot, start) and text.startswith(tail, start + len(slot)):
        return slot
    for kept in trimmed_forms(slot):
        if text.startswith(kept, start) and text.startswith(tail, start + len(kept)):
            return kept
    return None


def trimmed_forms(text: str) -> Iterator[str]:
    """`text` without white space, or without line breaks, at its ends; longer forms first.

    Last, `text` as JSON writes it between quotes: some templates do so with results of tools.
    """
    fronts = dict.fromkeys((text, text.lstrip("\n"), text.lstrip()))
    forms = {back for front in fronts for back in (front, front.rstrip("\n"), front.rstrip())}
    yield from sorted(forms, key=lambda form: (-len(form), form))
    yield json.dumps(text, ensure_ascii=False)[1:-1]


def _with_constants(slot: Slot, text: str, start: int, end: int) -> Span:
    """The span of a slot, and of the constants beside it where the template left them in place."""
    if slot.before and text.endswith(slot.before, 0, start):
        start -= len(slot.before)
    if slot.after and text.startswith(slot.after, end):
        end += len(slot.after)
    return Span(slot.index, slot.kind, start, end)
