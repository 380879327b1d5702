"""The sample on the page is bounded, evenly spaced, and has some of everything that happened."""

from collections.abc import Sequence

import numpy as np
import pytest

from stages.chat.conversation import Conversation
from stages.chat.labels import IGNORE_INDEX, Labelled, Role
from stages.chat.token_store import TokenRow
from stages.chat.tokenizer import ChatTokenizer
from stages.mask_audit import sampling
from stages.mask_audit.findings import Finding, Kind
from stages.mask_audit.prepare import Drop, Prepared
from stages.mask_audit.sampling import COLLATED, KIND_ROWS, STATUS_ROWS, Sampler

from ..chat.tokenizers import chat_tokenizer

IDS = np.array([3, 4, 5], np.int32)
LABELS = np.array([IGNORE_INDEX, 4, 5], np.int32)
ROLES = np.array([Role.USER, Role.CONTENT, Role.STOP], np.uint8)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def make_row(
    number: int, *kinds: Kind, dropped: Drop | None = None, truncated: bool = False
) -> Prepared:
    source = f"a.jsonl:{number}"
    labelled = Labelled(IDS, LABELS, ROLES, np.zeros(0, np.int64))
    return Prepared(
        Conversation("digest", source, [{"role": "user", "content": "x"}]),
        text="x",
        tokens=3,
        row=None if dropped == "template_refuses" else labelled,
        dropped=dropped,
        detail="too long" if dropped else "",
        truncated=truncated,
        findings=[Finding(kind, source, 1, 1, "detail") for kind in kinds],
    )


def sample(rows: Sequence[Prepared], wanted: int, tokenizer: ChatTokenizer) -> Sampler:
    sampler = Sampler(wanted, len(rows), tokenizer)
    for row in rows:
        sampler.look_at(row, "train")
    return sampler


def anchors(sampler: Sampler) -> list[str]:
    return [view.anchor for view in sampler.views]


def test_rows_are_evenly_spaced_and_numbered_from_one(tokenizer: ChatTokenizer) -> None:
    sampler = sample([make_row(number) for number in range(1, 10)], 3, tokenizer)
    assert anchors(sampler) == ["row-1", "row-4", "row-7"]
    view = sampler.views[1]
    assert (view.source, view.split, view.status, view.total) == ("a.jsonl:4", "train", "kept", 3)
    assert view.ids == [3, 4, 5]
    assert view.labels == [-100, 4, 5]
    assert view.roles == ["user", "content", "stop"]
    assert view.tokens == ["!", '"', "#"]


def test_rows_with_findings_are_taken_until_there_are_enough(tokenizer: ChatTokenizer) -> None:
    faulty = [make_row(number, "stop_masked") for number in range(1, 41)]
    sampler = sample(faulty, 20, tokenizer)
    assert KIND_ROWS < 20
    assert len(sampler.views) == 20 + 10  # the first 20, then each second one of the rest
    assert sampler.views[0].findings[0].kind == "stop_masked"


def test_a_rare_kind_is_taken_after_many_of_another(tokenizer: ChatTokenizer) -> None:
    rows = [make_row(number, "stop_masked") for number in range(1, 41)]
    rows.append(make_row(41, "prompt_supervised"))
    rows.append(make_row(42, "stop_masked"))
    assert anchors(sample(rows, 1, tokenizer))[-2:] == [f"row-{KIND_ROWS}", "row-41"]


def test_some_rows_of_each_status_are_taken(tokenizer: ChatTokenizer) -> None:
    rows = [make_row(number) for number in range(1, 101)]
    rows += [make_row(number, truncated=True) for number in range(101, 121)]
    rows += [make_row(number, dropped="too_long") for number in range(121, 141)]
    taken = [view.status for view in sample(rows, 1, tokenizer).views]
    assert taken == ["kept"] + ["cut"] * STATUS_ROWS + ["dropped: too_long"] * STATUS_ROWS


def test_a_row_that_the_template_refuses_has_a_reason_and_no_tokens(
    tokenizer: ChatTokenizer,
) -> None:
    (view,) = sample([make_row(1, dropped="template_refuses")], 1, tokenizer).views
    assert (view.tokens, view.total, view.detail) == ([], 0, "too long")


def test_long_rows_and_many_tokens_are_cut_and_counted(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "ROW_TOKENS", 2)
    monkeypatch.setattr(sampling, "PAGE_TOKENS", 5)
    sampler = sample([make_row(number) for number in range(1, 5)], 4, tokenizer)
    assert [(len(view.ids), view.total) for view in sampler.views] == [(2, 3), (2, 3)]
    assert sampler.left_out == 2


def test_a_row_that_the_collator_changed_is_shown_as_it_reaches_forward(
    tokenizer: ChatTokenizer,
) -> None:
    rows = [TokenRow(f"a.jsonl:{number}", IDS, LABELS, ROLES) for number in (1, 2)]
    batch = {
        "input_ids": np.array([[3, 4, 5, 0], [0, 3, 4, 5]]),
        "attention_mask": np.array([[1, 1, 1, 0], [0, 1, 1, 1]]),
        "labels": np.array([[-100, 4, 5, -100], [-100, -100, 4, -100]]),
    }
    sampler = Sampler(4, 2, tokenizer)
    sampler.look_at_batch(
        rows, "validation", batch, [Finding("stop_masked", "a.jsonl:2", 2, 1, "tokens '#'")]
    )
    (view,) = sampler.views
    assert (view.anchor, view.source, view.status) == ("collated-1", "a.jsonl:2", COLLATED)
    assert view.split == "validation"
    assert view.roles == ["pad", "user", "content", "stop"]
    assert view.labels == [-100, -100, 4, -100]
    assert view.findings[0].position == 3  # the stop token stands behind one padding token
