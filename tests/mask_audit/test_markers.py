"""A template's own generation markers are held against the labels."""

from pathlib import Path

import pytest

from stages.chat.conversation import Conversation
from stages.mask_audit.findings import Audit
from stages.mask_audit.prepare import Preparer

from ..chat.test_labels import TWO_TURNS
from ..chat.tokenizers import CHATML, chat_tokenizer
from ..settings import make_params

HEADER = "'<|im_start|>' + message['role'] + '\n'"
BODY = "message['content'] + '<|im_end|>'"


def marked(before: str, inside: str, after: str) -> str:
    """ChatML with `inside` of every assistant turn in a generation block."""
    block = "{% generation %}{{ " + inside + " }}{% endgeneration %}"
    turn = ("{{ " + before + " }}" if before else "") + block + ("{{ " + after + " }}")
    plain = CHATML.split("{% for message in messages %}")[1].split("{% endfor %}")[0]
    return (
        "{% for message in messages %}{% if message['role'] == 'assistant' %}"
        + turn
        + "{% else %}"
        + plain
        + "{% endif %}{% endfor %}"
        + CHATML.split("{% endfor %}")[1]
    )


def differences(directory: Path, template: str) -> list[tuple[int, int, str]]:
    params = make_params()
    preparer = Preparer(chat_tokenizer(directory, template), params.data, params.labels)
    audit = Audit()
    conversation = Conversation("id", "a:1", TWO_TURNS)
    (prepared,) = preparer.prepare([conversation], audit)
    assert prepared.dropped is None, prepared.detail
    return [
        (found.position, found.count, found.detail)
        for found in audit.findings
        if found.kind == "markers_differ"
    ]


@pytest.mark.parametrize("template", [CHATML, marked(HEADER, BODY, "'\n'")])
def test_right_markers_and_no_markers_raise_no_alarm(tmp_path: Path, template: str) -> None:
    assert differences(tmp_path, template) == []


def test_a_marked_newline_after_the_header_is_named_at_its_token(tmp_path: Path) -> None:
    wrong = marked("'<|im_start|>' + message['role']", f"'\n' + {BODY}", "'\n'")
    ((position, count, detail),) = differences(tmp_path, wrong)
    first_answer = len("<>system\ns<>\n<>user\nab<>\n<>assistant") - 5  # one token a marker
    assert (position, count) == (first_answer, 2)
    assert detail == "the template marks '\\n', the policy does not"


def test_a_stop_token_outside_the_markers_is_named(tmp_path: Path) -> None:
    wrong = marked(HEADER, "message['content']", "'<|im_end|>\n'")
    ((_, count, detail),) = differences(tmp_path, wrong)
    assert count == 2
    assert detail == "the template leaves out '<|im_end|>', the policy does not"
