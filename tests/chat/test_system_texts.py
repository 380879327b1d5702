"""No text of a row is lost: system texts beside messages, reasoning by every name."""

from typing import Any

import pytest

from stages.chat.conversation import BadRow
from stages.reading.dialects import RowParser

TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def read(row: dict[str, Any]) -> list[dict[str, Any]]:
    return RowParser("auto").parse(row, "a:1").messages


@pytest.mark.parametrize(
    "row",
    [
        {"system": "S", "messages": TURNS},
        {"system": "S", "prompt": "q", "completion": "a"},
        {"system": "S", "prompt": TURNS[:1], "completion": TURNS[1:]},
        {"conversation": [{"system": "S", "human": "q", "assistant": "a"}]},
    ],
)
def test_a_system_text_beside_the_messages_is_the_first_of_them(row: dict[str, Any]) -> None:
    assert read(row) == [{"role": "system", "content": "S"}, *TURNS]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_one_name(name: str) -> None:
    said = read({"messages": [TURNS[0], {**TURNS[1], name: "r"}]})
    assert said[1]["reasoning_content"] == "r"


def test_two_kinds_of_calls_in_one_message_are_refused() -> None:
    call = {"name": "f", "arguments": {}}
    both = {**TURNS[1], "tool_calls": [{"function": call}], "function_call": call}
    with pytest.raises(BadRow, match="has both 'tool_calls' and 'function_call'"):
        read({"messages": [TURNS[0], both]})
