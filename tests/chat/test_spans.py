"""Spans are right to the character, or the row is not judged."""

from collections.abc import Sequence
from typing import Any

import jinja2
import pytest

from stages.chat.conversation import Message
from stages.chat.inspected import inspected_constants
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
    spans = SpanFinder(render, inspected_constants(template)).find(text, messages, None)
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


def test_what_a_template_writes_twice_is_not_judged() -> None:
    with pytest.raises(NotJudgeable, match="the template repeats the content of message 0"):
        find(REPEATING, "s", "a", "b")


def test_what_a_template_changes_is_not_judged() -> None:
    shouting = CHATML.replace("message['content'] +", "message['content'] | upper +")
    with pytest.raises(NotJudgeable, match=r"rewrites the content of message 0 \(system\)"):
        find(shouting, "S", "A", "b")


def test_a_content_that_a_template_leaves_out_has_no_span() -> None:
    assert find(DROPPING, "s", "a", "b") == ["a", "b"]


def test_a_template_that_looks_into_a_content_is_followed() -> None:
    assert find(INSPECTING, "s", "a", "x</think>b") == ["s", "a", "b"]
    assert find(INSPECTING, "s", "a", "b") == ["s", "a", "b"]


def test_what_json_escapes_is_found_as_it_is_written() -> None:
    quoting = "{% for m in messages %}<{{ m['content'] | tojson }}>{% endfor %}"
    assert find(quoting, "s", 'say "a"', "b") == ["s", 'say \\"a\\"', "b"]


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
