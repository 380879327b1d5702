"""The tokenizer that comes with the repository."""

import datetime
from pathlib import Path

import pytest

from stages.chat.tokenizer import ChatTokenizer
from stages.demo.tokenizer import DIRECTORY, read_texts, train_tokenizer

from ..conftest import ROOT

COMMITTED = ROOT / DIRECTORY


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(str(COMMITTED), datetime.date(2026, 1, 1))


def test_training_it_again_writes_the_committed_bytes(tmp_path: Path) -> None:
    train_tokenizer(read_texts(ROOT / "data/incidents.jsonl")).save_pretrained(tmp_path)
    committed = {path.name: path.read_bytes() for path in COMMITTED.iterdir()}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == committed


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in COMMITTED.iterdir()) <= 200_000


@pytest.mark.parametrize(
    "text", ["", " ", "02:41 node17 ERROR kafka", "naïve 日本語 🚀\r\n\t", "<|im_end|>", '{"a":1}']
)
def test_every_text_comes_back(tokenizer: ChatTokenizer, text: str) -> None:
    (encoded,) = tokenizer.encode([text])
    assert tokenizer.decode(encoded.input_ids.tolist()) == text


def test_it_stops_at_the_end_of_a_turn_and_pads_with_another_token(
    tokenizer: ChatTokenizer,
) -> None:
    assert tokenizer.decode([tokenizer.stop_token_id]) == "<|im_end|>"
    assert tokenizer.decode([tokenizer.pad_token_id]) == "<|endoftext|>"
    assert tokenizer.header == "<|im_start|>assistant\n"


def test_words_that_decide_are_one_token(tokenizer: ChatTokenizer) -> None:
    words = [" ERROR", " FATAL", " kafka", " rabbitmq", " freeze", " allowed", "critical", "minor"]
    assert [len(encoded.input_ids) for encoded in tokenizer.encode(words)] == [1] * len(words)
