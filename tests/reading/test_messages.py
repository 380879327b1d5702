"""Messages of every spelling have one normal form; what cannot be honoured is refused."""

from typing import Any

import pytest

from stages.chat.conversation import BadRow
from stages.reading.messages import normalise_message

CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def answer(**keys: Any) -> dict[str, Any]:
    return normalise_message({"role": "assistant", "content": "b", **keys}, 3)


def calling(calls: Any) -> dict[str, Any]:
    return normalise_message({"role": "assistant", "content": None, "tool_calls": calls}, 3)


def test_unknown_and_null_keys_are_left_out_and_known_ones_kept() -> None:
    assert normalise_message({"role": "user", "content": "a", "mood": "good", "name": None}, 0) == {
        "role": "user",
        "content": "a",
    }
    assert normalise_message({"role": "tool", "content": "a", "tool_call_id": "7"}, 0) == {
        "role": "tool",
        "content": "a",
        "tool_call_id": "7",
    }


def test_parts_of_a_content_are_kept() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]
    assert normalise_message({"role": "user", "content": parts}, 0)["content"] == parts


@pytest.mark.parametrize("flag", ["weight", "train", "training", "loss", "loss_weight"])
def test_a_flag_against_training_is_weight_0(flag: str) -> None:
    trained = {"role": "assistant", "content": "b"}
    for off in (0, 0.0, False):
        assert answer(**{flag: off}) == {**trained, "weight": 0}
    for on in (1, 1.0, True, None):
        assert answer(**{flag: on}) == trained


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"weight": 0.5}, "message 3 (assistant): 'weight' is 0.5; use 0 or 1"),
        ({"train": "no"}, "'train' is 'no'; use 0 or 1"),
        ({"train": True, "weight": 0}, "'train' and 'weight' contradict each other"),
        ({"role": "user", "train": True}, "only assistant turns can be supervised"),
    ],
)
def test_a_flag_that_cannot_be_honoured_is_refused(message: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        answer(**message)
    assert reason in str(caught.value)


def test_a_user_turn_may_be_said_not_to_be_trained_on() -> None:
    assert normalise_message({"role": "user", "content": "a", "train": False}, 0)["weight"] == 0
    assert "weight" not in normalise_message({"role": "user", "content": "a", "weight": 1}, 0)


def test_thinking_is_reasoning_content() -> None:
    assert answer(thinking="c")["reasoning_content"] == "c"
    assert answer(reasoning_content="c", thinking="c")["reasoning_content"] == "c"
    assert "thinking" not in answer(thinking="c")
    with pytest.raises(BadRow, match="has both 'reasoning_content' and 'thinking'"):
        answer(reasoning_content="c", thinking="d")


def test_arguments_become_an_object_where_they_are_one() -> None:
    for arguments, wanted in [
        ({"x": 1}, {"x": 1}),
        ('{"x": 1}', {"x": 1}),
        ("", ""),
        ("[1]", "[1]"),
        ('{"x": ', '{"x": '),
        ("\ud800", "\ud800"),
    ]:
        (call,) = calling([{"function": {"name": "f", "arguments": arguments}}])["tool_calls"]
        assert call["function"]["arguments"] == wanted


def test_a_bare_call_is_wrapped_and_a_wrapped_one_kept() -> None:
    assert calling([{"name": "f", "arguments": '{"x": 1}'}]) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [CALL],
    }
    full = {"id": "7", **CALL}
    assert calling([full, {**full, "index": None}])["tool_calls"] == [full, full]


def test_the_older_form_of_a_call_and_its_result_is_read() -> None:
    call = {"name": "f", "arguments": '{"x": 1}'}
    message = {"role": "assistant", "content": None, "function_call": call}
    assert normalise_message(message, 0)["tool_calls"] == [CALL]
    result = {"role": "function", "name": "f", "content": "2"}
    assert normalise_message(result, 0) == {"role": "tool", "name": "f", "content": "2"}


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ("f", "'tool_calls' must be a list, is str"),
        (["f"], "a tool call must be an object, is str"),
        ([{"function": "f"}], "'function' of a tool call is str, no object"),
        ([{"arguments": {}}], "a tool call has no 'name'"),
        ([{"name": "f"}], "the call of 'f' has no 'arguments'"),
        ([], "message 3 (assistant) has no 'content'"),
    ],
)
def test_a_call_that_cannot_be_rendered_is_refused(calls: Any, reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        calling(calls)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("a", "message 3 must be an object, is str"),
        ({"content": "a"}, "message 3 has no 'role'"),
        ({"role": "", "content": "a"}, "message 3 has no 'role'"),
        ({"role": "user"}, "message 3 (user) has no 'content'"),
        ({"role": "user", "content": {}}, "message 3: 'content' must be text, is dict"),
        ({"role": "user", "content": [1]}, "a part of 'content' is int, not an object"),
        ({"role": "user", "content": "a", "thinking": 1}, "'thinking' must be text"),
    ],
)
def test_what_is_no_message_says_why(message: Any, reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        normalise_message(message, 3)
    assert reason in str(caught.value)
