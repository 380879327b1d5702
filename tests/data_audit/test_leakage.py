"""Validation rows whose wording and answer stand in training are found, templates are not."""

from pathlib import Path

import pytest

from stages.data_audit import text_audit
from stages.data_audit.text_audit import TextAudit
from stages.data_audit.words import Batch, word_hashes

from .texts import asked, audit, words


def leaks(found: TextAudit) -> list[tuple[str, str]]:
    return found.findings["ngram_leak"]


def changed_from(start: int) -> str:
    """32 words, the first `start` of which are others than in words(1, 32)."""
    return f"{words(101, 100 + start)} {words(start + 1, 32)}"


def test_a_row_with_seven_tenths_of_its_13_grams_in_training_leaks(tmp_path: Path) -> None:
    # 33 words have 21 13-grams; 15 are left when 6 words are changed
    train, validation = [asked(changed_from(6), "yes")], [asked(words(1, 32), "yes")]
    detail = "71% of its wording is in training, most of it in t:1"
    assert leaks(audit(tmp_path, train, validation)) == [("v:1", detail)]


def test_a_row_with_fewer_of_them_does_not(tmp_path: Path) -> None:
    # 14 of 21 are left when 7 words are changed
    train, validation = [asked(changed_from(7), "yes")], [asked(words(1, 32), "yes")]
    assert leaks(audit(tmp_path, train, validation)) == []


def test_a_shared_text_with_another_answer_is_no_leak(tmp_path: Path) -> None:
    train, validation = [asked(words(1, 60), "yes")], [asked(words(1, 60), "no")]
    assert leaks(audit(tmp_path, train, validation)) == []


def test_case_and_punctuation_hide_no_leak(tmp_path: Path) -> None:
    train = [asked(words(1, 32).upper().replace(" ", ",  "), "YES!")]
    assert len(leaks(audit(tmp_path, train, [asked(words(1, 32), "yes")]))) == 1


def test_the_training_row_that_has_most_of_the_wording_is_named(tmp_path: Path) -> None:
    train = [asked(words(1, 14), "no"), asked(changed_from(3), "yes")]
    (found,) = leaks(audit(tmp_path, train, [asked(words(1, 32), "yes")]))
    assert found[1].endswith("in t:2")


@pytest.mark.parametrize(
    ("trained", "leaked"),
    [(("is it raining", "no."), 1), (("Is it snowing?", "No"), 0), (("Is it raining?", "Yes"), 0)],
)
def test_rows_of_under_13_words_are_compared_whole(
    tmp_path: Path, trained: tuple[str, str], leaked: int
) -> None:
    found = audit(tmp_path, [asked(*trained)], [asked("Is it  raining?", "No")])
    assert len(leaks(found)) == leaked


def test_system_turns_never_count(tmp_path: Path) -> None:
    system = ("system", words(1, 100))
    train, validation = [system, *asked("one", "two")], [system, *asked("three", "four")]
    assert leaks(audit(tmp_path, [train], [validation])) == []


@pytest.mark.parametrize(("rows", "leaked"), [(10, 1), (11, 0)])
def test_wording_of_more_than_ten_training_rows_is_no_leak(
    tmp_path: Path, rows: int, leaked: int
) -> None:
    # 46 words have 34 13-grams; the 28 of the instruction are all that is shared: 0.82
    def row(number: int) -> tuple[tuple[str, str], tuple[str, str]]:
        own = words(1000 + 10 * number, 1004 + 10 * number)
        return asked(f"{words(1, 40)} {own}", "yes")

    found = audit(tmp_path, [row(number) for number in range(rows)], [row(99)])
    assert len(leaks(found)) == leaked


def test_a_row_copied_into_training_many_times_leaks(tmp_path: Path) -> None:
    train, repeated = [asked(words(1, 40), "yes")] * 20, range(1, 20)
    found = audit(tmp_path, train, [asked(words(1, 40), "yes")], list(repeated))
    assert len(leaks(found)) == 1


def test_data_without_a_validation_row_has_no_leak(tmp_path: Path) -> None:
    found = audit(tmp_path, [asked(words(1, 40), "yes")])
    assert (leaks(found), found.leak_searched_rows, found.validation_rows) == ([], 0, 0)


def test_beyond_a_limit_validation_rows_are_counted_as_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_audit, "NGRAM_ROWS", 2)
    monkeypatch.setattr(text_audit, "BATCH_ROWS", 2)
    validation = [asked(words(row, row + 20), "yes") for row in range(0, 500, 100)]
    found = audit(tmp_path, [asked("one", "two")], validation)
    assert (found.leak_searched_rows, found.validation_rows) == (2, 5)


@pytest.mark.parametrize(
    ("text", "count"),
    [("Hello, World! 2", 3), ("", 0), ("don't", 2), ("我喜欢猫。", 4), ("Ёж и кот", 3), ("a_b", 1)],
)
def test_words_are_counted_without_punctuation(text: str, count: int) -> None:
    assert len(word_hashes(text)) == count


def test_no_n_gram_spans_two_rows() -> None:
    batch = Batch.of([[1, 2, 3], [4, 5], [], [6, 7, 8, 9]])
    hashes, row = batch.ngrams(3)
    assert row.tolist() == [0, 3, 3]
    assert len(set(hashes.tolist())) == 3


def test_row_keys_know_words_and_their_order() -> None:
    keys = Batch.of([[1, 2], [2, 1], [1, 2], [1], [], [1, 2, 0]]).row_keys().tolist()
    assert keys[0] == keys[2]
    assert len(set(keys)) == 5
