"""An error is one sentence of one line, whatever a file from outside puts into it."""

import pickle
from pathlib import Path

import pytest

from stages.config.errors import LONGEST_SENTENCE, Refusal, UserError, one_line, reading


def test_a_sentence_stays_one_printable_line() -> None:
    assert str(UserError("a.jsonl:1: role 'a\nb\x1b[2J'")) == r"a.jsonl:1: role 'a b\x1b[2J'"
    assert str(UserError("two  spaces")) == "two  spaces"
    assert one_line("\ud800 and \u202e") == r"\ud800 and \u202e"


def test_a_long_sentence_keeps_its_beginning_and_its_remedy() -> None:
    sentence = str(UserError(f"a.jsonl:1: {'x' * 10**6}; mend the row"))
    assert sentence.startswith("a.jsonl:1: xxx")
    assert sentence.endswith("x; mend the row")
    assert len(sentence) < LONGEST_SENTENCE + 10


def test_an_error_comes_back_from_another_process() -> None:
    error = UserError("a\nb")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a b"


@pytest.mark.parametrize(
    "error", [RecursionError("deep"), KeyError("x"), MemoryError(), OSError(5, "I/O")]
)
def test_whatever_a_parser_raises_becomes_a_sentence(error: Exception) -> None:
    words = r"^a.bin cannot be read as a log \(.+\); bring it again$"
    with (
        pytest.raises(UserError, match=words),
        reading(Path("a.bin"), "a log", "bring it again"),
    ):
        raise error


@pytest.mark.parametrize(
    "error",
    [UserError("a"), Refusal("a"), FileNotFoundError("a"), KeyboardInterrupt(), SystemExit()],
)
def test_what_says_more_goes_through(error: BaseException) -> None:
    with pytest.raises(type(error)), reading(Path("a.bin"), "a log", "bring it again"):
        raise error
