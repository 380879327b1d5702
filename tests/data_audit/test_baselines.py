"""Scores of what needs no model, on rows whose right score is known."""

from stages.chat.conversation import Conversation
from stages.data_audit.baselines import keyword_table_score, majority_answer_score


def row(*texts: str | None) -> Conversation:
    """User and assistant in turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return Conversation("", "", messages)


TRAIN = [row("the cat", "meow"), row("the dog", "woof"), row("a cat", "meow"), row("a dog", "woof")]


def test_the_most_frequent_answer_is_right_as_often_as_it_is_given() -> None:
    train = [row("a", "yes"), row("b", "yes"), row("c", "no")]
    assert majority_answer_score(train, [row("d", "yes"), row("e", "no")]) == 0.5


def test_a_keyword_that_gives_the_answer_away_is_found() -> None:
    validation = [row("my dog", "woof"), row("one cat here", "meow")]
    assert keyword_table_score(TRAIN, validation) == 1.0
    assert majority_answer_score(TRAIN, validation) == 0.5


def test_words_at_random_teach_the_table_nothing() -> None:
    train = [row(f"word{n % 5}", str(n % 4)) for n in range(400)]
    validation = [row(f"word{n % 5}", str(n % 4)) for n in range(400)]
    assert keyword_table_score(train, validation) == 0.25


def test_every_assistant_turn_counts_and_sees_all_that_was_said_before() -> None:
    train = [row("x", "one", "again", "two")] * 3
    assert keyword_table_score(train, train) == 1.0
    assert majority_answer_score(train, train) == 0.5


def test_turns_without_text_are_not_scored() -> None:
    assert majority_answer_score(TRAIN, [row("the cat", None)]) == 0.0
    assert keyword_table_score(TRAIN, []) == 0.0
    assert keyword_table_score([], TRAIN) == 0.0
    assert majority_answer_score([], TRAIN) == 0.0
