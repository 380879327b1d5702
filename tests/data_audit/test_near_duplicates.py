"""Rows that nearly repeat an earlier one are found, and rows of one template are not."""

from pathlib import Path

import pytest

from stages.data_audit import text_audit
from stages.data_audit.near_duplicates import answers_alike
from stages.data_audit.text_audit import TextAudit
from stages.data_audit.words import word_hashes

from .texts import asked, audit, words


def near_duplicates(found: TextAudit) -> list[tuple[str, str]]:
    return found.findings["near_duplicate"]


def test_a_row_that_differs_in_its_first_word_is_a_near_duplicate(tmp_path: Path) -> None:
    # 30 words have 26 5-grams; 25 are shared, of 27 in all: 0.93
    rows = [asked(f"{first} {words(1, 28)}", "yes") for first in ("one", "two")]
    assert near_duplicates(audit(tmp_path, rows)) == [("t:2", "t:1")]


def test_a_row_that_differs_in_its_middle_is_none(tmp_path: Path) -> None:
    # of 26 5-grams 5 hold the changed word; 21 are shared, of 31 in all: 0.68
    rows = [asked(f"{words(1, 14)} {word} {words(16, 29)}", "yes") for word in ("one", "two")]
    assert near_duplicates(audit(tmp_path, rows)) == []


def test_other_answers_to_one_text_are_no_near_duplicates(tmp_path: Path) -> None:
    rows = [asked(words(1, 200), answer) for answer in ("yes", "no", "perhaps")]
    assert near_duplicates(audit(tmp_path, rows)) == []


def test_many_rows_that_differ_in_case_and_punctuation_are_all_found(tmp_path: Path) -> None:
    rows = [asked(words(1, 20) + "!" * number, "Yes.") for number in range(20)]
    found = near_duplicates(audit(tmp_path, rows))
    assert found == [(f"t:{number}", "t:1") for number in range(2, 21)]


def test_short_rows_count_only_when_their_words_are_equal(tmp_path: Path) -> None:
    rows = [asked("2 + 2?", "4"), asked("2 + 3?", "5"), asked("2 + 2 ?", "4.")]
    assert near_duplicates(audit(tmp_path, rows)) == [("t:3", "t:1")]


def test_rows_made_from_one_template_are_none(tmp_path: Path) -> None:
    instruction = words(1, 100)
    rows = [
        asked(f"{instruction} {words(1000 + 10 * row, 1009 + 10 * row)}", "yes")
        for row in range(20)
    ]
    assert near_duplicates(audit(tmp_path, rows)) == []


def test_a_near_duplicate_among_rows_of_one_template_is_found(tmp_path: Path) -> None:
    def row(number: int, last: str) -> tuple[tuple[str, str], tuple[str, str]]:
        own = words(1000 + 40 * number, 1029 + 40 * number)
        return asked(f"{words(1, 100)} {own} {last}", "yes")

    rows = [row(number, "one") for number in range(20)] + [row(7, "two")]
    assert near_duplicates(audit(tmp_path, rows)) == [("t:21", "t:8")]


def test_log_lines_that_differ_in_their_numbers_are_none(tmp_path: Path) -> None:
    rows = [
        asked(
            "\n".join(
                f"1{line}:0{row} node{row}{line} WARN disk full used={row}" for line in "123"
            ),
            '{"subsystem":"storage","severity":"critical","action":"page"}',
        )
        for row in range(8)
    ]
    assert near_duplicates(audit(tmp_path, rows)) == []


def test_exact_repeats_are_left_to_their_own_check(tmp_path: Path) -> None:
    rows = [asked(words(1, 30), "yes")] * 2
    assert near_duplicates(audit(tmp_path, rows, repeated=[1])) == []


def test_a_validation_row_can_repeat_a_training_row(tmp_path: Path) -> None:
    rows = [asked(f"{first} {words(1, 28)}", "yes") for first in ("one", "two")]
    assert near_duplicates(audit(tmp_path, rows[:1], rows[1:])) == [("v:1", "t:1")]


def test_beyond_a_limit_rows_are_drawn_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [asked(words(row, row + 30), "yes") for row in range(400)]
    monkeypatch.setattr(text_audit, "ROWS_COMPARED", 100)
    found = audit(tmp_path, rows)
    assert (found.rows, 60 < found.compared_rows < 140) == (400, True)
    assert audit(tmp_path, rows).compared_rows == found.compared_rows


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Yes.", "yes", True),
        ("yes", "no", False),
        ("", "", True),
        (words(1, 30), f"{words(1, 29)} x", True),  # 25 of 27
        (words(1, 10), f"{words(1, 9)} x", False),  # 5 of 7
    ],
)
def test_answers_are_alike_when_equal_or_long_and_nearly_equal(
    one: str, other: str, alike: bool
) -> None:
    assert answers_alike(word_hashes(one), word_hashes(other), 0.8) is alike
