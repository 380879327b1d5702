"""The items of one JSON array of any size, as bytes, with the line on which each begins.

Only brackets and quotes are looked at, so that a malformed item costs itself alone; a file that is
cut off or whose quotes do not pair cannot be read on and is refused.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ..config.errors import UserError
from ..provenance.hashing import CHUNK_BYTES

NO_SPACE = re.compile(rb"[^ \t\r\n]")
SCALAR_END = re.compile(rb"[,\] \t\r\n]")
TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[{}\[\]]', re.DOTALL)
"""A bracket, or a string; its group is empty for a string that does not end here."""


def array_items(read: Callable[[int], bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    """(line from 1, JSON text) of every item of the array that `read` reads, some bytes a call.

    Raises UserError, with file and line, where the array itself is malformed.
    """
    scanner = _Scanner(read, path)
    scanner.expect(b"[", "an array begins with '['")
    item = 0
    while scanner.peek() != b"]" or item:
        item += 1
        if scanner.peek() in (b"]", b"", b","):
            raise scanner.error(f"item {item} of the array is missing")
        yield scanner.line, scanner.take_item(item)
        if scanner.peek() == b"]":
            break
        scanner.expect(b",", f"after item {item} of the array there must be ',' or ']'")
    scanner.expect(b"]", "an array ends with ']'")
    if scanner.peek():
        raise scanner.error("something follows the end of the array")


class _Scanner:
    """A window onto the text. `line` is the number, from 1, of the line at the position."""

    def __init__(self, read: Callable[[int], bytes], path: Path) -> None:
        self._read, self._path = read, path
        self._window, self._at, self.line = b"", 0, 1

    def error(self, reason: str) -> UserError:
        return UserError(
            f"{self._path}:{self.line}: not a JSON array of objects: {reason}; write the file anew"
        )

    def peek(self) -> bytes:
        """The next byte that is no white space, without taking it; empty at the end."""
        while True:
            found = NO_SPACE.search(self._window, self._at)
            self._advance(found.start() if found else len(self._window))
            if found:
                return found[0]
            if not self._read_on():
                return b""

    def expect(self, byte: bytes, rule: str) -> None:
        if self.peek() != byte:
            raise self.error(rule)
        self._advance(self._at + 1)

    def take_item(self, number: int) -> bytes:
        """The text of the item that begins at the position."""
        nested = self._window[self._at : self._at + 1] in (b"{", b"[", b'"')
        end = self._end_of_nested(number) if nested else self._end_of_scalar()
        text = self._window[self._at : end]
        self._advance(end)
        return text

    def _end_of_nested(self, number: int) -> int:
        depth, length = 0, 0
        while True:
            token = TOKEN.search(self._window, self._at + length)
            if token is None or token[1] == b"":
                length = (token.start() if token else len(self._window)) - self._at
                if not self._read_on():
                    raise self.error(
                        f"item {number}, which begins here, does not end; the file is cut off, or "
                        "a quote or bracket is missing"
                    )
                continue
            length = token.end() - self._at
            if token[1] is None:
                depth += 1 if token[0] in (b"{", b"[") else -1
            if depth <= 0:
                return token.end()

    def _end_of_scalar(self) -> int:
        while not (found := SCALAR_END.search(self._window, self._at)):
            if not self._read_on():
                return len(self._window)
        return found.start()

    def _advance(self, position: int) -> None:
        self.line += self._window.count(b"\n", self._at, position)
        self._at = position

    def _read_on(self) -> bool:
        """Forget what lies before the position and read on, ever more of an item that is long."""
        kept = self._window[self._at :]
        more = self._read(max(CHUNK_BYTES, len(kept)))
        self._window, self._at = kept + more, 0
        return bool(more)
