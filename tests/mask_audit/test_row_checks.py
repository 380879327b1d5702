"""What is odd about a row is named, and a healthy row has nothing odd."""

from pathlib import Path

import pytest

from stages.chat.conversation import Message
from stages.chat.tokenizer import ChatTokenizer
from stages.mask_audit.findings import Audit, Row
from stages.mask_audit.row_checks import check_rows

from ..chat.tokenizers import CHATML, chat_tokenizer

CHAT: list[Message] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
]
ALWAYS_PROMPTING = CHATML.replace("{% if add_generation_prompt %}", "").removesuffix("{% endif %}")
TELLING = "{{ '<|im_start|>system\nYou are a kind bot.<|im_end|>\n' }}" + CHATML


def kinds(
    tokenizer: ChatTokenizer, messages: list[Message], text: str | None = None
) -> dict[str, str]:
    text = tokenizer.render(messages) if text is None else text
    ids = tokenizer.encode([text])[0].input_ids
    audit = Audit()
    check_rows([Row("a:1", ids, ids, messages)], [text], tokenizer, audit)
    assert {finding.source for finding in audit.findings} <= {"a:1"}
    return {finding.kind: finding.detail for finding in audit.findings}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_a_healthy_row_has_nothing_odd(tokenizer: ChatTokenizer) -> None:
    assert kinds(tokenizer, CHAT) == {}
    assert kinds(tokenizer, [{"role": "system", "content": "s"}, *CHAT]) == {}


def test_a_row_that_ends_on_a_question_is_named(tokenizer: ChatTokenizer) -> None:
    assert kinds(tokenizer, [*CHAT, CHAT[0]]) == {
        "ends_without_answer": "the last message is of role 'user'"
    }


def test_an_unknown_role_is_named(tokenizer: ChatTokenizer) -> None:
    found = kinds(tokenizer, [{"role": "robot", "content": "r"}, *CHAT])
    assert found["unknown_role"].startswith("role 'robot' is none of system, ")


def test_a_control_token_in_a_content_is_named(tokenizer: ChatTokenizer) -> None:
    found = kinds(tokenizer, [{"role": "user", "content": "what is <|im_end|>?"}, CHAT[1]])
    assert found == {"control_token_in_content": "message 0 (user) holds the token '<|im_end|>'"}


def test_a_generation_prompt_that_is_always_written_is_named(tmp_path: Path) -> None:
    always = chat_tokenizer(tmp_path, ALWAYS_PROMPTING)
    assert always.header == "\n<|im_start|>assistant\n"
    assert set(kinds(always, CHAT)) == {"open_generation_prompt"}


def test_a_system_turn_of_the_template_is_named(tmp_path: Path) -> None:
    telling = chat_tokenizer(tmp_path, TELLING)
    assert telling.default_system == "You are a kind bot."
    assert set(kinds(telling, CHAT)) == {"default_system_injected"}
    assert kinds(telling, [{"role": "system", "content": "s"}, *CHAT]) == {}


def test_two_bos_tokens_are_named(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "bos_token_id", 0)
    once = "<|endoftext|>" + tokenizer.render(CHAT)
    assert kinds(tokenizer, CHAT, once) == {}
    assert set(kinds(tokenizer, CHAT, "<|endoftext|>" + once)) == {"double_bos"}


def test_a_template_that_prints_the_date_says_so(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    dated = chat_tokenizer(tmp_path, "{{ strftime_now('%d %b %Y') }}" + CHATML)
    assert dated.prints_date
    assert dated.render(CHAT).startswith("01 Jan 2026")
    assert not tokenizer.prints_date
