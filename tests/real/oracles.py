# ruff: noqa: RUF001 - DeepSeek's control tokens hold a full-width bar
"""What each family's chat template writes, by rules read from it and coded by hand.

An oracle turns a conversation into pieces of text, each with the role of what put it there. No
template is called: that an oracle's text equals its template's is a test of the oracle.

A message has no key whose value is None, as transformers passes it to a template. Templates then
meet jinja's Undefined, which iterates as empty and raises when it is added to text.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stages.chat.conversation import Message

PieceRole = Literal[
    "bos",
    "system",
    "user",
    "tool",
    "header",
    "content",
    "reasoning",
    "tool_call",
    "stop",
    "scaffold",
]


class Refused(Exception):
    """The template raises on this conversation."""


@dataclass(frozen=True)
class Piece:
    """turn: index of the assistant message that the text belongs to, header to stop token."""

    text: str
    role: PieceRole
    turn: int | None = None


@dataclass
class Written:
    """A rendered conversation. lost: index of a message (-1: the tools) -> what the template
    leaves out of it or spoils; white space trimmed at its ends is no loss."""

    pieces: list[Piece] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def put(self, text: str, role: PieceRole = "scaffold", turn: int | None = None) -> None:
        if text:
            self.pieces.append(Piece(text, role, turn))

    def lose(self, index: int, what: str) -> None:
        self.lost[index] = f"{self.lost[index]}, {what}" if index in self.lost else what


Oracle = Callable[[Sequence[Message], list[Any] | None], Written]


def without_none(messages: Sequence[Message]) -> list[Message]:
    return [{k: v for k, v in message.items() if v is not None} for message in messages]


def _added(message: Message) -> str:
    """`'text' + message.content`: text only."""
    content = message.get("content")
    if not isinstance(content, str):
        raise Refused(f"{type(content).__name__} added to text")
    return content


def _trimmed(message: Message, index: int, out: Written) -> str:
    """`message.content | trim`: anything, as Python shows it."""
    content = message.get("content", "")
    if not isinstance(content, str):
        out.lose(index, "content written as Python code")
    return str(content).strip()


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _role_of(message: Message) -> PieceRole:
    role: PieceRole = message["role"]
    return role


def _lose_unread(messages: Sequence[Message], out: Written, *read: str) -> None:
    for index, message in enumerate(messages):
        for key in ("tool_calls", "reasoning_content"):
            if message.get(key) and key not in read:
                out.lose(index, key)


def smollm2(messages: Sequence[Message], tools: list[Any] | None) -> Written:
    out = Written()
    _lose_unread(messages, out)
    if tools:
        out.lose(-1, "tools")
    if messages[0]["role"] != "system":
        out.put(
            "<|im_start|>system\n"
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        )
    for index, message in enumerate(messages):
        _chatml_turn(message, index, out)
    return out


def _chatml_turn(message: Message, index: int, out: Written) -> None:
    role = message["role"]
    content = _added(message)
    if role == "assistant":
        out.put("<|im_start|>assistant\n", "header", index)
        out.put(content, "content", index)
        out.put("<|im_end|>", "stop", index)
        out.put("\n")
    else:
        out.put(f"<|im_start|>{role}\n")
        out.put(content, _role_of(message))
        out.put("<|im_end|>\n")


QWEN_TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
QWEN_TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
)


def _qwen_system(
    messages: Sequence[Message], tools: list[Any] | None, default: str, out: Written
) -> None:
    """The system turn; `default` is what stands there when the conversation has none."""
    given = messages[0]["role"] == "system"
    if not (tools or given or default):
        return
    out.put("<|im_start|>system\n")
    out.put(_added(messages[0]) if given else default, "system" if given else "scaffold")
    if not tools:
        out.put("<|im_end|>\n")
        return
    if given or default:
        out.put("\n\n")
    out.put(QWEN_TOOLS_BEFORE)
    for tool in tools:
        out.put("\n" + _json(tool))
    out.put(QWEN_TOOLS_AFTER)


def _qwen_call(call: Any, index: int, out: Written, *, text_as_it_is: bool) -> None:
    function = call.get("function") or call
    arguments = function["arguments"]
    out.put('<tool_call>\n{"name": "', turn=index)
    out.put(function["name"], "tool_call", index)
    out.put('", "arguments": ', turn=index)
    bare = text_as_it_is and isinstance(arguments, str)
    out.put(arguments if bare else _json(arguments), "tool_call", index)
    out.put("}\n</tool_call>", turn=index)


def _qwen_result(messages: Sequence[Message], index: int, out: Written) -> None:
    """A tool's result; a run of them shares one user turn."""
    if index == 0 or messages[index - 1]["role"] != "tool":
        out.put("<|im_start|>user")
    out.put("\n<tool_response>\n")
    out.put(str(messages[index].get("content", "")), "tool")
    out.put("\n</tool_response>")
    if index == len(messages) - 1 or messages[index + 1]["role"] != "tool":
        out.put("<|im_end|>\n")


def qwen2_5(messages: Sequence[Message], tools: list[Any] | None) -> Written:
    out = Written()
    _lose_unread(messages, out, "tool_calls")
    default = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    _qwen_system(messages, tools, default, out)
    for index, message in enumerate(messages):
        role, calls = message["role"], message.get("tool_calls")
        if role == "user" or (role == "system" and index) or (role == "assistant" and not calls):
            _chatml_turn(message, index, out)
        elif role == "assistant":
            out.put("<|im_start|>assistant", "header", index)
            if message.get("content"):
                out.put("\n", "header", index)
                out.put(_added(message), "content", index)
            for position, call in enumerate(calls or ()):
                first = not position and not message.get("content")
                out.put("\n", "header" if first else "scaffold", index)
                _qwen_call(call, index, out, text_as_it_is=False)
            out.put("<|im_end|>", "stop", index)
            out.put("\n")
        elif role == "tool":
            _qwen_result(messages, index, out)
    return out


def qwen3(messages: Sequence[Message], tools: list[Any] | None) -> Written:
    out = Written()
    _qwen_system(messages, tools, "", out)
    query = _qwen3_last_query(messages)
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "user" or (role == "system" and index):
            _chatml_turn(message, index, out)
        elif role == "assistant":
            _qwen3_answer(message, index, query, index == len(messages) - 1, out)
        elif role == "tool":
            _qwen_result(messages, index, out)
    return out


def _qwen3_last_query(messages: Sequence[Message]) -> int:
    for index in reversed(range(len(messages))):
        if messages[index]["role"] == "user":
            text = _added(messages[index])
            if not (text.startswith("<tool_response>") and text.endswith("</tool_response>")):
                return index
    return len(messages) - 1


def _qwen3_answer(message: Message, index: int, query: int, last: bool, out: Written) -> None:
    said = _added(message)
    content, reasoning = said, message.get("reasoning_content")
    if reasoning is None:
        reasoning = ""
        if "</think>" in said:
            before, *between, after = said.split("</think>")
            content = after.lstrip("\n")
            *ahead, thought = before.rstrip("\n").split("<think>")
            reasoning = thought.lstrip("\n")
            if between or "".join(ahead):
                out.lose(index, "content around the first think block")
    out.put("<|im_start|>assistant\n", "header", index)
    if index > query and (last or reasoning):
        out.put("<think>\n", turn=index)
        out.put(reasoning.strip("\n"), "reasoning", index)
        out.put("\n</think>\n\n", turn=index)
        out.put(content.lstrip("\n"), "content", index)
    else:
        if reasoning:
            out.lose(index, "reasoning")
        out.put(content, "content", index)
    for position, call in enumerate(message.get("tool_calls", ())):
        if position or content:
            out.put("\n", turn=index)
        _qwen_call(call, index, out, text_as_it_is=True)
    out.put("<|im_end|>", "stop", index)
    out.put("\n")


def _llama_open(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def _llama_turn(message: Message, index: int, out: Written) -> None:
    role, content = message["role"], _trimmed(message, index, out)
    if role == "assistant":
        out.put(_llama_open(role), "header", index)
        out.put(content, "content", index)
        out.put("<|eot_id|>", "stop", index)
    else:
        out.put(_llama_open(role))
        out.put(content, _role_of(message))
        out.put("<|eot_id|>")


def llama3(messages: Sequence[Message], tools: list[Any] | None) -> Written:
    """This one writes an assistant header at the end, asked to or not."""
    out = Written()
    _lose_unread(messages, out)
    if tools:
        out.lose(-1, "tools")
    out.put("<|begin_of_text|>", "bos")
    for index, message in enumerate(messages):
        _llama_turn(message, index, out)
    out.put(_llama_open("assistant"))
    return out


def llama3_1(messages: Sequence[Message], tools: list[Any] | None) -> Written:
    out = Written()
    _lose_unread(messages, out, "tool_calls")
    out.put("<|begin_of_text|>", "bos")
    out.put(_llama_open("system"))
    if tools is not None:
        out.put("Environment: ipython\n")
    out.put("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n")
    rest = list(enumerate(messages))
    if messages[0]["role"] == "system":
        out.put(_trimmed(messages[0], 0, out), "system")
        rest = rest[1:]
    out.put("<|eot_id|>")
    if tools is not None:
        if not rest:
            raise Refused("no first user message to put the tools in")
        index, first = rest.pop(0)
        _llama3_1_tools(tools, _trimmed(first, index, out), _role_of(first), out)
    for index, message in rest:
        if "tool_calls" in message:
            _llama3_1_call(message, index, out)
        elif message["role"] == "tool":
            out.put(_llama_open("ipython"))
            out.put(_json(message.get("content", "")), "tool")
            out.put("<|eot_id|>")
        else:
            _llama_turn(message, index, out)
    return out


def _llama3_1_tools(tools: list[Any], first: str, role: PieceRole, out: Written) -> None:
    out.put(
        _llama_open("user")
        + "Given the following functions, please respond with a JSON for a function call with its "
        "proper arguments that best answers the given prompt.\n\n"
        'Respond in the format {"name": function name, "parameters": dictionary of argument name '
        "and its value}.Do not use variables.\n\n"
    )
    for tool in tools:
        out.put(_json(tool, indent=4) + "\n\n")
    out.put(first, role)
    out.put("<|eot_id|>")


def _llama3_1_call(message: Message, index: int, out: Written) -> None:
    if len(message["tool_calls"]) != 1:
        raise Refused("only single tool calls")
    if message.get("content"):
        out.lose(index, "content beside a tool call")
    function = message["tool_calls"][0]["function"]
    out.put(_llama_open("assistant"), "header", index)
    out.put('{"name": "', turn=index)
    out.put(function["name"], "tool_call", index)
    out.put('", "parameters": ', turn=index)
    out.put(_json(function["arguments"]), "tool_call", index)
    out.put("}", turn=index)
    out.put("<|eot_id|>", "stop", index)


def gemma3(messages: Sequence[Message], tools: list[Any] | None) -> Written:
    out = Written()
    _lose_unread(messages, out)
    if tools:
        out.lose(-1, "tools")
    out.put("<bos>", "bos")
    rest, instruction = list(enumerate(messages)), ""
    if messages[0]["role"] == "system":
        content = messages[0]["content"]
        instruction = content if isinstance(content, str) else content[0]["text"]
        rest = rest[1:]
    for position, (index, message) in enumerate(rest):
        role = message["role"]
        if (role == "user") != (position % 2 == 0):
            raise Refused("roles must alternate")
        content = message.get("content", "")
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        said = "".join(text.strip() for text in texts)
        if said != "".join(texts).strip():
            out.lose(index, "white space between parts")
        is_answer = role == "assistant"
        turn = index if is_answer else None
        if is_answer:
            out.put("<start_of_turn>model\n", "header", index)
        else:
            out.put(f"<start_of_turn>{role}\n")
        if position == 0 and instruction:
            out.put(instruction, "system")
            out.put("\n\n")
        out.put(said, "content" if is_answer else _role_of(message), turn)
        out.put("<end_of_turn>", "stop" if is_answer else "scaffold", turn)
        out.put("\n")
    return out


def deepseek_v3(messages: Sequence[Message], tools: list[Any] | None) -> Written:
    """`message['content'] is none` never holds: transformers drops keys that are None."""
    out = Written()
    _lose_unread(messages, out)
    if tools:
        out.lose(-1, "tools")
    out.put("<｜begin▁of▁sentence｜>", "bos")
    instructions = [message for message in messages if message["role"] == "system"]
    for position, message in enumerate(instructions):
        out.put("\n\n" if position else "")
        out.put(_added(message), "system")
    after_tool, first_output = False, True
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            after_tool = False
            out.put("<｜User｜>")
            out.put(_added(message), "user")
        elif role == "assistant":
            opening = "<｜tool▁outputs▁end｜>" if after_tool else "<｜Assistant｜>"
            out.put(opening, "header", index)
            out.put(_added(message), "content", index)
            out.put("<｜end▁of▁sentence｜>", "stop", index)
            after_tool = False
        elif role == "tool":
            out.put("<｜tool▁outputs▁begin｜>" if first_output else "\n")
            out.put("<｜tool▁output▁begin｜>")
            out.put(_added(message), "tool")
            out.put("<｜tool▁output▁end｜>")
            after_tool, first_output = True, False
    if after_tool:
        out.put("<｜tool▁outputs▁end｜>")
    return out


def deepseek_r1(messages: Sequence[Message], tools: list[Any] | None) -> Written:
    """After the first round of calls, a later round has neither header nor opening."""
    out = Written()
    _lose_unread(messages, out, "tool_calls")
    if tools:
        out.lose(-1, "tools")
    out.put("<｜begin▁of▁sentence｜>", "bos")
    instructions = [message for message in messages if message["role"] == "system"]
    for position, message in enumerate(instructions):
        out.put("\n\n" if position else "")
        out.put(_added(message), "system")
    after_tool, first_output, first_call = False, True, True
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            after_tool = False
            out.put("<｜User｜>")
            out.put(_added(message), "user")
        elif role == "assistant" and "tool_calls" in message:
            after_tool = False
            _deepseek_calls(message, index, first_call, out)
            first_call = False
        elif role == "assistant":
            content = _added(message)
            if not after_tool and "</think>" in content:
                content = content.split("</think>")[-1]
                out.lose(index, "content before the last </think>")
            opening = "<｜tool▁outputs▁end｜>" if after_tool else "<｜Assistant｜>"
            out.put(opening, "header", index)
            out.put(content, "content", index)
            out.put("<｜end▁of▁sentence｜>", "stop", index)
            after_tool = False
        elif role == "tool":
            out.put("<｜tool▁outputs▁begin｜>" if first_output else "")
            out.put("<｜tool▁output▁begin｜>")
            out.put(_added(message), "tool")
            out.put("<｜tool▁output▁end｜>")
            after_tool, first_output = True, False
    if after_tool:
        out.put("<｜tool▁outputs▁end｜>")
    return out


def _deepseek_calls(message: Message, index: int, first: bool, out: Written) -> None:
    if first:
        out.put("<｜Assistant｜>", "header", index)
        out.put(_added(message), "content", index)
    elif message.get("content"):
        out.lose(index, "content beside a later tool call")
    for position, call in enumerate(message["tool_calls"]):
        function = call["function"]
        if not isinstance(function["arguments"], str):
            raise Refused("arguments that are no text")
        opens = first and not position
        out.put("<｜tool▁calls▁begin｜>" if opens else "\n", turn=index)
        out.put(f"<｜tool▁call▁begin｜>{call['type']}<｜tool▁sep｜>", turn=index)
        out.put(function["name"], "tool_call", index)
        out.put("\n```json\n", turn=index)
        out.put(function["arguments"], "tool_call", index)
        out.put("\n```<｜tool▁call▁end｜>", turn=index)
    out.put("<｜tool▁calls▁end｜>", turn=index)
    out.put("<｜end▁of▁sentence｜>", "stop", index)


HARMONY_TAGS = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")


def gptoss(messages: Sequence[Message], tools: list[Any] | None) -> Written:
    """With 2026-01-01 as the current date."""
    out = Written()
    out.put(
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2026-01-01\n\nReasoning: medium\n\n"
        "# Valid channels: analysis, commentary, final. "
        "Channel must be included for every message."
    )
    if tools:
        out.put("\nCalls to these tools must go to the commentary channel: 'functions'.")
    out.put("<|end|>")
    rest = list(enumerate(messages))
    given = messages[0]["role"] in ("system", "developer")
    instruction = messages[0].get("content", "") if given else ""
    _harmony_developer(instruction, tools, out)
    called = ""
    for index, message in rest[1:] if given else rest:
        role = message["role"]
        if role == "assistant":
            _harmony_refuses(message)
            if "tool_calls" in message:
                called = _harmony_call(messages, index, out)
            else:
                last = index == len(messages) - 1
                _harmony_answer(message, index, last, out)
                called = called if last else ""
        elif role == "tool":
            if not called:
                raise Refused("a tool's result without a call")
            out.put(f"<|start|>functions.{called} to=assistant<|channel|>commentary<|message|>")
            out.put(_json(message.get("content", "")), "tool")
            out.put("<|end|>")
        elif role == "user":
            out.put("<|start|>user<|message|>")
            out.put(_added(message), "user")
            out.put("<|end|>")
        else:
            out.lose(index, "content")
    return out


def _harmony_developer(instruction: Any, tools: list[Any] | None, out: Written) -> None:
    if not (instruction or tools):
        return
    out.put("<|start|>developer<|message|>")
    if instruction:
        if not isinstance(instruction, str):
            out.lose(0, "content written as Python code")
        out.put("# Instructions\n\n")
        out.put(str(instruction), "system")
        out.put("\n\n")
    if tools:
        out.put("# Tools\n\n## functions\n\nnamespace functions {\n\n")
        for tool in tools:
            out.put(_harmony_tool(tool["function"]))
        out.put("} // namespace functions")
    out.put("<|end|>")


def _harmony_tool(function: Any) -> str:
    lines = [f"// {function['description']}\n", f"type {function['name']} = (_: {{\n"]
    parameters = function["parameters"]
    for name, spec in parameters["properties"].items():
        if "description" in spec:
            lines.append(f"// {spec['description']}\n")
        optional = "" if name in parameters["required"] else "?"
        default = f", // default: {_json(spec['default'])}" if "default" in spec else ""
        lines.append(f"{name}{optional}: {_harmony_type(spec)}{default},\n")
    return "".join([*lines, "}) => any;\n\n"])


def _harmony_type(spec: Any) -> str:
    if "enum" in spec:
        return '"' + '" | "'.join(spec["enum"]) + '"'
    if spec["type"] == "array":
        return f"{_harmony_type(spec['items'])}[]"
    return "number" if spec["type"] == "integer" else str(spec["type"])


def _harmony_refuses(message: Message) -> None:
    for key in ("content", "reasoning_content"):
        if any(tag in message.get(key, "") for tag in HARMONY_TAGS):
            raise Refused(f"channel tags in {key}")


def _harmony_call(messages: Sequence[Message], index: int, out: Written) -> str:
    """Only the first call is written; thought is, unless a final answer follows somewhere."""
    message = messages[index]
    content, thought = message.get("content", ""), message.get("reasoning_content", "")
    if content and thought:
        raise Refused("both content and thinking")
    answered = any(
        later["role"] == "assistant" and "tool_calls" not in later
        for later in messages[index + 1 :]
    )
    if len(message["tool_calls"]) > 1:
        out.lose(index, "all tool calls but the first")
    out.put("<|start|>assistant", "header", index)
    if (content or thought) and answered:
        out.lose(index, "content" if content else "reasoning")
    elif content or thought:
        out.put(HARMONY_TAGS[0], turn=index)
        out.put(content or thought, "content" if content else "reasoning", index)
        out.put("<|end|><|start|>assistant", turn=index)
    function = message["tool_calls"][0]["function"]
    out.put(" to=functions.", turn=index)
    out.put(function["name"], "tool_call", index)
    out.put("<|channel|>commentary json<|message|>", turn=index)
    out.put(_json(function["arguments"]), "tool_call", index)
    out.put("<|call|>", "stop", index)
    return str(function["name"])


def _harmony_answer(message: Message, index: int, last: bool, out: Written) -> None:
    content, thought = _added(message), message.get("reasoning_content", "")
    out.put("<|start|>assistant", "header", index)
    if thought and last:
        out.put(HARMONY_TAGS[0], turn=index)
        out.put(thought, "reasoning", index)
        out.put("<|end|><|start|>assistant", turn=index)
    elif thought:
        out.lose(index, "reasoning")
    out.put(HARMONY_TAGS[1], turn=index)
    out.put(content, "content", index)
    out.put("<|return|>" if last else "<|end|>", "stop", index)


ORACLES: dict[str, Oracle] = {
    "smollm2": smollm2,
    "qwen2_5": qwen2_5,
    "qwen3": qwen3,
    "llama3": llama3,
    "llama3_1": llama3_1,
    "gemma3": gemma3,
    "deepseek_v3": deepseek_v3,
    "deepseek_r1": deepseek_r1,
    "gptoss": gptoss,
}
