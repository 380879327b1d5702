"""Is exactly what shall be learned supervised, token by token, in every row and every batch?

Reads artifacts/dataset/ and the tokenizer; renders, tokenises and labels every row, audits it
independently, and audits again the collated batches that reach `forward`. Writes artifacts/tokens/,
the verdict, and reports/mask_report/ (a page with coloured tokens, rows.csv with a line per row).

    python -m stages.mask_report
"""

import csv
import datetime
import shutil
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chat.collator import Batch, Collator, collate
from .chat.conversation import read_conversations
from .chat.labels import IGNORE_INDEX, Role
from .chat.packed import pack_batch
from .chat.split import DATASET, SPLITS, Split
from .chat.token_store import TOKENS, TokenMeta, TokenRow, TokenStore, TokenWriter, write_meta
from .chat.tokenizer import ChatTokenizer
from .config import Params, UserError
from .config.hooks import load_hook
from .config.launch import run_stage
from .config.load import is_watched
from .mask_audit.audit import audit_collated
from .mask_audit.controls import MIN_CONTROLS, Control, run_controls
from .mask_audit.findings import Audit, Finding, Kind
from .mask_audit.packed import audit_packed
from .mask_audit.prepare import Accounting, Prepared, Preparer
from .mask_audit.sampling import Sampler
from .mask_audit.sections import (
    controls_section,
    findings_section,
    lengths_section,
    policy_section,
    rows_section,
)
from .mask_audit.specimens import choose_specimens
from .mask_audit.workers import preparing
from .provenance.base_model import is_reference
from .provenance.environment import RENDERING_PACKAGES, software_environment
from .provenance.hashing import sha256_tree
from .provenance.records import read_metrics
from .reading.ingest import entropy_nats
from .report.page import Section, report_directory
from .report.publish import publish, publish_blocked
from .report.terminal import console, print_tokens, progress
from .training.batches import BatchPlan, Packs
from .verdict.judging import Measured, judge_all, overall_status, rank_causes
from .verdict.record import bind, make_verdict
from .verdict.rules.mask_report import CAUSES, NOT_COVERED, RULES

Arrays = dict[str, NDArray[np.int64]]
ODDITIES: tuple[Kind, ...] = (
    "markers_differ",
    "double_bos",
    "open_generation_prompt",
    "unknown_role",
    "ends_without_answer",
    "default_system_injected",
    "control_token_in_content",
)
FINDINGS_SHOWN = 20
FINDINGS_KEPT = 1_000
"""Of each kind, to choose from what is shown."""


@dataclass
class Tokenised:
    """What became of a data set: accounting by split, the audit, some rows to look at.

    tokens_by_status: rendered tokens, before any cut, by status of their rows; not_judgeable: the
    first of these, and why.
    """

    accounting: dict[Split, Accounting]
    sampler: Sampler
    audit: Audit = field(default_factory=lambda: Audit(limit=FINDINGS_KEPT))
    tokens_by_status: Counter[str] = field(default_factory=Counter)
    not_judgeable: list[str] = field(default_factory=list)


def tokenise(params: Params, tokenizer: ChatTokenizer, rows: int) -> Tokenised:
    """Write artifacts/tokens/ and rows.csv. `rows` is how many conversations there are."""
    shutil.rmtree(TOKENS, ignore_errors=True)
    empty = np.zeros(tokenizer.vocab_size, np.int64)
    sampler = Sampler(params.gates.mask.report_rows, rows, tokenizer)
    done = Tokenised({split: Accounting(empty.copy()) for split in SPLITS}, sampler)
    unsure = done.not_judgeable
    preparer = Preparer(tokenizer, params.data, params.labels)
    table = report_directory("mask_report") / "rows.csv"
    with (
        preparing(preparer, rows) as prepare,
        table.open("w", encoding="utf-8", newline="") as file,
        progress("rows") as bar,
    ):
        writer = csv.writer(file, lineterminator="\n")
        roles = [role.name.lower() for role in Role if role != Role.PAD]
        writer.writerow(("source", "split", "status", "tokens", "supervised", *roles, "findings"))
        task = bar.add_task("labelling", total=rows)
        for split in SPLITS:
            conversations = read_conversations(DATASET / f"{split}.jsonl")
            with TokenWriter(split) as store:
                for prepared in prepare(conversations, done.audit):
                    done.accounting[split].add(prepared)
                    writer.writerow(count_roles(prepared, split))
                    done.tokens_by_status[prepared.status] += prepared.tokens
                    sampler.look_at(prepared, split)
                    if prepared.dropped == "not_judgeable" and len(unsure) < FINDINGS_SHOWN:
                        unsure.append(f"{prepared.conversation.source}: {prepared.detail}")
                    if prepared.row is not None and not prepared.dropped:
                        store.append(prepared.conversation.source, prepared.row)
                    bar.advance(task)
    return done


def count_roles(prepared: Prepared, split: Split) -> tuple[Any, ...]:
    """One line of rows.csv."""
    roles, supervised = np.zeros(len(Role), np.int64), 0
    if prepared.row is not None:
        roles = np.bincount(prepared.row.roles, minlength=len(Role))
        supervised = int((prepared.row.labels != IGNORE_INDEX).sum())
    findings = "; ".join(finding.kind for finding in prepared.findings) or prepared.detail
    head = (prepared.conversation.source, split, prepared.status, prepared.tokens, supervised)
    return (*head, *roles[1:].tolist(), findings)


def training_batches(params: Params, store: TokenStore) -> Iterator[Packs]:
    """Row numbers of every micro-batch of the first epoch, as full training will draw them."""
    lengths, train = store.lengths(), params.train
    yield from BatchPlan(lengths, params.data.max_length, train, params.run.seed).first_epoch()


def refuse_unwatched(tokenizer: str) -> None:
    """Raise UserError for a directory whose changes DVC would not see."""
    if not is_reference(tokenizer) and not is_watched(tokenizer, "mask_report"):
        raise UserError(
            f"model.tokenizer is {tokenizer!r}, which mask_report does not depend on; move it "
            "below data/, or add it to the deps of mask_report in dvc.yaml"
        )


def collate_checked(collator: Collator, rows: Sequence[TokenRow], pad_token_id: int) -> Batch:
    """The collator's tensors. Raises UserError when it does not return what it must."""
    batch = collator(rows, pad_token_id)
    wanted = ("input_ids", "attention_mask", "labels")
    if not isinstance(batch, Mapping):
        raise UserError(f"data.collator returns {type(batch).__name__}; it must return {wanted}")
    if missing := [name for name in wanted if name not in batch]:
        raise UserError(f"data.collator returns no {', '.join(missing)}; it must return {wanted}")
    length = max(np.shape(batch["input_ids"])[-1:], default=0)
    for name in wanted:
        tensor = batch[name]
        kind = f"{getattr(tensor, 'dtype', type(tensor).__name__)} {list(np.shape(tensor))}"
        if not kind.startswith("torch.int64") or np.shape(tensor) != (len(rows), length):
            raise UserError(
                f"data.collator returns {name} as {kind}; it must be an int64 tensor of shape "
                f"[{len(rows)}, {length}]"
            )
    return {name: batch[name] for name in wanted}


def as_arrays(batch: Batch) -> Arrays:
    return {name: tensor.numpy() for name, tensor in batch.items()}


@dataclass
class Batches:
    """What was seen of all batches. tokens, positions: of those of training, without and with
    their padding."""

    audit: Audit = field(default_factory=lambda: Audit(limit=FINDINGS_KEPT))
    tokens: int = 0
    positions: int = 0


def audit_batches(
    params: Params, collator: Collator, tokenizer: ChatTokenizer, sampler: Sampler
) -> Batches:
    """Audit the first epoch of training batches, then all validation batches, which are not packed.

    Rows that the collator changed go to `sampler` with the labels that they have then.
    """
    seen, dealt, pad = Batches(), array("q"), tokenizer.pad_token_id
    train, validation = (TokenStore(split) for split in SPLITS)
    for numbers in training_batches(params, train):
        packs = [train.rows(pack) for pack in numbers]
        batch = collate_checked(collator, list(chain(*packs)), pad)
        if params.train.packing:
            batch = pack_batch(batch, list(map(len, packs)), pad)
        audit_batch(batch, packs, "train", tokenizer, sampler, seen.audit)
        dealt.extend(chain(*numbers))
        seen.tokens += sum(len(row.input_ids) for row in chain(*packs))
        seen.positions += batch["input_ids"].numel()
    check_dealt(dealt, train, seen.audit)
    size = params.train.per_device_train_batch_size
    for start in range(0, len(validation), size):
        rows = validation.rows(range(start, min(start + size, len(validation))))
        batch = collate_checked(collator, rows, pad)
        audit_batch(batch, [[row] for row in rows], "validation", tokenizer, sampler, seen.audit)
    return seen


def audit_batch(
    batch: Batch,
    packs: Sequence[Sequence[TokenRow]],
    split: Split,
    tokenizer: ChatTokenizer,
    sampler: Sampler,
    audit: Audit,
) -> None:
    """Hold the tensors that reach `forward` against the rows that they were made from."""
    found, rows, arrays = Audit(), list(chain(*packs)), as_arrays(batch)
    if "position_ids" in arrays:
        arrays = audit_packed(arrays, packs, tokenizer, found)
    else:
        audit_collated(arrays, rows, tokenizer, found)
    if found.findings:
        sampler.look_at_batch(rows, split, arrays, found.findings)
    audit.include(found)


def check_dealt(dealt: Sequence[int], store: TokenStore, audit: Audit) -> None:
    """Name each row that is not once among the first that training deals, as many as there are."""
    times = np.bincount(dealt[: len(store)], minlength=len(store))
    for number in np.flatnonzero(times != 1).tolist():
        detail = f"dealt {times[number]} times in the first epoch"
        audit.add(Finding("row_not_dealt_once", store[number].source, -1, 1, detail))


def prove_audit(params: Params, tokenizer: ChatTokenizer) -> list[Control]:
    """Corrupt a sample of the kept rows in every known way, and see what the audit says of each."""
    stores = {split: TokenStore(split) for split in SPLITS}
    cut_at = params.data.max_length if params.data.truncation == "keep_start" else None
    specimens = choose_specimens(DATASET, stores, tokenizer, params.labels, cut_at)
    return run_controls(specimens, tokenizer, params.labels, packing=params.train.packing)


def controls_missed(controls: list[Control]) -> Measured:
    """How many controls the audit did not catch; not judged when too few could be tried."""
    missed = [control for control in controls if control.missed]
    applied = sum(control.applied > 0 for control in controls)
    evidence = tuple(f"{one.name}: {told}" for one in missed for told in one.missed)[
        :FINDINGS_SHOWN
    ]
    if applied < MIN_CONTROLS and not missed:
        reasons = sorted({control.reason for control in controls if control.reason})
        why = f"{applied} controls could be tried, {MIN_CONTROLS} are needed"
        return Measured(None, applied, f"{why}: {'; '.join(reasons)}", evidence)
    return Measured(len(missed), applied, evidence=evidence)


def print_batch_0(params: Params, collator: Collator, tokenizer: ChatTokenizer) -> None:
    """Print the first batch of training token by token, as it reaches `forward`."""
    store = TokenStore("train")
    packs = [store.rows(pack) for pack in next(training_batches(params, store))]
    batch = collate_checked(collator, list(chain(*packs)), tokenizer.pad_token_id)
    if params.train.packing:
        batch = pack_batch(batch, list(map(len, packs)), tokenizer.pad_token_id)
    arrays = as_arrays(batch)
    for number, pack in enumerate(packs[: params.gates.mask.print_rows]):
        ids, labels = arrays["input_ids"][number], arrays["labels"][number]
        real = np.arange(len(ids)) < sum(len(row.input_ids) for row in pack)
        if "attention_mask" in arrays:
            real = arrays["attention_mask"][number] == 1
        tokens = tokenizer.decode_batch([[int(token)] for token in ids[real]])
        sources = ", ".join(row.source for row in pack)
        print_tokens(f"Batch 0, row {number}: {sources}", tokens, labels[real].tolist())
        if padding := int((~real).sum()):
            console.print(f"({padding} padding tokens, labels {set(labels[~real].tolist())})")


def stops_alone(accounting: Mapping[Split, Accounting], tokenizer: ChatTokenizer) -> Measured:
    """Splits in which the policy supervises nothing but stop tokens."""
    said = {
        split: account.tokens_supervised
        - int(account.supervised_ids[tokenizer.stop_token_ids].sum())
        for split, account in accounting.items()
        if account.kept
    }
    evidence = tuple(f"{split}: {count} other tokens" for split, count in said.items())
    return Measured(sum(not count for count in said.values()), len(said), evidence=evidence)


def measure(
    done: Tokenised, collated: Audit, controls: list[Control], tokenizer: ChatTokenizer
) -> dict[str, Measured]:
    """What the rules ask of the rows and of the batches."""
    accounts = done.accounting.values()
    loaded = sum(account.loaded for account in accounts)
    dropped = sum(account.dropped.total() for account in accounts)
    unsure = sum(account.dropped["not_judgeable"] for account in accounts)
    truncated = sum(account.truncated for account in accounts)
    straddling = sum(account.straddling_tokens for account in accounts)

    def count(audit: Audit, n: int, *kinds: Kind) -> Measured:
        findings = [finding for finding in audit.findings if finding.kind in kinds]
        evidence = tuple(
            f"{finding.source}: {finding.detail}"
            if finding.position < 0
            else f"{finding.source} token {finding.position}: {finding.detail}"
            for finding in findings[:FINDINGS_SHOWN]
        )
        return Measured(sum(audit.faults[kind] for kind in kinds), n, evidence=evidence)

    rows, batches = done.audit, collated
    reasons = [f"{n} rows: {why}" for account in accounts for why, n in account.dropped.items()]
    return {
        "content_dropped": count(rows, rows.rows, "content_dropped"),
        "calls_dropped": count(rows, rows.rows, "call_dropped"),
        "not_judgeable": Measured(unsure, loaded, evidence=tuple(done.not_judgeable)),
        "prompt_supervised": count(rows, rows.must_mask, "prompt_supervised"),
        "header_supervised": count(rows, rows.must_mask, "header_supervised"),
        "content_masked": count(rows, rows.must_supervise, "content_masked", "no_supervised_token"),
        "reasoning_differs": count(rows, rows.must_supervise, "reasoning_differs"),
        "calls_differ": count(rows, rows.must_supervise, "call_differs"),
        "scaffold_differs": count(rows, rows.must_mask, "scaffold_differs"),
        "stop_masked": count(rows, rows.must_supervise, "stop_masked"),
        "stop_missing": count(rows, rows.rows, "stop_missing"),
        "stops_alone": stops_alone(done.accounting, tokenizer),
        **{kind: count(rows, rows.rows, kind) for kind in ODDITIES},
        "content_trimmed": count(rows, rows.rows, "content_trimmed"),
        "reasoning_dropped": count(rows, rows.rows, "reasoning_dropped"),
        "label_differs": count(rows, rows.must_supervise, "label_differs_from_input"),
        "id_outside_vocabulary": count(rows, rows.rows, "id_outside_vocabulary"),
        "straddling_tokens": Measured(straddling, loaded),
        "dropped_fraction": Measured(dropped / max(loaded, 1), loaded, evidence=tuple(reasons)),
        "truncated_fraction": Measured(truncated / max(loaded, 1), loaded),
        "collated_prompt_supervised": count(batches, batches.must_mask, "prompt_supervised"),
        "collated_header_supervised": count(batches, batches.must_mask, "header_supervised"),
        "collated_content_masked": count(
            batches,
            batches.must_supervise,
            "content_masked",
            "reasoning_differs",
            "call_differs",
            "scaffold_differs",
        ),
        "collated_stop_masked": count(batches, batches.must_supervise, "stop_masked"),
        "collated_padding_supervised": count(batches, batches.rows, "padding_supervised"),
        "collated_inputs_changed": count(
            batches,
            batches.rows,
            "collated_tokens_differ",
            "attention_mask_wrong",
            "label_differs_from_input",
        ),
        "collated_labels_shifted": count(batches, batches.rows, "labels_shifted"),
        "positions_wrong": count(batches, batches.rows, "positions_wrong"),
        "targets_across_borders": count(batches, batches.rows, "target_across_border"),
        "rows_not_dealt_once": count(batches, batches.rows, "row_not_dealt_once"),
        "controls_missed": controls_missed(controls),
    }


def summarise(
    done: Tokenised, batches: Batches, measured: Mapping[str, Measured], controls: list[Control]
) -> dict[str, Any]:
    """The numbers for metrics/mask_report.json."""
    train = done.accounting["train"]
    return {
        "loaded": sum(account.loaded for account in done.accounting.values()),
        "kept": sum(account.kept for account in done.accounting.values()),
        "train_rows": train.kept,
        "validation_rows": done.accounting["validation"].kept,
        "tokens": train.tokens_kept,
        "supervised_tokens": train.tokens_supervised,
        "batch_fill": batches.tokens / batches.positions,
        "supervised_fraction": train.tokens_supervised / max(train.tokens_kept, 1),
        "target_entropy": entropy_nats(train.supervised_ids),
        "prompt_tokens_supervised": measured["prompt_supervised"].value,
        "answer_tokens_masked": measured["content_masked"].value,
        "stop_tokens_masked": measured["stop_masked"].value,
        "controls_applied": sum(control.applied > 0 for control in controls),
        "controls_caught": sum(control.applied > 0 and not control.missed for control in controls),
    }


def describe(
    params: Params,
    done: Tokenised,
    collated: Audit,
    controls: list[Control],
    tokenizer: ChatTokenizer,
) -> list[Section]:
    """The sections of the page below the checks."""
    sampler = done.sampler
    return [
        rows_section(done.accounting, done.tokens_by_status),
        lengths_section(done.accounting, params.data),
        findings_section(done.audit, collated, sampler.views, sampler.left_out),
        controls_section(controls),
        policy_section(params.labels, params.data, prints_date=tokenizer.prints_date),
    ]


def main(params: Params) -> None:
    upstream = read_metrics("hash_data")
    binding = bind("mask_report", software_environment(RENDERING_PACKAGES))
    if not upstream["passed"]:
        TOKENS.mkdir(parents=True, exist_ok=True)
        publish_blocked(binding, __doc__, "hash_data")
        return
    refuse_unwatched(params.model.tokenizer)
    today = datetime.date.fromisoformat(params.labels.template_date)
    tokenizer = ChatTokenizer(params.model.tokenizer, today)
    collator = load_hook(params.data.collator, "data.collator", collate)
    inputs = sha256_tree([DATASET]) | tokenizer.digests()
    done = tokenise(params, tokenizer, upstream.count("rows"))
    if not done.accounting["train"].kept:
        raise UserError(
            "no row of the training split is left to train on: "
            + ", ".join(f"{n} {why}" for why, n in done.accounting["train"].dropped.items())
        )
    write_meta(
        TokenMeta(
            vocab_size=tokenizer.vocab_size,
            pad_token_id=tokenizer.pad_token_id,
            stop_token_id=tokenizer.stop_token_id,
            max_length=params.data.max_length,
            turns=params.labels.turns,
            tokenizer=tokenizer.identity(),
        )
    )
    batches = audit_batches(params, collator, tokenizer, done.sampler)
    controls = prove_audit(params, tokenizer)
    print_batch_0(params, collator, tokenizer)

    measured = measure(done, batches.audit, controls, tokenizer)
    checks = judge_all(RULES, measured, binding.params, params.run.seed)
    verdict = make_verdict(
        binding,
        overall_status(checks, RULES),
        checks,
        causes=rank_causes(checks, CAUSES),
        not_covered=NOT_COVERED,
        inputs=inputs,
        outputs=sha256_tree([TOKENS]),
    )
    publish(
        verdict,
        __doc__,
        numbers=summarise(done, batches, measured, controls),
        sections=describe(params, done, batches.audit, controls, tokenizer),
        conversations=done.sampler.views,
    )


if __name__ == "__main__":
    run_stage("mask_report", main)
