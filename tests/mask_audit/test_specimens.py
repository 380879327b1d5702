"""The rows that are corrupted on every run: few, cheap, of every kind, and always the same."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from stages.chat.conversation import Conversation, Message
from stages.chat.labels import Labelled, Role
from stages.chat.token_store import TokenRow, TokenStore, TokenWriter
from stages.chat.tokenizer import ChatTokenizer
from stages.config import UserError
from stages.mask_audit.specimens import choose_rows, choose_specimens, undecided_tokens

from ..chat.test_labels import TWO_TURNS, label
from ..chat.tokenizers import chat_tokenizer
from ..settings import make_params

POLICY = make_params().labels
LETTER = 3
"""An id of the byte tokenizer that is one character."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def store_of(directory: Path, rows: list[Labelled]) -> TokenStore:
    with TokenWriter("train", directory) as writer:
        for number, row in enumerate(rows):
            writer.append(f"a:{number + 1}", row)
    return TokenStore("train", directory)


def row_of(length: int, role: Role = Role.CONTENT) -> Labelled:
    ids = np.full(length, LETTER, np.int32)
    roles = np.full(length, role, np.uint8)
    return Labelled(ids, ids.copy(), roles, np.zeros(0, np.int64))


def numbers(rows: list[TokenRow]) -> list[int]:
    return [int(row.source.partition(":")[2]) for row in rows]


def test_the_shortest_the_longest_and_the_only_row_of_a_kind_are_among_them(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    rows = [row_of(10) for _ in range(100)]
    rows[41], rows[62], rows[83] = row_of(9), row_of(12), row_of(10, Role.TOOL)
    chosen = numbers(choose_rows(store_of(tmp_path, rows), tokenizer, 8, 1000))
    assert len(chosen) == 8
    assert {42, 63, 84} <= set(chosen)


def test_they_are_spread_over_the_rows(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    store = store_of(tmp_path, [row_of(10) for _ in range(1000)])
    chosen = numbers(choose_rows(store, tokenizer, 16, 1000))
    assert chosen == sorted(chosen)
    assert all(any(low < number <= low + 250 for number in chosen) for low in (0, 250, 500, 750))
    assert numbers(choose_rows(store, tokenizer, 16, 1000)) == chosen


def test_they_cost_no_more_than_they_may(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    rows = [row_of(30), row_of(60), row_of(1000), *(row_of(40) for _ in range(20))]
    chosen = choose_rows(store_of(tmp_path, rows), tokenizer, 16, 200)
    assert sum(len(row.input_ids) for row in chosen) <= 200
    assert {1, 3} & set(numbers(chosen)) == {1}


def test_rows_that_are_dear_to_audit_are_left_to_cheap_ones(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    split = row_of(50)
    split.input_ids[:] = tokenizer.encode(["é" * 25])[0].input_ids  # two tokens a character
    rows = [row_of(40), split, row_of(50)]
    assert numbers(choose_rows(store_of(tmp_path, rows), tokenizer, 3, 100)) == [1, 3]


def test_the_only_row_is_taken_whatever_it_costs(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    assert numbers(choose_rows(store_of(tmp_path, [row_of(50)]), tokenizer, 3, 10)) == [1]
    assert choose_rows(store_of(tmp_path, []), tokenizer, 3, 10) == []


def test_they_come_with_their_messages(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    said: list[list[Message]] = [TWO_TURNS, TWO_TURNS[:3]]
    rows = [label(tokenizer, messages) for messages in said]
    store = store_of(tmp_path, rows)
    conversations = [Conversation("", f"a:{n + 1}", messages) for n, messages in enumerate(said)]
    lines = [msgspec.json.encode(one) + b"\n" for one in (Conversation("", "b:1", []),)]
    lines += [msgspec.json.encode(one) + b"\n" for one in conversations]
    (tmp_path / "train.jsonl").write_bytes(b"".join(lines))
    cut_at = len(rows[1].input_ids)
    one, other = choose_specimens(tmp_path, {"train": store}, tokenizer, POLICY, cut_at)
    assert (one.messages, one.row.source, one.truncated) == (TWO_TURNS, "a:1", False)
    assert (other.messages, other.row.source, other.truncated) == (TWO_TURNS[:3], "a:2", True)


def test_tokens_of_other_rows_than_the_dataset_holds_are_refused(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    store = store_of(tmp_path, [label(tokenizer, TWO_TURNS)])
    (tmp_path / "train.jsonl").write_bytes(msgspec.json.encode(Conversation("", "b:1", [])))
    with pytest.raises(UserError, match="has no row a:1, which the tokens were made from; run"):
        choose_specimens(tmp_path, {"train": store}, tokenizer, POLICY, None)


def test_white_space_where_an_answer_begins_is_nobodys(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode(["a\n\n b c"])[0].input_ids
    roles = np.array([Role.USER, Role.REASONING, Role.SCAFFOLD, *[Role.CONTENT] * 4], np.uint8)
    row = TokenRow("a:1", ids, ids, roles)
    assert undecided_tokens(row, tokenizer, POLICY).tolist() == [
        *(False, True, True, True),
        *(False, False, False),
    ]
