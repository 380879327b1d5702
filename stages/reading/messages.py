"""The normal form of one message: known keys alone, in OpenAI's spelling.

Optional keys that are null are left out, and a missing content is empty; `thinking` is
`reasoning_content`; a flag that says whether to train on the message is `"weight": 0` or left out;
the arguments of a call are an object.
"""

from typing import Any

import msgspec

from ..chat.conversation import ASSISTANT, NOT_JSON, BadRow, Message

MESSAGE_KEYS = (
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "weight",
)
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""What an assistant thinks before it answers, by the names that data sets give it."""
FLAGS = frozenset({"weight", "train", "training", "loss", "loss_scale", "loss_weight"})
"""What OpenAI, Axolotl, ms-swift and LLaMA-Factory call the flag that says: train on this turn."""


def normalise_message(message: Any, index: int) -> Message:
    """The normal form of message `index`. Raises BadRow, whose text is the reason."""
    if not isinstance(message, dict):
        raise BadRow(f"message {index} must be an object, is {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise BadRow(f"message {index} has no 'role'")
    if isinstance(content, str) and len(message) == 2:
        return {"role": role, "content": content}
    where = f"message {index} ({role})"
    known = {
        **message,
        "role": "tool" if role == "function" else role,
        "tool_calls": _calls(message, where),
        "reasoning_content": _reasoning(message, where),
        "weight": _weight(message, where),
    }
    _check_content(content, bool(known["tool_calls"]), index, where)
    kept = {key: known[key] for key in MESSAGE_KEYS if known.get(key) is not None}
    return {"role": role, "content": "", **kept}  # templates test a content, not its key


def _check_content(content: Any, calls: bool, index: int, where: str) -> None:
    if content is None and not calls:
        raise BadRow(f"{where} has no 'content'")
    if content is not None and not isinstance(content, str | list):
        raise BadRow(f"message {index}: 'content' must be text, is {type(content).__name__}")
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict | str):
            raise BadRow(f"{where}: a part of 'content' is {type(part).__name__}, not an object")


def _calls(message: Message, where: str) -> list[Any] | None:
    """tool_calls, or the one call that OpenAI once named function_call; None where there is none"""
    calls = message.get("tool_calls")
    if calls and message.get("function_call"):
        raise BadRow(f"{where} has both 'tool_calls' and 'function_call'; keep one")
    if not calls and message.get("function_call"):
        calls = [message["function_call"]]
    if not calls:
        return None
    if not isinstance(calls, list):
        raise BadRow(f"{where}: 'tool_calls' must be a list, is {type(calls).__name__}")
    return [_call(call, where) for call in calls]


def _call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise BadRow(f"{where}: a tool call must be an object, is {type(call).__name__}")
    full: dict[str, Any] = {key: value for key, value in call.items() if value is not None}
    if "function" not in full:
        said = {key: full.pop(key) for key in ("name", "arguments") if key in full}
        full = {"type": "function", **full, "function": said}
    function = full["function"]
    if not isinstance(function, dict):
        raise BadRow(f"{where}: 'function' of a tool call is {type(function).__name__}, no object")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise BadRow(f"{where}: a tool call has no 'name'")
    if function.get("arguments") is None:
        raise BadRow(f"{where}: the call of {function['name']!r} has no 'arguments'")
    full.setdefault("type", "function")
    full["function"] = {**function, "arguments": parse_arguments(function["arguments"])}
    return full


def parse_arguments(arguments: Any) -> Any:
    """The object that a text of JSON holds, as templates need it; anything else as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = msgspec.json.decode(arguments)
    except NOT_JSON:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _reasoning(message: Message, where: str) -> str | None:
    told = {name: message[name] for name in THOUGHTS if message.get(name) is not None}
    for name, text in told.items():
        if not isinstance(text, str):
            raise BadRow(f"{where}: {name!r} must be text, is {type(text).__name__}")
    if len(set(told.values())) > 1:
        raise BadRow(f"{where} has both {' and '.join(map(repr, told))}; keep one")
    return next(iter(told.values()), None)


def _weight(message: Message, where: str) -> int | None:
    """0 where the message must not be trained on, None where the policy decides."""
    flags = {key: message[key] for key in message if key in FLAGS and message[key] is not None}
    for flag, value in flags.items():
        if value not in (0, 1):
            raise BadRow(f"{where}: {flag!r} is {value!r}; use 0 or 1")
        if value and flag != "weight" and message["role"] != ASSISTANT:
            raise BadRow(f"{where}: {flag!r} is {value!r}; only assistant turns can be supervised")
    if len({bool(value) for value in flags.values()}) > 1:
        raise BadRow(f"{where}: {' and '.join(map(repr, flags))} contradict each other")
    return 0 if flags and not any(flags.values()) else None
