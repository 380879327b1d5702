"""Which characters of a rendered conversation did each message put there?

The contents of all messages are replaced by sentinels and the whole conversation is rendered; what
stands between the sentinels is the template's own text. If the real rendering is exactly that text
with the contents in place of the sentinels, every span is known to the character. No part of a
conversation is ever rendered alone, since templates treat last turns and histories differently.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .conversation import Message

SENTINEL = "\u2060content{}\u2060"
"""Word joiners survive trimming and JSON escaping, and real text does not hold them by chance."""

Render = Callable[[Sequence[Message], list[Any] | None], str]


class NotJudgeable(ValueError):
    """The template rewrites what it is given, so that its spans are not certain."""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a rendering that hold the content of message `index`."""

    index: int
    start: int
    end: int


class SpanFinder:
    """Finds spans; remembers the template's own text for conversations of the same shape.

    The shape is all of a conversation but its contents: as many renderings are saved as there are
    conversations that differ in their contents alone.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._scaffolds: dict[str, list[str]] = {}

    def find(self, text: str, messages: Sequence[Message], tools: list[Any] | None) -> list[Span]:
        """Spans of the contents in `text`, the rendering of `messages`, in their order.

        Raises NotJudgeable, whose text names the message that the template changed.
        """
        for index, message in enumerate(messages):
            if not isinstance(message.get("content"), str):
                raise NotJudgeable(f"message {index} ({message['role']}) has no text content")
        scaffold = self._scaffold(messages, tools)
        spans, position = [], 0
        for index, message in enumerate(messages):
            lead, content = scaffold[index], message["content"]
            start = position + len(lead)
            if text[position:start] != lead:
                raise NotJudgeable(self._changed(messages, index - 1))
            kept = self._kept(content, text, start, scaffold[index + 1])
            if kept is None:
                raise NotJudgeable(self._changed(messages, index))
            spans.append(Span(index, start, start + len(kept)))
            position = start + len(kept)
        if text[position:] != scaffold[-1]:
            raise NotJudgeable(self._changed(messages, len(messages) - 1))
        return spans

    def _kept(self, content: str, text: str, start: int, tail: str) -> str | None:
        """What the template kept of `content`: all of it, or all but white space at its ends."""
        for kept in (content, content.strip(), content.rstrip(), content.lstrip()):
            if text.startswith(kept, start) and text.startswith(tail, start + len(kept)):
                return kept
        return None

    def _scaffold(self, messages: Sequence[Message], tools: list[Any] | None) -> list[str]:
        """The template's own text: before the first content, between contents, after the last."""
        fixed = [{k: v for k, v in message.items() if k != "content"} for message in messages]
        shape = repr((fixed, tools))
        if shape not in self._scaffolds:
            sentinels = [SENTINEL.format(index) for index in range(len(messages))]
            hollow = [
                {**message, "content": sentinel}
                for message, sentinel in zip(messages, sentinels, strict=True)
            ]
            rest = self._render(hollow, tools)
            pieces = []
            for index, sentinel in enumerate(sentinels):
                piece, found, rest = rest.partition(sentinel)
                if not found or sentinel in rest:
                    raise NotJudgeable(
                        f"the template {'repeats' if found else 'drops'} the content of "
                        f"message {index} ({messages[index]['role']})"
                    )
                pieces.append(piece)
            self._scaffolds[shape] = [*pieces, rest]
        return self._scaffolds[shape]

    def _changed(self, messages: Sequence[Message], index: int) -> str:
        role = messages[max(index, 0)]["role"]
        return f"the template rewrites the content of message {max(index, 0)} ({role})"
