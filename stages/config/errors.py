"""The two ways in which a stage stops without a traceback, and how a damaged file becomes one."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_SENTENCE = 2000


class UserError(Exception):
    """Bad input: one sentence with file, line or key, and what to do (exit 2).

    It stays one line of printable characters, whatever a file from outside puts into it.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence))


class Refusal(Exception):
    """A judgement against going on, worded for one screen, with what to run next (exit 1)."""


def visible(text: str) -> str:
    """The text with its control characters written out, so that none reaches the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """The text as one line without control characters, its middle left out where it is long."""
    line = visible(" ".join(text.split()) if not text.isprintable() else text)
    if len(line) <= LONGEST_SENTENCE:
        return line
    half = LONGEST_SENTENCE // 2
    return f"{line[:half]} [...] {line[-half:]}"


@contextmanager
def reading(path: Path | str, what: str, remedy: str) -> Iterator[None]:
    """Around the parsing of a file from outside, and nothing else.

    A parser raises what it likes over a damaged file (RecursionError, KeyError, its own kinds, a
    panic of Rust's); all of it becomes a UserError that names the file and ends with `remedy`.

    what: what the file was taken for.
    """
    try:
        yield
    except (UserError, Refusal, FileNotFoundError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
        reason = reason or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch advises to load it all the same
            reason = "it holds more than tensors and plain data, which could run code"
        raise UserError(f"{path} cannot be read as {what} ({reason}); {remedy}") from error
