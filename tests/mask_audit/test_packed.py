"""Packed rows are taken apart and audited, and what is wrong at a border is named by its row."""

from collections.abc import Callable

import pytest

from stages.chat.collator import collate
from stages.chat.packed import pack_batch
from stages.chat.token_store import TokenRow
from stages.chat.tokenizer import ChatTokenizer
from stages.mask_audit.audit import audit_collated
from stages.mask_audit.findings import Audit
from stages.mask_audit.packed import Batch, audit_packed

from ..chat.test_labels import TWO_TURNS, label
from ..chat.tokenizers import chat_tokenizer

OTHERS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def rows_of(tokenizer: ChatTokenizer) -> list[TokenRow]:
    labelled = [label(tokenizer, messages) for messages in (TWO_TURNS, OTHERS, TWO_TURNS[:3])]
    return [TokenRow(f"a:{n}", r.input_ids, r.labels, r.roles) for n, r in enumerate(labelled)]


def audited(tokenizer: ChatTokenizer, corrupt: Callable[[Batch, int], None]) -> Audit:
    """Audit a:0 and a:1 in one row and a:2 in another, after `corrupt` has changed them in place.

    It is told where the second document begins.
    """
    rows = rows_of(tokenizer)
    packed = pack_batch(collate(rows, tokenizer.pad_token_id), [2, 1], tokenizer.pad_token_id)
    batch = {name: tensor.numpy() for name, tensor in packed.items()}
    corrupt(batch, len(rows[0].input_ids))
    audit = Audit()
    audit_packed(batch, [rows[:2], rows[2:]], tokenizer, audit)
    return audit


def test_sound_packed_rows_are_what_the_same_rows_are_alone(tokenizer: ChatTokenizer) -> None:
    packed = audited(tokenizer, lambda batch, border: None)
    rows, alone = rows_of(tokenizer), Audit()
    batch = collate(rows, tokenizer.pad_token_id)
    audit_collated({name: t.numpy() for name, t in batch.items()}, rows, tokenizer, alone)
    assert packed.findings == alone.findings == []
    assert packed.rows == 3
    assert (packed.must_supervise, packed.must_mask) == (alone.must_supervise, alone.must_mask)


def positions_run_on(batch: Batch, border: int) -> None:
    batch["position_ids"][0] = range(batch["position_ids"].shape[1])


def target_at_the_border(batch: Batch, border: int) -> None:
    batch["labels"][0, border] = batch["input_ids"][0, border]


def padding_runs_on(batch: Batch, border: int) -> None:
    batch["position_ids"][1] = range(batch["position_ids"].shape[1])


def padding_supervised(batch: Batch, border: int) -> None:
    batch["labels"][1, -2:] = 0


def last_label_masked(batch: Batch, border: int) -> None:
    batch["labels"][0, batch["labels"][0] != -100] = -100


def a_token_changed(batch: Batch, border: int) -> None:
    batch["input_ids"][0, border + 1] += 1


def documents_swapped(batch: Batch, border: int) -> None:
    for name in batch:
        batch[name][0] = [*batch[name][0, border:], *batch[name][0, :border]]


@pytest.mark.parametrize(
    ("corrupt", "expected"),
    [
        (positions_run_on, {("a:1", "positions_wrong")}),
        (target_at_the_border, {("a:1", "target_across_border")}),
        (padding_runs_on, {("a:2", "positions_wrong")}),
        (padding_supervised, {("a:2", "padding_supervised")}),
        (
            last_label_masked,
            {(row, kind) for row in ("a:0", "a:1") for kind in ("content_masked", "stop_masked")},
        ),
        (a_token_changed, {("a:1", "collated_tokens_differ")}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_is_named_by_its_document(
    tokenizer: ChatTokenizer,
    corrupt: Callable[[Batch, int], None],
    expected: set[tuple[str, str]],
) -> None:
    findings = audited(tokenizer, corrupt).findings
    assert {(finding.source, finding.kind) for finding in findings} == expected


def test_documents_in_another_order_are_found(tokenizer: ChatTokenizer) -> None:
    findings = audited(tokenizer, documents_swapped).findings
    kinds = {(finding.source, finding.kind) for finding in findings}
    assert {("a:0", "collated_tokens_differ"), ("a:0", "positions_wrong")} <= kinds
