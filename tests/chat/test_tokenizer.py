"""What a tokenizer and its template are asked: header, stop tokens, pad token."""

import json
from pathlib import Path

import pytest

from stages.chat.tokenizer import ChatTokenizer
from stages.config import UserError

from .tokenizers import CHATML, TODAY, byte_tokenizer, chat_tokenizer

NEXT_ROLE_STOPS = (
    "{% for m in messages %}{{ ('<|im_start|>' if m['role'] == 'user' else '<|endoftext|>') "
    "+ m['content'] }}{% endfor %}{% if add_generation_prompt %}{{ '<|endoftext|>' }}{% endif %}"
)
THINKING_PROMPT = CHATML.replace(
    "assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}"
)
REPLACING_PROMPT = CHATML.replace(
    "{% if add_generation_prompt %}", "{% if not add_generation_prompt %}<|endoftext|>{% else %}"
)


@pytest.mark.parametrize(
    ("template", "header"),
    [
        (CHATML, "<|im_start|>assistant\n"),
        (THINKING_PROMPT, "<|im_start|>assistant\n"),
        (REPLACING_PROMPT, "<|im_start|>assistant\n"),
    ],
    ids=["chatml", "an open think block", "in place of an end"],
)
def test_the_header_is_what_prompt_and_training_text_share(
    tmp_path: Path, template: str, header: str
) -> None:
    assert chat_tokenizer(tmp_path, template).header == header


def test_the_token_of_the_next_role_ends_an_answer_where_nothing_else_does(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(tmp_path, NEXT_ROLE_STOPS)
    assert tokenizer.stop_tokens == ["<|im_start|>"]


def test_a_token_that_opens_every_turn_ends_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="writes no stop token after an answer"):
        chat_tokenizer(tmp_path, CHATML.replace("<|im_end|>", ""))


def without_pad(directory: Path) -> str:
    config = directory / "tokenizer_config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    del content["pad_token"]
    config.write_text(json.dumps(content), encoding="utf-8")
    return str(directory)


def test_an_added_token_that_no_template_writes_pads_where_none_is_declared(
    tmp_path: Path,
) -> None:
    tokenizer = ChatTokenizer(without_pad(byte_tokenizer(tmp_path)), TODAY)
    assert tokenizer.decode([tokenizer.pad_token_id]) == "<|endoftext|>"


def test_a_tokenizer_without_any_token_to_pad_with_is_refused(tmp_path: Path) -> None:
    template = CHATML.replace("'<|im_start|>'", "'<|endoftext|><|im_start|>'")
    with pytest.raises(UserError, match="has no pad token; set 'pad_token'"):
        ChatTokenizer(without_pad(byte_tokenizer(tmp_path, template)), TODAY)


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}" + CHATML,
        "{{ foo.bar.baz }}" + CHATML,
        "{{ '{x}'.format(y=1) }}" + CHATML,
        "{{ raise_exception('no') }}" + CHATML,
    ],
)
def test_a_template_that_cannot_render_is_refused_in_one_sentence(
    tmp_path: Path, template: str
) -> None:
    with pytest.raises(UserError, match=r"cannot render a plain question and answer: .+; mend"):
        chat_tokenizer(tmp_path, template)


def test_a_template_that_demands_a_system_turn_is_probed_with_one(tmp_path: Path) -> None:
    demand = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    tokenizer = chat_tokenizer(tmp_path, demand + CHATML)
    assert tokenizer.header == "<|im_start|>assistant\n"
    assert tokenizer.stop_tokens == ["<|im_end|>"]
    assert tokenizer.default_system == ""


@pytest.mark.parametrize("generation_prompt", [False, True])
def test_plain_messages_are_rendered_as_transformers_renders_them(
    tmp_path: Path, generation_prompt: bool
) -> None:
    dated = "{{ strftime_now('%Y') }}{{ eos_token }}{{ tools is none }}{{ documents is none }}"
    tokenizer = chat_tokenizer(tmp_path, dated + CHATML)
    plain = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b\n"}]
    more = [{**message, "note": "x"} for message in plain]  # rendered by apply_chat_template
    assert tokenizer.render(plain, generation_prompt=generation_prompt) == tokenizer.render(
        more, generation_prompt=generation_prompt
    )


def test_marked_stretches_are_the_same_for_plain_and_other_messages(tmp_path: Path) -> None:
    marked = CHATML.replace(
        "message['content']",
        "'' }}{% generation %}{{ message['content'] }}{% endgeneration %}{{ ''",
    )
    tokenizer = chat_tokenizer(tmp_path, marked)
    plain = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
    more = [{**message, "note": "x"} for message in plain]
    text, spans = tokenizer.render_marked(plain, None)
    assert (text, spans) == tokenizer.render_marked(more, None)
    assert [text[start:end] for start, end in spans] == ["ab", "cd"]
