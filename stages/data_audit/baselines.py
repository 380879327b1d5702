"""What can be answered without a model? The most frequent answer, and a table of keywords.

Both answer every assistant turn of the held-out rows from what training rows teach; the score is
the fraction of turns answered exactly. A model is worth its cost where it does better.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ..chat.conversation import ASSISTANT, Conversation, Message

WORD = re.compile(r"\w+")
MAX_ANSWERS = 200
"""Answers that the keyword table knows: the most frequent ones."""


def majority_answer_score(
    train: Sequence[Conversation], validation: Sequence[Conversation]
) -> float:
    """Exact match of the most frequent answer of `train`; 0.0 when nothing can be scored."""
    counts = Counter(answer for _, answer in answered_turns(train))
    if not counts:
        return 0.0
    (most_frequent, _), *_ = counts.most_common(1)
    return _fraction([answer == most_frequent for _, answer in answered_turns(validation)])


def keyword_table_score(train: Sequence[Conversation], validation: Sequence[Conversation]) -> float:
    """Exact match of naive Bayes over the words before an answer; 0.0 when nothing can be scored.

    The table holds log P(word is there | answer) with add-one smoothing (McCallum and Nigam, 1998,
    the multi-variate Bernoulli model without its terms for absent words).
    """
    turns = list(answered_turns(train))
    answers = [answer for answer, _ in Counter(a for _, a in turns).most_common(MAX_ANSWERS)]
    if not answers:
        return 0.0
    column = {answer: number for number, answer in enumerate(answers)}
    known = [(words, column[answer]) for words, answer in turns if answer in column]
    row: dict[str, int] = {}
    for words, _ in known:
        for word in words:
            row.setdefault(word, len(row))
    table = np.ones((len(row), len(answers)))
    totals = np.zeros(len(answers))
    for words, number in known:
        table[[row[word] for word in words], number] += 1
        totals[number] += 1
    log_table, log_prior = np.log(table) - np.log(totals + 2), np.log(totals)
    guesses = []
    for words, answer in answered_turns(validation):
        scores = log_prior + log_table[[row[word] for word in words if word in row]].sum(axis=0)
        guesses.append(answers[int(scores.argmax())] == answer)
    return _fraction(guesses)


def answered_turns(rows: Sequence[Conversation]) -> Iterator[tuple[list[str], str]]:
    """(distinct words before the turn, in order of appearance; its text) of each assistant turn."""
    for row in rows:
        said: dict[str, None] = {}
        for message in row.messages:
            text = text_of(message)
            if message["role"] == ASSISTANT and text:
                yield list(said), text
            said.update(dict.fromkeys(WORD.findall(text)))


def text_of(message: Message) -> str:
    """The text content of a message; empty for calls and for parts that are no text."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _fraction(right: Sequence[bool]) -> float:
    return sum(right) / len(right) if right else 0.0
