"""A row becomes a conversation, known by what it says."""

from pathlib import Path

import msgspec
import pytest

from stages.chat.conversation import (
    Conversation,
    first_answer,
    is_empty_answer,
    prompt_key,
    read_conversations,
)
from stages.config import UserError
from stages.reading.dialects import RowParser


def parse(*turns: tuple[str, str], **rest: object) -> Conversation:
    messages = [{"role": role, "content": content} for role, content in turns]
    return RowParser("openai").parse({"messages": messages, **rest}, "a.jsonl:1")


def test_the_id_is_of_what_is_said_alone() -> None:
    one = parse(("user", "a"), ("assistant", "b"))
    messages = [{"content": "a", "role": "user"}, {"content": "b", "role": "assistant"}]
    other = RowParser("openai").parse({"x": 1, "messages": messages}, "b.jsonl:9")
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


def test_a_damaged_line_of_a_split_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    whole = msgspec.json.encode(parse(("user", "a"), ("assistant", "b")))
    path.write_bytes(whole + b"\n" + whole[:20])
    with pytest.raises(UserError, match=r"train\.jsonl:2 is damaged .+; `dvc repro hash_data`"):
        list(read_conversations(path))
