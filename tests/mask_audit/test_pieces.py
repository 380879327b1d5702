"""A token is shown as its own text, and as bytes where these are a part of a character."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stages.chat.tokenizer import ChatTokenizer
from stages.mask_audit.pieces import Pieces, byte_of_character, bytes_of

from ..chat.tokenizers import CHATML, SPECIAL, TODAY, chat_tokenizer

WORDS = (
    "\u2581",
    "a",
    "b",
    "\u2581a",
    "\u2581b",
    "<0xF0>",
    "<0x9F>",
    "<0x98>",
    "<0x80>",
    "<0x41>",
    "<0x0A>",
)

MERGES = [("\u2581", "a"), ("\u2581", "b")]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """As Llama 2's: a word carries the space before it, unknown characters fall back to bytes."""
    return ChatTokenizer(str(save_sentencepiece(tmp_path_factory.mktemp("pieces"))), TODAY)


def save_sentencepiece(directory: Path) -> Path:
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, "<unk>", *WORDS))}
    core = Tokenizer(models.BPE(vocabulary, MERGES, unk_token="<unk>", byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens(list(SPECIAL))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(directory)
    return directory


def test_the_alphabet_covers_every_byte_once() -> None:
    assert sorted(byte_of_character().values()) == list(range(256))
    assert byte_of_character()["A"] == 0x41
    assert byte_of_character()["\u0120"] == 0x20
    assert byte_of_character()["\u010a"] == 0x0A


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("<0xF0>", b"\xf0"),
        ("<0x0a>", b"\n"),
        ("\u0120\u00f0\u0141", b" \xf0\x9f"),
        ("abc", b"abc"),
        ("\u2581abc", None),
    ],
)
def test_a_vocabulary_entry_is_read_as_bytes(piece: str, expected: bytes | None) -> None:
    assert bytes_of(piece) == expected


def test_the_bytes_of_a_character_are_shown_as_bytes(byte_level: ChatTokenizer) -> None:
    ids = byte_level.encode(["\u00fc!"])[0].input_ids.tolist()
    assert Pieces(byte_level).of(ids) == [b"\xc3", b"\xbc", "!"]


def test_white_space_and_special_tokens_are_their_own_text(byte_level: ChatTokenizer) -> None:
    ids = byte_level.encode(["<|im_end|> \n\t"])[0].input_ids.tolist()
    assert Pieces(byte_level).of(ids) == ["<|im_end|>", " ", "\n", "\t"]


def test_an_id_outside_the_vocabulary_has_no_text(byte_level: ChatTokenizer) -> None:
    assert Pieces(byte_level).of([byte_level.vocab_size + 5]) == [""]


def test_a_leading_space_is_not_lost(sentencepiece: ChatTokenizer) -> None:
    number = {entry: 4 + place for place, entry in enumerate(WORDS)}
    pieces = Pieces(sentencepiece)
    assert pieces.of([number["\u2581b"], number["b"]]) == [" b", "b"]
    assert pieces.of([number["<0xF0>"], number["<0x41>"], number["<0x0A>"]]) == [b"\xf0", "A", "\n"]
