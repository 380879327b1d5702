"""Every way to get labels wrong is found, and named at its row and token."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.chat.conversation import Message
from stages.chat.labels import IGNORE_INDEX, Role
from stages.chat.token_store import TokenRow
from stages.chat.tokenizer import ChatTokenizer
from stages.mask_audit.audit import audit_collated, audit_rows
from stages.mask_audit.findings import Audit, Row

from ..chat.test_labels import TWO_TURNS, label
from ..chat.tokenizers import CHATML, TODAY, chat_tokenizer
from ..settings import ROOT, make_params

Labels = NDArray[np.int32]
POLICY = make_params().labels


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def audited(
    tokenizer: ChatTokenizer,
    corrupt: Callable[[Labels, Labels], Labels],
    messages: list[Message] = TWO_TURNS,
) -> Audit:
    """Audit a row whose labels `corrupt(labels, ids)` has replaced."""
    row = label(tokenizer, messages)
    labels = corrupt(row.labels.copy(), row.input_ids)
    audit = Audit()
    audit_rows([Row("a:1", row.input_ids, labels, messages)], tokenizer, POLICY, audit)
    return audit


def positions(tokenizer: ChatTokenizer, role: Role) -> NDArray[np.int64]:
    return np.flatnonzero(label(tokenizer, TWO_TURNS).roles == role)


def test_right_labels_are_counted_and_nothing_is_found(tokenizer: ChatTokenizer) -> None:
    audit = audited(tokenizer, lambda labels, ids: labels)
    assert audit.findings == []
    assert (audit.rows, audit.must_supervise) == (1, len("cd") + len("f") + 2)
    assert audit.must_mask + audit.must_supervise == len(label(tokenizer, TWO_TURNS).labels)


def invert(labels: Labels, ids: Labels) -> Labels:
    return np.where(labels == IGNORE_INDEX, ids, np.int32(IGNORE_INDEX)).astype(np.int32)


def shift_left(labels: Labels, ids: Labels) -> Labels:
    return np.append(labels[1:], np.int32(IGNORE_INDEX)).astype(np.int32)


def shift_right(labels: Labels, ids: Labels) -> Labels:
    return np.append(np.int32(IGNORE_INDEX), labels[:-1]).astype(np.int32)


def mask_stop(labels: Labels, ids: Labels) -> Labels:
    labels[np.flatnonzero(labels == 2)[-1]] = IGNORE_INDEX
    return labels


def mask_all(labels: Labels, ids: Labels) -> Labels:
    return np.full_like(labels, IGNORE_INDEX)


def mask_first_of_answer(labels: Labels, ids: Labels) -> Labels:
    labels[np.flatnonzero(labels != IGNORE_INDEX)[0]] = IGNORE_INDEX
    return labels


def unmask_header(labels: Labels, ids: Labels) -> Labels:
    position = np.flatnonzero(labels != IGNORE_INDEX)[0] - 1
    labels[position] = ids[position]
    return labels


def unmask_user(labels: Labels, ids: Labels) -> Labels:
    labels[20] = ids[20]
    return labels


def unmask_newline_after_stop(labels: Labels, ids: Labels) -> Labels:
    labels[-1] = ids[-1]
    return labels


def last_turn_only(labels: Labels, ids: Labels) -> Labels:
    supervised = np.flatnonzero(labels != IGNORE_INDEX)
    labels[supervised[:3]] = IGNORE_INDEX
    return labels


def other_ids(labels: Labels, ids: Labels) -> Labels:
    labels[labels != IGNORE_INDEX] += 1
    return labels


@pytest.mark.parametrize(
    ("corrupt", "kinds"),
    [
        (
            invert,
            {
                *("prompt_supervised", "header_supervised", "scaffold_differs"),
                *("content_masked", "stop_masked"),
            },
        ),
        (shift_left, {"label_differs_from_input", "header_supervised", "stop_masked"}),
        (shift_right, {"label_differs_from_input", "content_masked", "scaffold_differs"}),
        (mask_stop, {"stop_masked"}),
        (mask_all, {"no_supervised_token", "content_masked", "stop_masked"}),
        (mask_first_of_answer, {"content_masked"}),
        (unmask_header, {"header_supervised"}),
        (unmask_user, {"prompt_supervised"}),
        (unmask_newline_after_stop, {"scaffold_differs"}),
        (last_turn_only, {"content_masked", "stop_masked"}),
        (other_ids, {"label_differs_from_input"}),
    ],
)
def test_a_corruption_is_named(
    tokenizer: ChatTokenizer, corrupt: Callable[[Labels, Labels], Labels], kinds: set[str]
) -> None:
    audit = audited(tokenizer, corrupt)
    assert {finding.kind for finding in audit.findings} == kinds
    assert {finding.source for finding in audit.findings} == {"a:1"}


def test_a_finding_names_the_first_wrong_token_and_counts_them(tokenizer: ChatTokenizer) -> None:
    (content,) = audited(tokenizer, mask_first_of_answer).findings
    assert content.position == positions(tokenizer, Role.CONTENT)[0]
    assert (content.count, content.detail) == (1, "tokens 'c'")
    (stop,) = audited(tokenizer, mask_stop).findings
    assert stop.position == positions(tokenizer, Role.STOP)[-1]
    inverted = {finding.kind: finding for finding in audited(tokenizer, invert).findings}
    assert inverted["content_masked"].count == 3
    assert inverted["stop_masked"].count == 2
    header = 2 * (1 + len("assistant\n"))
    assert inverted["header_supervised"].count == header


def test_a_token_of_white_space_and_text_after_the_templates_own_is_judged(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "data/tokenizer", tmp_path, dirs_exist_ok=True)
    template = tmp_path / "chat_template.jinja"
    text = template.read_text()
    lead = "('\\n\\n' if message['role'] == 'assistant' else '')"
    template.write_text(text.replace("~ message['content']", f"~ {lead} ~ message['content']"))
    tokenizer = ChatTokenizer(str(tmp_path), TODAY)
    messages: list[Message] = [
        {"role": "user", "content": "why"},
        {"role": "assistant", "content": " slow scrape"},
    ]
    row = label(tokenizer, messages)
    first = int(np.flatnonzero(row.roles == Role.CONTENT)[0])
    assert tokenizer.decode([int(row.input_ids[first])]) == " slow"
    assert audited(tokenizer, lambda labels, ids: labels, messages).findings == []
    (finding,) = audited(tokenizer, mask_first_of_answer, messages).findings
    assert (finding.kind, finding.position) == ("content_masked", first)


def test_a_finding_has_every_stretch_of_wrong_tokens(tokenizer: ChatTokenizer) -> None:
    inverted = {finding.kind: finding for finding in audited(tokenizer, invert).findings}
    first, second = positions(tokenizer, Role.STOP).tolist()
    assert inverted["stop_masked"].runs == ((first, first + 1), (second, second + 1))
    assert inverted["content_masked"].runs == ((first - 2, first), (second - 1, second))
    assert inverted["scaffold_differs"].runs == ((first + 1, first + 2), (second + 1, second + 2))


def test_an_answer_outside_the_policy_is_prompt(tokenizer: ChatTokenizer) -> None:
    row = label(tokenizer, TWO_TURNS)
    audit = Audit()
    last_only = make_params(labels__turns="last").labels
    audit_rows([Row("a:1", row.input_ids, row.labels, TWO_TURNS)], tokenizer, last_only, audit)
    assert [(finding.kind, finding.detail) for finding in audit.findings] == [
        ("prompt_supervised", "tokens 'cd'"),
        ("prompt_supervised", "tokens '<|im_end|>'"),
    ]


WITHOUT_REASONING: list[Message] = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4", "reasoning_content": "4"},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "4"},
]


def test_an_answer_that_says_what_was_thought_is_found_without_its_reasoning(
    tokenizer: ChatTokenizer,
) -> None:
    audit = audited(tokenizer, lambda labels, ids: labels, WITHOUT_REASONING)
    assert [finding.kind for finding in audit.findings] == ["reasoning_dropped"]


def test_a_dropped_call_that_the_next_answer_names_is_missed_where_it_was_made(
    tokenizer: ChatTokenizer,
) -> None:
    call = {"type": "function", "function": {"name": "find", "arguments": {"word": "cat"}}}
    messages: list[Message] = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "here"},
        {"role": "assistant", "content": "find says of cat: here"},
    ]
    audit = audited(tokenizer, lambda labels, ids: labels, messages)
    assert [(finding.kind, finding.detail) for finding in audit.findings] == [
        ("call_dropped", "message 1 calls 'find': not in the row")
    ]


def test_white_space_between_parts_that_a_template_joins_trimmed_is_missed(
    tmp_path: Path,
) -> None:
    joining = CHATML.replace(
        "message['content']",
        "(message['content'] if message['content'] is string "
        "else message['content'] | map(attribute='text') | map('trim') | join)",
    )
    messages: list[Message] = [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": [{"type": "text", "text": t} for t in ("Hi. ", "Bye.")]},
    ]
    tokenizer = chat_tokenizer(tmp_path, joining)
    audit = audited(tokenizer, lambda labels, ids: labels, messages)
    assert [(finding.kind, finding.detail) for finding in audit.findings] == [
        ("content_trimmed", "message 1 (assistant) has lost white space between its parts")
    ]


def test_one_wrong_row_in_a_thousand_is_found(tokenizer: ChatTokenizer) -> None:
    row = label(tokenizer, TWO_TURNS)
    wrong = mask_stop(row.labels.copy(), row.input_ids)
    rows = [
        Row(f"a:{n}", row.input_ids, wrong if n == 617 else row.labels, TWO_TURNS)
        for n in range(1000)
    ]
    audit = Audit()
    audit_rows(rows, tokenizer, POLICY, audit)
    assert [(finding.source, finding.kind) for finding in audit.findings] == [
        ("a:617", "stop_masked")
    ]


def test_an_id_outside_the_vocabulary_is_named(tokenizer: ChatTokenizer) -> None:
    row = label(tokenizer, TWO_TURNS)
    ids = row.input_ids.copy()
    ids[3] = tokenizer.vocab_size
    audit = Audit()
    audit_rows([Row("a:1", ids, row.labels, TWO_TURNS)], tokenizer, POLICY, audit)
    (finding,) = audit.findings
    assert (finding.kind, finding.position) == ("id_outside_vocabulary", 3)


def test_tokens_of_another_conversation_are_found(tokenizer: ChatTokenizer) -> None:
    row = label(tokenizer, TWO_TURNS)
    said = [*TWO_TURNS[:-1], {"role": "assistant", "content": "g"}]
    audit = Audit()
    audit_rows([Row("a:1", row.input_ids, row.labels, said)], tokenizer, POLICY, audit)
    assert [(finding.kind, finding.detail) for finding in audit.findings] == [
        ("content_dropped", "message 4 (assistant) is not in the row as it was said"),
        ("prompt_supervised", "tokens 'f<|im_end|>'"),
    ]


@pytest.mark.parametrize("length", range(20, 70, 3))
def test_a_cut_row_is_right_as_far_as_it_goes(tokenizer: ChatTokenizer, length: int) -> None:
    row = label(tokenizer, TWO_TURNS).first(length)
    audit = Audit()
    cut = Row("a:1", row.input_ids, row.labels, TWO_TURNS, truncated=True)
    audit_rows([cut], tokenizer, POLICY, audit)
    kinds = {finding.kind for finding in audit.findings}
    assert kinds <= {"no_supervised_token"}


@pytest.mark.parametrize(
    "content", ["user", "a", "assistant\n", "<|im_end|>", "[[1, 2], [3]]", "\n", " é😀", ""]
)
def test_contents_that_look_like_template_text_raise_no_alarm(
    tokenizer: ChatTokenizer, content: str
) -> None:
    messages: list[Message] = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": content},
        {"role": "user", "content": content},
        {"role": "assistant", "content": content},
    ]
    assert audited(tokenizer, lambda labels, ids: labels, messages).findings == []


Batch = dict[str, NDArray[np.int64]]


def collated(tokenizer: ChatTokenizer, corrupt: Callable[[Batch], None]) -> Audit:
    """Audit two rows, padded to one length, after `corrupt` has changed the batch in place."""
    labelled = [label(tokenizer, TWO_TURNS), label(tokenizer, TWO_TURNS[:3])]
    rows = [TokenRow(f"a:{n}", r.input_ids, r.labels, r.roles) for n, r in enumerate(labelled)]
    shape = (2, len(rows[0].input_ids))
    batch = {
        "input_ids": np.zeros(shape, np.int64),
        "attention_mask": np.zeros(shape, np.int64),
        "labels": np.full(shape, IGNORE_INDEX, np.int64),
    }
    for index, row in enumerate(rows):
        length = len(row.input_ids)
        batch["input_ids"][index, :length] = row.input_ids
        batch["attention_mask"][index, :length] = 1
        batch["labels"][index, :length] = row.labels
    corrupt(batch)
    audit = Audit()
    audit_collated(batch, rows, tokenizer, audit)
    return audit


def supervise_padding(batch: Batch) -> None:
    batch["labels"][1, -2:] = 0


def mask_every_pad_id(batch: Batch) -> None:
    batch["labels"][batch["labels"] == 2] = IGNORE_INDEX


def change_a_token(batch: Batch) -> None:
    batch["input_ids"][0, 4] += 1


def attend_to_padding(batch: Batch) -> None:
    batch["attention_mask"][1, -1] = 1


def shift_labels(batch: Batch) -> None:
    batch["labels"][:, :-1] = batch["labels"][:, 1:].copy()


@pytest.mark.parametrize(
    ("corrupt", "kinds", "sources"),
    [
        (lambda batch: None, set(), set()),
        (supervise_padding, {"padding_supervised"}, {"a:1"}),
        (mask_every_pad_id, {"stop_masked"}, {"a:0", "a:1"}),
        (change_a_token, {"collated_tokens_differ"}, {"a:0"}),
        (attend_to_padding, {"attention_mask_wrong"}, {"a:1"}),
        (
            shift_labels,
            {"labels_shifted", "label_differs_from_input", "header_supervised", "stop_masked"},
            {"a:0", "a:1"},
        ),
    ],
)
def test_what_a_collator_breaks_is_named(
    tokenizer: ChatTokenizer,
    corrupt: Callable[[Batch], None],
    kinds: set[str],
    sources: set[str],
) -> None:
    audit = collated(tokenizer, corrupt)
    assert {finding.kind for finding in audit.findings} == kinds
    assert {finding.source for finding in audit.findings} == sources
