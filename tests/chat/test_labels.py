"""Roles and labels, written out token by token."""

from typing import Literal

import pytest

from stages.chat.conversation import Message
from stages.chat.labels import (
    Labelled,
    Role,
    label_conversation,
    supervised_runs,
    supervised_turns,
)
from stages.chat.spans import SpanFinder
from stages.chat.tokenizer import ChatTokenizer

from ..settings import make_params
from .tokenizers import chat_tokenizer

TWO_TURNS: list[Message] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cd"},
    {"role": "user", "content": "e"},
    {"role": "assistant", "content": "f"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def label(
    tokenizer: ChatTokenizer, messages: list[Message], turns: Literal["all", "last"] = "all"
) -> Labelled:
    text = tokenizer.render(messages)
    spans = SpanFinder(lambda turns, tools: tokenizer.render(turns, tools)).find(
        text, messages, None
    )
    policy = make_params(labels__turns=turns).labels
    return label_conversation(tokenizer.encode([text])[0], text, messages, spans, tokenizer, policy)


def marked(tokenizer: ChatTokenizer, row: Labelled) -> str:
    """The text with every supervised token in brackets."""
    shown = []
    for token, target in zip(row.input_ids.tolist(), row.labels.tolist(), strict=True):
        text = tokenizer.decode([token])
        assert target in (token, -100)
        shown.append(f"[{text}]" if target == token else text)
    return "".join(shown)


def test_exactly_answers_and_their_stop_tokens_are_supervised(tokenizer: ChatTokenizer) -> None:
    assert marked(tokenizer, label(tokenizer, TWO_TURNS)) == (
        "<|im_start|>system\ns<|im_end|>\n"
        "<|im_start|>user\nab<|im_end|>\n"
        "<|im_start|>assistant\n[c][d][<|im_end|>]\n"
        "<|im_start|>user\ne<|im_end|>\n"
        "<|im_start|>assistant\n[f][<|im_end|>]\n"
    )


def test_the_last_turn_alone_can_be_supervised(tokenizer: ChatTokenizer) -> None:
    text = marked(tokenizer, label(tokenizer, TWO_TURNS, "last"))
    assert text.count("[") == 2
    assert text.endswith("assistant\n[f][<|im_end|>]\n")


def test_a_turn_of_weight_0_is_masked(tokenizer: ChatTokenizer) -> None:
    messages = [dict(message) for message in TWO_TURNS]
    messages[2]["weight"] = 0
    text = marked(tokenizer, label(tokenizer, messages))
    assert "assistant\ncd<|im_end|>\n" in text
    assert supervised_turns(messages, "all") == [4]


def test_an_empty_answer_supervises_its_stop_token(tokenizer: ChatTokenizer) -> None:
    messages: list[Message] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
    ]
    assert marked(tokenizer, label(tokenizer, messages)).endswith("assistant\n[<|im_end|>]\n")


def test_every_token_has_the_role_of_what_put_it_there(tokenizer: ChatTokenizer) -> None:
    messages: list[Message] = [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
    ]
    roles = [Role(role).name for role in label(tokenizer, messages).roles]
    user_header, assistant_header = len("user\n") + 1, len("assistant\n") + 1
    assert roles == (
        ["SCAFFOLD"] * user_header
        + ["USER"] * 2
        + ["SCAFFOLD"] * 2
        + ["HEADER"] * assistant_header
        + ["CONTENT", "STOP", "SCAFFOLD"]
    )


def test_runs_are_the_unbroken_supervised_stretches(tokenizer: ChatTokenizer) -> None:
    labels = label(tokenizer, TWO_TURNS).labels
    runs = supervised_runs(labels)
    assert [end - start for start, end in runs] == [3, 2]
    assert all(labels[start] != -100 and labels[end] == -100 for start, end in runs)


def test_a_cut_row_keeps_what_comes_first(tokenizer: ChatTokenizer) -> None:
    row = label(tokenizer, TWO_TURNS)
    cut = row.first(7)
    assert cut.input_ids.tolist() == row.input_ids[:7].tolist()
    assert (len(cut.labels), len(cut.roles)) == (7, 7)
