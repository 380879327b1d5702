"""The comparison itself: it finds each kind of wrong label, and nothing in right ones."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.chat.conversation import Message
from stages.chat.labels import IGNORE_INDEX
from stages.chat.tokenizer import ChatTokenizer

from ..chat.tokenizers import chat_tokenizer
from .compare import Want, find_faults, tokens_wanted
from .oracles import Piece

Labels = NDArray[np.int32]

MESSAGES: list[Message] = [
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cd"},
    {"role": "assistant", "content": "e", "weight": 0},
]
PIECES = [
    Piece("user\n", "scaffold"),
    Piece("ab", "user"),
    Piece("A\n", "header", 1),
    Piece("<t>", "scaffold", 1),
    Piece("why", "reasoning", 1),
    Piece("</t>", "scaffold", 1),
    Piece("cd", "content", 1),
    Piece("f(1)", "tool_call", 1),
    Piece("<|im_end|>", "stop", 1),
    Piece("\n", "scaffold"),
    Piece("B\n", "header", 2),
    Piece("e", "content", 2),
    Piece("<|im_end|>", "stop", 2),
]
TEXT = "".join(piece.text for piece in PIECES)
#        user\nabA\n<t>why</t>cdf(1)#\nB\ne#, one character a token, # the stop token
WANTED = "---------...+++....+++++++-----"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def found(tokenizer: ChatTokenizer, change: Callable[[Labels, Labels], None]) -> dict[int, str]:
    """What is found in right labels that `change(labels, ids)` has spoilt."""
    encoded = tokenizer.encode([TEXT])[0]
    right = np.array([mark == "+" for mark in WANTED])
    labels = np.where(right, encoded.input_ids, IGNORE_INDEX).astype(np.int32)
    change(labels, encoded.input_ids)
    faults = find_faults(encoded, labels, PIECES, MESSAGES, tokenizer)
    return {turn: "; ".join(told) for turn, told in faults.by_turn.items()}


def test_every_token_is_wanted_as_its_piece_is(tokenizer: ChatTokenizer) -> None:
    want, owner, straddling = tokens_wanted(tokenizer.encode([TEXT])[0], PIECES, {2})
    marks = {Want.MASKED: "-", Want.FREE: ".", Want.SUPERVISED: "+"}
    assert "".join(marks[Want(w)] for w in want) == WANTED
    assert [PIECES[i].text for i in owner[:2]] == ["user\n", "user\n"]
    assert straddling == 0


def test_a_token_across_an_edge_is_masked_and_counted(tokenizer: ChatTokenizer) -> None:
    encoded = tokenizer.encode(["a<|im_end|>b"])[0]
    pieces = [Piece("a<|im_", "header", 0), Piece("end|>b", "content", 0)]
    want, _, straddling = tokens_wanted(encoded, pieces, set())
    assert want.tolist() == [Want.MASKED, Want.MASKED, Want.SUPERVISED]
    assert straddling == 1


def test_nothing_is_found_in_right_labels(tokenizer: ChatTokenizer) -> None:
    assert found(tokenizer, lambda labels, ids: None) == {}


def test_the_templates_text_within_an_answer_may_be_supervised(tokenizer: ChatTokenizer) -> None:
    def supervise_frames(labels: Labels, ids: Labels) -> None:
        free = np.array([mark == "." for mark in WANTED])
        labels[free] = ids[free]

    assert found(tokenizer, supervise_frames) == {}


@pytest.mark.parametrize(
    ("position", "told"),
    [
        (5, {1: "supervises 1 of user ('a')"}),
        (8, {1: "supervises 1 of header ('\\n')"}),
        (12, {1: "masks 1 of reasoning ('w')"}),
        (19, {1: "masks 1 of content ('c')"}),
        (24, {1: "masks 1 of tool_call (')')"}),
        (25, {1: "masks 1 of stop ('<|im_end|>')"}),
        (26, {1: "supervises 1 of scaffold ('\\n')"}),
        (29, {2: "supervises 1 of content ('e')"}),
    ],
)
def test_a_single_wrong_token_is_found_and_named(
    tokenizer: ChatTokenizer, position: int, told: dict[int, str]
) -> None:
    def flip(labels: Labels, ids: Labels) -> None:
        masked = labels[position] == IGNORE_INDEX
        labels[position] = ids[position] if masked else IGNORE_INDEX

    assert found(tokenizer, flip) == told


def test_a_label_that_is_no_copy_of_its_token_is_found(tokenizer: ChatTokenizer) -> None:
    def swap(labels: Labels, ids: Labels) -> None:
        labels[19] = ids[20]

    assert found(tokenizer, swap) == {1: "changes 1 of content ('c')"}
