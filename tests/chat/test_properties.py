"""Over random conversations: what is supervised is what was said, or the row is reported."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.chat.conversation import Conversation, Message
from stages.chat.labels import supervised_runs
from stages.chat.tokenizer import ChatTokenizer
from stages.mask_audit.findings import Audit
from stages.mask_audit.prepare import Preparer

from ..settings import make_params
from .tokenizers import CHATML, chat_tokenizer

TRIMMING = CHATML.replace("message['content'] +", "message['content'] | trim +")
THINKING = """\
{%- for message in messages -%}
{%- set said = message['content'] -%}
{%- set thought = message['reasoning_content'] if message['reasoning_content'] else '' -%}
{%- if message['role'] == 'assistant' and '</think>' in said -%}
{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}
{%- set said = said.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>' ~ message['role'] ~ '\\n' -}}
{%- if message['role'] == 'assistant' and loop.last -%}
{{- '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- said ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
TEMPLATES = {"chatml": CHATML, "trimming": TRIMMING, "thinking": THINKING}

PIECES = st.sampled_from(
    [
        *("a", "b", " ", "\n", "\n\n", "\r\n", "assistant", "user", "system", "[[", "]]", "{}"),
        *("<|im_start|>", "<|im_end|>", "<think>", "</think>", "é", "😀", "\u200d", "\u2060", "0"),
        *("<|im_start|>assistant\n", "{{ x }}", "qZ0Zq", "\t", "\x00", "日本"),
    ]
)
TEXT = st.lists(PIECES, max_size=6).map("".join)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXT)})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(TEXT)})
        answer = {"role": "assistant", "content": draw(TEXT)}
        if draw(st.booleans()):
            answer["reasoning_content"] = draw(TEXT)
        messages.append(answer)
    return messages


@pytest.fixture(scope="module", params=TEMPLATES)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ChatTokenizer:
    directory: Path = tmp_path_factory.mktemp(request.param)
    return chat_tokenizer(directory, TEMPLATES[request.param])


@contextmanager
def shown(messages: list[Message], text: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"{messages!r}\n{text!r}")
        raise


SERIOUS = {
    *("prompt_supervised", "header_supervised", "scaffold_differs", "content_masked"),
    *("reasoning_differs", "stop_masked", "label_differs_from_input"),
    *("content_dropped", "stop_missing"),
}


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(messages=conversations())
def test_supervised_text_is_what_was_said_or_the_row_is_reported(
    tokenizer: ChatTokenizer, messages: list[Message]
) -> None:
    params = make_params(data__max_length=10_000, model__max_length=10_000)
    audit = Audit()
    preparer = Preparer(tokenizer, params.data, params.labels)
    (prepared,) = preparer.prepare([Conversation("id", "a:1", messages)], audit)
    if prepared.dropped:
        assert prepared.detail
        return
    assert prepared.row is not None
    kinds = {finding.kind for finding in prepared.findings}
    if kinds & SERIOUS:
        return  # reported: this fails the gate
    row = prepared.row
    with shown(messages, prepared.text):
        supervised = "".join(
            tokenizer.decode(row.input_ids[start:end].tolist())
            for start, end in supervised_runs(row.labels)
        )
        position = 0
        for message in messages:
            if message["role"] == "assistant":
                tail = message["content"].split("</think>")[-1].strip()
                found = supervised.find(tail, position)
                assert found >= 0
                position = found + len(tail)
        stops = [message for message in messages if message["role"] == "assistant"]
        assert supervised.count("<|im_end|>") >= len(stops)
        tags = len("<think>\n\n</think>\n\n<|im_end|>")
        said = [(m["content"], m.get("reasoning_content", "")) for m in stops]
        assert len(supervised) <= sum(len(one) + len(other) + tags for one, other in said)


def test_plain_conversations_are_never_reported(tokenizer: ChatTokenizer) -> None:
    """No alarm over what people write: letters, punctuation and line breaks."""
    params = make_params(data__max_length=10_000, model__max_length=10_000)
    preparer = Preparer(tokenizer, params.data, params.labels)
    plain = st.text("abc ABC.,!?\n", min_size=1, max_size=20).filter(str.strip)
    turn = st.tuples(plain, plain)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(turn, min_size=1, max_size=3))
    def check(turns: list[tuple[str, str]]) -> None:
        messages: list[Message] = []
        for asked, said in turns:
            messages += [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": said},
            ]
        audit = Audit()
        (prepared,) = preparer.prepare([Conversation("id", "a:1", messages)], audit)
        assert prepared.dropped is None, prepared.detail
        assert {finding.kind for finding in prepared.findings} <= {"content_trimmed"}, messages

    check()
