"""Every dialect says the same conversation; what none can say is refused with its reason."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.chat.conversation import ASSISTANT, BadRow, Conversation, Message
from stages.config.schema import Data
from stages.reading.dialects import DIALECTS, Dialect, RowParser, detect

USER = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
}
RESULT = {"role": "tool", "content": "2"}
BARE_TOOL = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": BARE_TOOL}

Row = dict[str, Any]


def parse(row: Any, setting: Any = "auto") -> Conversation:
    return RowParser(setting).parse(row, "rows.jsonl:1")


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": speaker, "value": text} for speaker, text in pairs]


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"messages": [SYSTEM, USER, ANSWER]}, [SYSTEM, USER, ANSWER]),
        (
            {"conversations": turns(("system", "s"), ("human", "a"), ("gpt", "b"))},
            [SYSTEM, USER, ANSWER],
        ),
        (
            {"conversations": turns(("user", "a"), ("chatgpt", "b")), "system": "s"},
            [SYSTEM, USER, ANSWER],
        ),
        (
            {
                "conversations": turns(
                    ("human", "a"),
                    ("function_call", '{"name": "f", "arguments": {"x": 1}}'),
                    ("observation", "2"),
                    ("bing", "b"),
                )
            },
            [USER, CALL, RESULT, ANSWER],
        ),
        (
            {
                "conversations": turns(
                    ("human", "a"),
                    ("function_call", '[{"name": "f", "arguments": "{\\"x\\": 1}"}]'),
                    ("tool", "2"),
                    ("bard", "b"),
                )
            },
            [USER, CALL, RESULT, ANSWER],
        ),
        ({"conversations": [USER, {"role": "gpt", "content": "b"}]}, [USER, ANSWER]),
        ({"conversation": [{"human": "a", "assistant": "b"}] * 2}, [USER, ANSWER] * 2),
        ({"conversation": turns(("human", "a"), ("gpt", "b"))}, [USER, ANSWER]),
        ({"instruction": "a", "input": "", "output": "b"}, [USER, ANSWER]),
        ({"instruction": "a", "input": None, "response": "b"}, [USER, ANSWER]),
        ({"instruction": "", "input": "a", "output": "b"}, [USER, ANSWER]),
        (
            {"instruction": "a", "input": "i", "output": "b"},
            [{"role": "user", "content": "a\ni"}, ANSWER],
        ),
        (
            {"instruction": "c", "output": "d", "history": [["a", "b"]], "system": "s"},
            [SYSTEM, USER, ANSWER, {"role": "user", "content": "c"}, {**ANSWER, "content": "d"}],
        ),
        (
            {"instruction": "a", "output": "b", "history": '[["a", "b"]]'},
            [USER, ANSWER, USER, ANSWER],
        ),
        ({"query": "a", "response": "b", "history": [], "system": "s"}, [SYSTEM, USER, ANSWER]),
        ({"prompt": "a", "completion": " b "}, [USER, {**ANSWER, "content": " b "}]),
        ({"prompt": [SYSTEM, USER], "completion": [ANSWER]}, [SYSTEM, USER, ANSWER]),
        (
            {"prompt": [USER, ANSWER, USER], "completion": [ANSWER]},
            [USER, {**ANSWER, "weight": 0}, USER, ANSWER],
        ),
        (
            {"prompt": [USER, {**ANSWER, "train": True}, USER], "completion": [ANSWER]},
            [USER, ANSWER, USER, ANSWER],
        ),
    ],
)
def test_a_dialect_is_known_by_its_keys_and_read_exactly(row: Row, messages: list[Message]) -> None:
    assert parse(row).messages == messages


def test_flags_of_a_turn_come_along_in_sharegpt() -> None:
    turn = {"from": "gpt", "value": "b", "train": False, "thinking": "c"}
    row = {"conversations": [*turns(("human", "a")), turn]}
    assert parse(row).messages[1] == {**ANSWER, "weight": 0, "reasoning_content": "c"}


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL])])
def test_tools_are_a_list_or_its_json(tools: Any) -> None:
    assert parse({"messages": [USER, ANSWER], "tools": tools}).tools == [TOOL]
    assert parse({"prompt": "a", "completion": "b", "tools": tools}).tools == [TOOL]


@pytest.mark.parametrize("tools", [None, [], "", " ", "[]", "null"])
def test_no_tools_are_none(tools: Any) -> None:
    assert parse({"messages": [USER, ANSWER], "tools": tools}).tools is None
    assert (
        parse({"conversations": turns(("human", "a"), ("gpt", "b")), "tools": tools}).tools is None
    )


def test_bare_functions_are_wrapped_where_a_dialect_has_them_so() -> None:
    said = {"conversations": turns(("human", "a"), ("gpt", "b"))}
    assert parse({**said, "tools": json.dumps([BARE_TOOL])}).tools == [TOOL]
    assert parse({**said, "tools": [TOOL]}).tools == [TOOL]
    assert parse({"instruction": "a", "output": "b", "tools": [BARE_TOOL]}).tools == [TOOL]
    assert parse({"messages": [USER, ANSWER], "functions": [BARE_TOOL]}).tools == [TOOL]
    assert parse({"messages": [USER, ANSWER], "tools": [BARE_TOOL]}).tools == [BARE_TOOL]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (["a"], "must be a JSON object, is list"),
        (BadRow("not valid JSON"), "not valid JSON"),
        ({}, "is of no known dialect (its keys: none)"),
        ({"mesages": []}, "(its keys: mesages): openai has 'messages', sharegpt 'conversations', "),
        ({"mesages": []}, "; did you mean 'messages'?"),
        ({str(key): 1 for key in range(9)}, "(its keys: 0, 1, 2, 3, 4, 5, 6, 7, ...)"),
        ({"input_ids": [1], "labels": [1]}, "are judged by `holdshort audit-labels`"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "holds 'chosen' or 'rejected'"),
        ({"conversations": [], "images": ["a.png"]}, "holds 'images'; only text"),
        ({"messages": []}, "has no 'messages' (a list of at least one message)"),
        ({"messages": "a"}, "has no 'messages'"),
        ({"messages": [1]}, "message 0 must be an object, is int"),
        ({"messages": [USER], "tools": {}, "functions": 1}, "'functions' must be a list, is int"),
        ({"messages": [USER], "tools": "{"}, "'tools' is not valid JSON"),
        ({"messages": [USER], "tools": '{"a": 1}'}, "'tools' must be a list, is dict"),
        ({"messages": [USER], "tools": ["a"]}, "'tools': item 0 must be an object, is str"),
        ({"conversations": None}, "has no 'conversations' (a list of at least one turn)"),
        ({"conversations": ["a"]}, "turn 0 of 'conversations' must be an object, is str"),
        ({"conversations": turns(("Human", "a"))}, "turn 0: 'from' is 'Human'; use human, user"),
        ({"conversations": turns(("hunan", "a"))}, "; did you mean 'human'?"),
        ({"conversations": [{"role": 1}]}, "turn 0: 'role' is 1"),
        ({"conversations": [{"from": "gpt"}]}, "message 0 (assistant) has no 'content'"),
        ({"conversation": [{"human": "a"}]}, "turn 0 must hold the text of a question and of an"),
        ({"conversation": [], "conversations": []}, "has no 'conversations'"),
        (
            {"conversation": [1], "conversations": [1]},
            "has both 'conversations' and 'conversation'",
        ),
        ({"conversations": turns(("function_call", "f(1)"))}, "'function_call' is not valid JSON"),
        ({"conversations": turns(("function_call", "[]"))}, "must be a call or a list of calls"),
        ({"conversations": turns(("function_call", "[1]"))}, "a tool call must be an object"),
        ({"conversations": [{"from": "function_call", "value": {}}]}, "must be JSON text, is dict"),
        ({"conversations": turns(("system", "s"), ("gpt", "b")), "system": "t"}, "keep one"),
        ({"instruction": "", "output": "b"}, "has no text in 'instruction'"),
        ({"instruction": 1, "output": "b"}, "'instruction' must be text, is int"),
        ({"instruction": "a", "output": None}, "has no 'output' (or 'response')"),
        ({"instruction": "a", "output": ["b", "c"]}, "'output' must be text, is list"),
        ({"instruction": "a", "output": "b", "response": "c"}, "has both 'output' and 'response'"),
        ({"instruction": "a", "context": "c", "response": "b"}, "rename the key"),
        ({"instruction": "a", "output": "b", "system": 1}, "'system' must be text, is int"),
        ({"instruction": "a", "output": "b", "history": 1}, "'history' must be a list of pairs"),
        ({"instruction": "a", "output": "b", "history": [["a"]]}, "item 0 is no pair"),
        (
            {"query": "a", "response": "b", "history": [["a", None]]},
            "item 0 of 'history' must hold",
        ),
        (
            {"prompt": "a", "completion": [ANSWER]},
            "must be texts or lists of messages, are str and",
        ),
        ({"prompt": [], "completion": []}, "must be texts or lists of messages, are list and list"),
    ],
)
def test_a_row_that_is_no_conversation_says_why(row: Any, reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        parse(row)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_of_one_dialect() -> None:
    parser = RowParser("auto")
    with pytest.raises(BadRow, match="no known dialect"):
        parser.parse({"text": "a"}, "rows.jsonl:1")
    parser.parse({"messages": [USER, ANSWER]}, "rows.jsonl:2")
    with pytest.raises(BadRow) as caught:
        parser.parse({"conversations": turns(("human", "a"))}, "rows.jsonl:3")
    assert str(caught.value) == (
        "is sharegpt, the file began as openai; set data.dialect or split the file"
    )
    with pytest.raises(BadRow, match="has no 'messages'"):
        parser.parse({"text": "a"}, "rows.jsonl:4")
    assert parser.dialect == "openai"


def test_a_row_with_the_keys_of_several_dialects_is_of_the_one_that_is_set() -> None:
    row = {"messages": [USER, ANSWER], "prompt": "c", "completion": "d"}
    assert parse(row, "openai").messages == [USER, ANSWER]
    assert parse(row, "prompt_completion").messages[0]["content"] == "c"
    with pytest.raises(
        BadRow,
        match=r"is both openai \('messages'\) and prompt_completion \('completion', 'prompt'\);",
    ):
        parse(row)
    with pytest.raises(BadRow, match=r"is openai, data\.dialect is alpaca; set"):
        parse(row, "alpaca")


def test_empty_keys_beside_a_conversation_do_not_matter() -> None:
    row = {"messages": [USER, ANSWER], "images": [], "input_ids": [1], "chosen": "c"}
    assert parse(row).messages == [USER, ANSWER]


def test_every_dialect_can_be_set() -> None:
    (choices,) = (hint.__args__ for key, hint in Data.__annotations__.items() if key == "dialect")
    assert choices == ("auto", *DIALECTS)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda below: st.lists(below, max_size=2) | st.dictionaries(TEXT, below, max_size=2),
    max_leaves=4,
)


@st.composite
def calls(draw: st.DrawFn) -> Message:
    function = st.fixed_dictionaries(
        {"name": TEXT, "arguments": st.dictionaries(TEXT, JSON, max_size=2)}
    )
    call = st.fixed_dictionaries({"type": st.just("function"), "function": function})
    return {
        "role": ASSISTANT,
        "content": "",
        "tool_calls": draw(st.lists(call, min_size=1, max_size=2)),
    }


@st.composite
def conversations(draw: st.DrawFn) -> Row:
    """A row in OpenAI's form: an optional system turn, then exchanges, some of them with calls."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXT)})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(TEXT)})
        if draw(st.integers(0, 3)) == 0:
            messages += [draw(calls()), {"role": "tool", "content": draw(TEXT)}]
        answer = {"role": ASSISTANT, "content": draw(TEXT)}
        messages.append(answer | draw(st.sampled_from([{}, {}, {"weight": 0}])))
    schema = st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": TEXT, "parameters": st.dictionaries(TEXT, JSON, max_size=2)}
            ),
        }
    )
    return {"messages": messages, "tools": draw(st.lists(schema, max_size=2))}


def as_strings(row: Row) -> Row:
    """OpenAI's own form, with the JSON of tools and arguments as text, and nulls."""
    messages = json.loads(json.dumps(row["messages"]))
    for message in messages:
        message.update({key: message.get(key) for key in ("content", "name", "tool_calls")})
        for call in message["tool_calls"] or ():
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return {"messages": messages, "tools": json.dumps(row["tools"]), "id": 7}


def as_sharegpt(row: Row) -> Row:
    speakers = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}
    said = []
    for message in row["messages"]:
        turn = {"from": speakers[message["role"]], "value": message.get("content")}
        if "tool_calls" in message:
            functions = [call["function"] for call in message["tool_calls"]]
            calls = functions[0] if len(functions) == 1 else functions
            turn = {"from": "function_call", "value": json.dumps(calls)}
        if "weight" in message:
            turn["train"] = False
        said.append(turn)
    functions = [tool["function"] for tool in row["tools"]]
    return {"conversations": said, "tools": json.dumps(functions)}


def as_chat(row: Row) -> Row:
    """role and content under the key that ShareGPT uses, the system text beside it."""
    system, rest = split_system(row["messages"])
    return {"conversations": rest, "tools": row["tools"], "system": system}


def as_pairs(row: Row) -> Row | None:
    pairs, system = exchanges(row), split_system(row["messages"])[0]
    said = [{"human": question, "assistant": answer} for question, answer in pairs or ()]
    return {"conversation": said, "system": system, "tools": row["tools"]} if said else None


def as_alpaca(row: Row) -> Row | None:
    pairs, system = exchanges(row), split_system(row["messages"])[0]
    if pairs is None:
        return None
    question, answer = pairs[-1]
    instruction, _, rest = question.partition("\n")
    if not instruction or not rest:
        instruction, rest = question, ""
    return {
        "instruction": instruction,
        "input": rest,
        "output": answer,
        "history": pairs[:-1],
        "system": system,
        "tools": row["tools"],
    }


def as_query(row: Row) -> Row | None:
    alpaca = as_alpaca(row)
    if alpaca is None:
        return None
    asked = "\n".join(filter(None, (alpaca.pop("instruction"), alpaca.pop("input"))))
    return {"query": asked, "response": alpaca.pop("output"), **alpaca}


def as_prompt_texts(row: Row) -> Row | None:
    pairs = exchanges(row)
    if pairs is None or len(pairs) > 1 or split_system(row["messages"])[0]:
        return None
    return {"prompt": pairs[0][0], "completion": pairs[0][1], "tools": row["tools"]}


def as_prompt_messages(row: Row) -> Row | None:
    """All but the last answer is prompt, which cannot hold answers that are trained on."""
    *prompt, last = row["messages"]
    answers = [message for message in prompt if message["role"] == ASSISTANT]
    if not all("weight" in message for message in answers):
        return None
    hollow = [{k: v for k, v in message.items() if k != "weight"} for message in prompt]
    return {"prompt": hollow, "completion": [last], "tools": row["tools"]}


def split_system(messages: list[Message]) -> tuple[str | None, list[Message]]:
    if messages[0]["role"] == "system":
        return messages[0]["content"], messages[1:]
    return None, messages


def exchanges(row: Row) -> list[list[str]] | None:
    """Pairs of question and answer; None where they are not all of a conversation."""
    rest = split_system(row["messages"])[1]
    if any(message.keys() != {"role", "content"} or message["role"] == "tool" for message in rest):
        return None
    return [[a["content"], b["content"]] for a, b in zip(rest[::2], rest[1::2], strict=True)]


WRITERS: dict[Callable[[Row], Row | None], Dialect] = {
    as_strings: "openai",
    as_sharegpt: "sharegpt",
    as_chat: "sharegpt",
    as_pairs: "sharegpt",
    as_alpaca: "alpaca",
    as_query: "alpaca",
    as_prompt_texts: "prompt_completion",
    as_prompt_messages: "prompt_completion",
}


@given(conversations())
def test_a_conversation_is_the_same_in_every_dialect_that_can_say_it(row: Row) -> None:
    wanted = parse(row)
    for write, dialect in WRITERS.items():
        written = write(row)
        if written is not None:
            assert detect(written) == dialect
            said = parse(json.loads(json.dumps(written)))
            assert (said.messages, said.tools) == (wanted.messages, wanted.tools), dialect
            assert said.id == wanted.id


@pytest.mark.parametrize("write", WRITERS)
def test_the_property_covers_every_way_to_write(write: Callable[[Row], Row | None]) -> None:
    assert write({"messages": [USER, ANSWER], "tools": [TOOL]}) is not None
