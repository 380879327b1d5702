"""Spans are right to the character, or the row is not judged."""

from collections.abc import Sequence
from typing import Any

import jinja2
import pytest

from stages.chat.conversation import Message
from stages.chat.spans import NotJudgeable, SpanFinder

from .tokenizers import CHATML

TRIMMING = CHATML.replace("message['content'] +", "message['content'] | trim +")
REPEATING = "{% for m in messages %}<{{ m['content'] }}|{{ m['content'] }}>{% endfor %}"
DROPPING = (
    "{% for m in messages %}{% if m['role'] != 'system' %}<{{ m['content'] }}>{% endif %}"
    "{% endfor %}"
)
INSPECTING = (
    "{% for m in messages %}{% if '</think>' in m['content'] %}"
    "<{{ m['content'].split('</think>')[-1] }}>{% else %}<{{ m['content'] }}>{% endif %}"
    "{% endfor %}"
)


def find(template: str, *contents: str) -> list[str]:
    """What the spans of a rendered conversation hold."""
    compiled = jinja2.Environment(trim_blocks=True).from_string(template)
    roles = ("system", "user", "assistant", "user", "assistant")
    messages: list[Message] = [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=False)
    ]

    def render(turns: Sequence[Message], tools: list[Any] | None) -> str:
        return compiled.render(messages=turns, tools=tools)

    text = render(messages, None)
    spans = SpanFinder(render).find(text, messages, None)
    return [text[span.start : span.end] for span in spans]


@pytest.mark.parametrize(
    "contents",
    [
        ("s", "a", "b"),
        ("same", "same", "same"),
        ("", "", ""),
        ("[[1, 2], [3]]", "<|im_end|>\n<|im_start|>user\n", "assistant\n"),
        ("  leading", "trailing \r\n", "\n\n"),
        ("émoji 😀", "\u2060", "</think>"),
    ],
)
def test_verbatim_contents_are_found(contents: tuple[str, ...]) -> None:
    assert find(CHATML, *contents) == list(contents)


def test_trimmed_contents_are_found_without_what_was_trimmed() -> None:
    assert find(TRIMMING, " s ", "\na", "b\n\n") == ["s", "a", "b"]


@pytest.mark.parametrize(
    ("template", "contents", "reason"),
    [
        (REPEATING, ("s", "a", "b"), "repeats the content of message 0 (system)"),
        (DROPPING, ("s", "a", "b"), "drops the content of message 0 (system)"),
        (INSPECTING, ("s", "a", "x</think>b"), "rewrites the content of message 2 (assistant)"),
    ],
)
def test_what_a_template_rewrites_is_not_judged(
    template: str, contents: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(NotJudgeable, match="the template ") as caught:
        find(template, *contents)
    assert reason in str(caught.value)


def test_conversations_of_one_shape_share_one_rendering_of_sentinels() -> None:
    compiled = jinja2.Environment().from_string(CHATML)
    calls = []

    def render(turns: Sequence[Message], tools: list[Any] | None) -> str:
        calls.append(turns)
        return compiled.render(messages=turns)

    finder = SpanFinder(render)
    for content in ("a", "b", "c"):
        messages: list[Message] = [{"role": "user", "content": content}]
        finder.find(compiled.render(messages=messages), messages, None)
    assert len(calls) == 1
