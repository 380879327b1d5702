"""One conversation: parsed from a line of a file, normalised, and known by what it says.

The form is OpenAI's: `{"messages": [{"role": ..., "content": ...}, ...], "tools": [...]}`.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

MESSAGE_KEYS = (
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "weight",
)
ASSISTANT = "assistant"

Message = dict[str, Any]


class BadRow(ValueError):
    """A line that is no conversation; the text says why, without file and line."""


class Conversation(msgspec.Struct, omit_defaults=True):
    """`id` is a digest of what the conversation says, `source` the file and line it came from."""

    id: str
    source: str
    messages: list[Message]
    tools: list[Any] | None = None


def parse_conversation(line: bytes, source: str) -> Conversation:
    """Parse one line of JSON. Raises BadRow, whose text is the reason."""
    try:
        row = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise BadRow(_reason(line, error)) from None
    if not isinstance(row, dict):
        raise BadRow(f"must be a JSON object with 'messages', is {type(row).__name__}")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRow("has no 'messages' (a list of at least one message)")
    normalised = [_normalise(message, index) for index, message in enumerate(messages)]
    tools = row.get("tools") or None
    if tools is not None and not isinstance(tools, list):
        raise BadRow(f"'tools' must be a list, is {type(tools).__name__}")
    return Conversation(content_key(normalised, tools).hex(), source, normalised, tools)


def _reason(line: bytes, error: msgspec.DecodeError) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        return f"not UTF-8 (byte {wrong.start} of the line is 0x{line[wrong.start]:02x})"
    return f"not valid JSON ({error})"


def _normalise(message: Any, index: int) -> Message:
    if not isinstance(message, dict):
        raise BadRow(f"message {index} must be an object, is {type(message).__name__}")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise BadRow(f"message {index} has no 'role'")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise BadRow(f"message {index}: 'content' must be text, is {type(content).__name__}")
    if content is None and not message.get("tool_calls"):
        raise BadRow(f"message {index} ({message['role']}) has no 'content'")
    kept = {key: message[key] for key in MESSAGE_KEYS if message.get(key) is not None}
    return {"role": kept["role"], "content": "", **kept}  # templates test a content, not its key


def content_key(messages: list[Message], tools: list[Any] | None = None) -> bytes:
    """16 bytes that are equal exactly when two conversations say the same."""
    said = msgspec.json.encode([messages, tools], order="deterministic")
    return hashlib.blake2b(said, digest_size=16).digest()


def first_answer(messages: list[Message]) -> int:
    """Index of the first assistant turn, or the number of messages when there is none."""
    turns = (index for index, turn in enumerate(messages) if turn["role"] == ASSISTANT)
    return next(turns, len(messages))


def prompt_key(conversation: Conversation) -> bytes:
    """16 bytes that know a conversation by all that comes before its first answer."""
    prompt = conversation.messages[: first_answer(conversation.messages)]
    return content_key(prompt, conversation.tools)


def is_empty_answer(message: Message) -> bool:
    """An assistant turn that says nothing and calls nothing."""
    content = message.get("content")
    blank = not content or (isinstance(content, str) and not content.strip())
    return message["role"] == ASSISTANT and blank and not message.get("tool_calls")


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Stream the conversations of a normalised split (artifacts/dataset/*.jsonl)."""
    decoder = msgspec.json.Decoder(Conversation)
    with path.open("rb") as file:
        for line in file:
            yield decoder.decode(line)
