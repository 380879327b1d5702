"""One conversation: normalised, and known by what it says.

The form is OpenAI's: `{"messages": [{"role": ..., "content": ...}, ...], "tools": [...]}`; rows of
other dialects are turned into it.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..config.errors import UserError

ASSISTANT = "assistant"

Message = dict[str, Any]

NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What decoding a text that is no JSON, or is nested too deeply to be any, may raise."""


class BadRow(ValueError):
    """A row that is no conversation; the text says why, without file and line."""


class Conversation(msgspec.Struct, omit_defaults=True):
    """`id` is a digest of what the conversation says, `source` the file and line it came from."""

    id: str
    source: str
    messages: list[Message]
    tools: list[Any] | None = None


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
    """Stream the conversations of a normalised split (artifacts/dataset/*.jsonl).

    Raises UserError for a line that hash_data did not write.
    """
    decoder = msgspec.json.Decoder(Conversation)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                conversation = decoder.decode(line)
                if not all(isinstance(one.get("role"), str) for one in conversation.messages):
                    raise msgspec.ValidationError("a message has no role")
                yield conversation
            except NOT_JSON as error:
                raise UserError(
                    f"{path}:{number} is damaged ({error}); `dvc repro hash_data` writes it anew"
                ) from None
