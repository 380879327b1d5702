"""What does a single token look like? Its text, or its bytes where these are no text alone."""

import re
from collections.abc import Sequence
from functools import cache

from ..chat.tokenizer import ChatTokenizer

REPLACEMENT = "\ufffd"
BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
CONTEXT = "a"
"""Text before a token, so that a decoder does not strip its leading space as that of a text."""


@cache
def byte_of_character() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable Latin-1 is itself, other bytes follow from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    plain = {chr(byte): byte for byte in printable}
    return plain | {chr(256 + place): byte for place, byte in enumerate(others)}


def bytes_of(piece: str) -> bytes | None:
    """The bytes that a vocabulary entry stands for; None when it is not written in bytes."""
    if fallback := BYTE_FALLBACK.fullmatch(piece):
        return bytes([int(fallback[1], 16)])
    alphabet = byte_of_character()
    if all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    return None


class Pieces:
    """Texts of single tokens, each looked up once."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._context = tokenizer.encode([CONTEXT])[0].input_ids.tolist()
        self._prefix = tokenizer.decode(self._context)
        self._known: dict[int, str | bytes] = {}

    def of(self, ids: Sequence[int]) -> list[str | bytes]:
        """Text of each token: "" for an id that is in no vocabulary, bytes for a part of a
        character."""
        new = sorted(set(ids) - self._known.keys())
        texts = self._tokenizer.decode_batch([[*self._context, token] for token in new])
        for token, text in zip(new, texts, strict=True):
            alone = text.removeprefix(self._prefix)
            raw = self._tokenizer.vocabulary_entry(token)
            spelled = bytes_of(raw) if raw and REPLACEMENT in alone else None
            self._known[token] = alone if spelled is None else as_text(spelled)
        return [self._known[token] for token in ids]


def as_text(spelled: bytes) -> str | bytes:
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return spelled
