"""The forms in which people keep conversations, each turned into OpenAI's messages and tools.

A dialect is a pure function from a row to (messages, tools) that raises BadRow with the reason.
Sources: OpenAI's fine-tuning format; ShareGPT and Alpaca as LLaMA-Factory reads them (its
data/README.md); prompt and completion as TRL does; query and response as ms-swift does.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from ..chat.conversation import ASSISTANT, NOT_JSON, BadRow, Conversation, Message, content_key
from ..config.load import nearest
from .messages import FLAGS, normalise_message

Dialect = Literal["openai", "sharegpt", "alpaca", "prompt_completion"]
Parsed = tuple[list[Any], list[Any] | None]

SIGNS: dict[Dialect, tuple[frozenset[str], ...]] = {
    "openai": (frozenset({"messages"}),),
    "sharegpt": (frozenset({"conversations"}), frozenset({"conversation"})),
    "prompt_completion": (frozenset({"prompt", "completion"}),),
    "alpaca": (
        frozenset({"instruction", "output"}),
        frozenset({"instruction", "response"}),
        frozenset({"query", "response"}),
    ),
}
"""A row is of the first dialect here that has all keys of one of its sets."""

SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": ASSISTANT,
    "assistant": ASSISTANT,
    "bing": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bard": ASSISTANT,
    "function_call": ASSISTANT,
    "observation": "tool",
    "tool": "tool",
    "system": "system",
}
MEDIA = frozenset({"image", "images", "video", "videos", "audio", "audios"})
PREFERENCES = frozenset({"chosen", "rejected"})
FOREIGN = MEDIA | PREFERENCES | {"input_ids"}
KEYS_SHOWN = 8


def openai(row: Mapping[str, Any]) -> Parsed:
    """`messages`, and `tools` as a list or as JSON text (`functions` in older files)."""
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRow("has no 'messages' (a list of at least one message)")
    tools = _tools(row) or _tools(row, "functions", wrap=True)
    return _with_system(row, messages), tools


def sharegpt(row: Mapping[str, Any]) -> Parsed:
    """`conversations` of from and value (or role and content); `system` and `tools` beside it.

    Under `conversation` also the older pairs of human and assistant. Bare function schemas in
    `tools` are wrapped as OpenAI has them.
    """
    key = _only(row, "conversations", "conversation")
    turns = row.get(key)
    if not isinstance(turns, list) or not turns:
        raise BadRow(f"has no {key!r} (a list of at least one turn)")
    messages: list[Any] = []
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise BadRow(f"turn {index} of {key!r} must be an object, is {type(turn).__name__}")
        if not {"from", "role"} & turn.keys() and {"human", "assistant"} & turn.keys():
            if turn.get("system"):
                messages.append({"role": "system", "content": turn["system"]})
            messages += _exchange(turn.get("human"), turn.get("assistant"), f"turn {index}")
        else:
            messages.append(_sharegpt_turn(turn, index))
    return _with_system(row, messages), _tools(row, wrap=True)


def _sharegpt_turn(turn: dict[str, Any], index: int) -> Message:
    names = ("from", "value") if "from" in turn else ("role", "content")
    speaker, text = (turn.get(name) for name in names)
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise BadRow(
            f"turn {index}: {names[0]!r} is {speaker!r}; use {', '.join(SPEAKERS)}"
            f"{nearest(str(speaker), SPEAKERS)}"
        )
    message = {key: value for key, value in turn.items() if key not in names}
    message["role"] = SPEAKERS[speaker]
    if speaker != "function_call":
        return {**message, "content": text}
    calls = _json(text, f"turn {index}: 'function_call'")
    if not isinstance(calls, dict | list) or not calls:
        raise BadRow(f"turn {index}: 'function_call' must be a call or a list of calls")
    return {**message, "tool_calls": calls if isinstance(calls, list) else [calls]}


def alpaca(row: Mapping[str, Any]) -> Parsed:
    """`instruction`, `input` and `output`, or `query` and `response`; `system` and `history`.

    The user says the instruction, a line break, and the input where there is one.
    """
    if row.get("context") and not row.get("input"):
        raise BadRow("has 'context', which alpaca calls 'input'; rename the key")
    asked = _only(row, "instruction", "query")
    said = [text for text in (_text(row, asked), _text(row, "input")) if text]
    if not said:
        raise BadRow(f"has no text in {asked!r}")
    answered = _only(row, "output", "response")
    messages: list[Any] = []
    for index, pair in enumerate(_history(row)):
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRow(f"'history' must be pairs of texts; item {index} is no pair")
        messages += _exchange(pair[0], pair[1], f"item {index} of 'history'")
    messages.append({"role": "user", "content": "\n".join(said)})
    answer = _text(row, answered)
    if answer is None:
        raise BadRow("has no 'output' (or 'response')")
    messages.append({"role": ASSISTANT, "content": answer})
    return _with_system(row, messages), _tools(row, wrap=True)


def prompt_completion(row: Mapping[str, Any]) -> Parsed:
    """`prompt` and `completion`, both text or both lists of messages.

    Answers within a prompt are not trained on, for this form says that the completion is.
    """
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return _with_system(row, _exchange(prompt, completion, "it")), _tools(row)
    if isinstance(prompt, list) and isinstance(completion, list) and prompt and completion:
        messages = [*map(_without_training, prompt), *completion]
        return _with_system(row, messages), _tools(row)
    kinds = f"{type(prompt).__name__} and {type(completion).__name__}"
    raise BadRow(f"'prompt' and 'completion' must be texts or lists of messages, are {kinds}")


DIALECTS: dict[Dialect, Callable[[Mapping[str, Any]], Parsed]] = {
    "openai": openai,
    "sharegpt": sharegpt,
    "alpaca": alpaca,
    "prompt_completion": prompt_completion,
}


def detect(row: Mapping[str, Any]) -> Dialect | None:
    """The dialect that the keys of a row belong to; None when there is none."""
    return next((dialect for dialect in SIGNS if fits(row, dialect)), None)


def fits(row: Mapping[str, Any], dialect: Dialect) -> bool:
    return any(sign <= row.keys() for sign in SIGNS[dialect])


class RowParser:
    """Turns the rows of one file into conversations, all of one dialect.

    dialect: known from the start, or, for "auto", from the keys of the first row that fits one.
    """

    def __init__(self, setting: Dialect | Literal["auto"]) -> None:
        self.dialect: Dialect | None = None if setting == "auto" else setting
        self._automatic = setting == "auto"
        self._chosen_by = "the file began as" if setting == "auto" else "data.dialect is"

    def parse(self, row: Any, source: str) -> Conversation:
        """The conversation of a decoded row. Raises BadRow, whose text is the reason.

        A row that could not be decoded is the BadRow to raise.
        """
        if isinstance(row, BadRow):
            raise row
        if not isinstance(row, dict):
            raise BadRow(f"must be a JSON object, is {type(row).__name__}")
        _refuse_foreign_content(row)
        if self._automatic:
            _refuse_two_dialects(row)
        self.dialect = self.dialect or _detect_or_refuse(row)
        try:
            messages, tools = DIALECTS[self.dialect](row)
        except BadRow as reason:
            raise self._other_dialect(row) or reason from None
        normal = [normalise_message(message, index) for index, message in enumerate(messages)]
        return Conversation(content_key(normal, tools).hex(), source, normal, tools)

    def _other_dialect(self, row: Mapping[str, Any]) -> BadRow | None:
        other = detect(row)
        if other is None or self.dialect is None or fits(row, self.dialect):
            return None
        return BadRow(
            f"is {other}, {self._chosen_by} {self.dialect}; set data.dialect or split the file"
        )


def _refuse_foreign_content(row: Mapping[str, Any]) -> None:
    """Refuse what would have to be dropped: what is no text, answers to choose from, token ids."""
    if FOREIGN.isdisjoint(row):
        return
    if media := [key for key in row if key in MEDIA and row[key]]:
        raise BadRow(f"holds {media[0]!r}; only text can be trained on, so remove the row")
    if not PREFERENCES.isdisjoint(row) and not fits(row, "openai"):
        raise BadRow("holds 'chosen' or 'rejected': preferences are not what is trained on here")
    if "input_ids" in row and detect(row) is None:
        raise BadRow(
            "holds 'input_ids' and no messages: labels made elsewhere are judged by "
            "`holdshort audit-labels`"
        )


def _refuse_two_dialects(row: Mapping[str, Any]) -> None:
    """Refuse a row that says one thing in one dialect and perhaps another in a second."""
    filled = {key for key, value in row.items() if value}
    both = [(dialect, sign) for dialect, signs in SIGNS.items() for sign in signs if sign <= filled]
    if len({dialect for dialect, _ in both}) > 1:
        (one, first), (other, second) = both[0], next(it for it in both if it[0] != both[0][0])
        raise BadRow(
            f"is both {one} ({', '.join(map(repr, sorted(first)))}) and {other} "
            f"({', '.join(map(repr, sorted(second)))}); set data.dialect to the one to read"
        )


def _detect_or_refuse(row: Mapping[str, Any]) -> Dialect:
    if dialect := detect(row):
        return dialect
    keys = [str(key) for key in row]
    known = {key for signs in SIGNS.values() for sign in signs for key in sign}
    hints = (nearest(key, sorted(known)) for key in keys)
    shown = ", ".join([*keys[:KEYS_SHOWN], *["..."] * (len(keys) > KEYS_SHOWN)])
    raise BadRow(
        f"is of no known dialect (its keys: {shown or 'none'}): openai has 'messages', sharegpt "
        "'conversations', alpaca 'instruction' and 'output' (or 'query' and 'response'), "
        f"prompt_completion 'prompt' and 'completion'{next(filter(None, hints), '')}"
    )


def _only(row: Mapping[str, Any], *names: str) -> str:
    """Which of several names for one thing a row uses; the first where it uses none."""
    there = [name for name in names if row.get(name) is not None]
    if len(there) > 1 and all(row[name] for name in there):
        raise BadRow(f"has both {' and '.join(map(repr, there))}; keep one")
    return next((name for name in there if row[name]), there[0] if there else names[0])


def _text(row: Mapping[str, Any], key: str) -> str | None:
    text = row.get(key)
    if not isinstance(text, str | None):
        raise BadRow(f"{key!r} must be text, is {type(text).__name__}")
    return text


def _json(text: Any, where: str) -> Any:
    if not isinstance(text, str):
        raise BadRow(f"{where} must be JSON text, is {type(text).__name__}")
    try:
        return msgspec.json.decode(text)
    except NOT_JSON as error:
        raise BadRow(f"{where} is not valid JSON ({error})") from None


def _tools(row: Mapping[str, Any], key: str = "tools", *, wrap: bool = False) -> list[Any] | None:
    """The tools of a row, None where there are none; wrap: put bare functions into OpenAI's form"""
    tools = row.get(key)
    if isinstance(tools, str):
        tools = _json(tools, repr(key)) if tools.strip() else None
    if not tools:
        return None
    if not isinstance(tools, list):
        raise BadRow(f"{key!r} must be a list, is {type(tools).__name__}")
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise BadRow(f"{key!r}: item {index} must be an object, is {type(tool).__name__}")
    return [_wrapped(tool) for tool in tools] if wrap else tools


def _wrapped(tool: dict[str, Any]) -> dict[str, Any]:
    bare = "name" in tool and not {"type", "function"} & tool.keys()
    return {"type": "function", "function": tool} if bare else tool


def _with_system(row: Mapping[str, Any], messages: list[Any]) -> list[Any]:
    """The messages behind the text of the key `system`, where there is one."""
    system = _text(row, "system")
    if not system or not isinstance(messages[0], dict):
        return messages
    if messages[0].get("role") != "system":
        return [{"role": "system", "content": system}, *messages]
    if messages[0].get("content") != system:
        raise BadRow("has the key 'system' and a system turn that says something else; keep one")
    return messages


def _history(row: Mapping[str, Any]) -> list[Any]:
    history = row.get("history")
    if isinstance(history, str):
        history = _json(history, "'history'") if history.strip() else None
    if not isinstance(history or [], list):
        raise BadRow(f"'history' must be a list of pairs, is {type(history).__name__}")
    return history or []


def _exchange(question: Any, answer: Any, where: str) -> list[Message]:
    if not isinstance(question, str) or not isinstance(answer, str):
        raise BadRow(f"{where} must hold the text of a question and of an answer")
    return [{"role": "user", "content": question}, {"role": ASSISTANT, "content": answer}]


def _without_training(message: Any) -> Any:
    answers = isinstance(message, dict) and message.get("role") == ASSISTANT
    return {**message, "weight": 0} if answers and FLAGS.isdisjoint(message) else message
