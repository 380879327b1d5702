"""A line of JSON becomes a conversation, known by what it says."""

import json

import pytest

from stages.chat.conversation import (
    BadRow,
    Conversation,
    first_answer,
    is_empty_answer,
    parse_conversation,
    prompt_key,
)


def parse(*turns: tuple[str, str], **rest: object) -> Conversation:
    messages = [{"role": role, "content": content} for role, content in turns]
    return parse_conversation(json.dumps({"messages": messages, **rest}).encode(), "a.jsonl:1")


def test_unknown_keys_are_left_out_and_known_ones_kept() -> None:
    line = json.dumps(
        {
            "id": 7,
            "messages": [
                {"role": "user", "content": "a", "mood": "good", "name": None},
                {"role": "assistant", "content": "b", "weight": 0, "reasoning_content": "c"},
            ],
        }
    )
    assert parse_conversation(line.encode(), "a.jsonl:1").messages == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "c", "weight": 0},
    ]


def test_the_id_is_of_what_is_said_alone() -> None:
    one = parse(("user", "a"), ("assistant", "b"))
    other = parse_conversation(
        b'{"x": 1, "messages": [{"content": "a", "role": "user"}, '
        b'{"content": "b", "role": "assistant"}]}',
        "b.jsonl:9",
    )
    assert one.id == other.id
    assert len(one.id) == 32
    assert parse(("user", "a"), ("assistant", "c")).id != one.id
    assert parse(("user", "a"), ("assistant", "b"), tools=[{"name": "t"}]).id != one.id


def test_the_prompt_is_all_before_the_first_answer() -> None:
    short = parse(("system", "s"), ("user", "a"), ("assistant", "b"))
    long = parse(("system", "s"), ("user", "a"), ("assistant", "c"), ("user", "d"))
    assert prompt_key(short) == prompt_key(long)
    assert prompt_key(parse(("user", "a"), ("assistant", "b"))) != prompt_key(short)
    assert (first_answer(short.messages), first_answer(short.messages[:2])) == (2, 2)


@pytest.mark.parametrize(
    ("message", "empty"),
    [
        ({"role": "assistant", "content": ""}, True),
        ({"role": "assistant", "content": " \n"}, True),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, False),
        ({"role": "assistant", "content": "x"}, False),
        ({"role": "user", "content": ""}, False),
    ],
)
def test_an_answer_is_empty_when_it_says_and_calls_nothing(
    message: dict[str, object], empty: bool
) -> None:
    assert is_empty_answer(message) is empty


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}', "not UTF-8 (byte 43 of"),
        (b'"a"', "must be a JSON object with 'messages', is str"),
        (b"{}", "has no 'messages'"),
        (b'{"messages": []}', "has no 'messages'"),
        (b'{"messages": [{"role": "", "content": "a"}]}', "message 0 has no 'role'"),
        (b'{"messages": [{"role": "user", "content": {}}]}', "'content' must be text, is dict"),
        (b'{"messages": [{"role": "user", "content": "a"}], "tools": 1}', "'tools' must be a list"),
    ],
)
def test_a_line_that_is_no_conversation_says_why(line: bytes, reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        parse_conversation(line, "a.jsonl:1")
    assert reason in str(caught.value)
