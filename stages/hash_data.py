"""Which data is this, exactly, and is it fit to be learned from?

Reads data.path and data.validation_path once: sha256 of every file, every row parsed, normalised
and placed into a split by its prompt. Writes artifacts/dataset/{train,validation}.jsonl, the
verdict, and reports/hash_data/ with every finding by file and line.

    python -m stages.hash_data
"""

import csv
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chat.conversation import read_conversations
from .chat.split import DATASET, SPLITS, Split
from .config import Params, UserError
from .config.launch import run_stage
from .config.schema import Data, DataGate
from .data_audit.baselines import keyword_table_score, majority_answer_score
from .data_audit.repeats import Rows, conflicting_answers, duplicates, split_overlap
from .data_audit.text_audit import TextAudit, audit_texts
from .data_audit.text_report import measure_texts, text_numbers, text_sections
from .provenance.environment import AUDITING_PACKAGES, software_environment
from .provenance.hashing import sha256_tree, total_sha256
from .reading.ingest import FileRecord, RowKeys, entropy_nats, ingest_file
from .reading.sources import input_files
from .report.page import Section, Table, report_directory
from .report.publish import publish
from .report.terminal import console, progress
from .verdict.judging import Measured, judge_all, overall_status, rank_causes
from .verdict.record import bind, make_verdict
from .verdict.rules.hash_data import CAUSES, NOT_COVERED, RULES

BASELINE_ROWS = {"train": 20_000, "validation": 2_000}
FINDINGS_SHOWN = 20
FINDINGS_WRITTEN = 10_000

Source = tuple[Path, Split | None]


@dataclass(frozen=True)
class Repeats:
    """Pairs of rows: what repeats, contradicts or leaks, and the row that it does this to."""

    duplicates: tuple[Rows, Rows]
    conflicts: tuple[Rows, Rows]
    overlap: tuple[Rows, Rows]


@dataclass(frozen=True)
class Dataset:
    """All that was read. line, split: of the rows of all files, in the order of `records`."""

    records: list[FileRecord]
    line: NDArray[np.uint32]
    split: NDArray[np.uint8]
    sha256: str

    def __len__(self) -> int:
        return len(self.line)

    def total(self, count: str) -> int:
        return sum(len(getattr(record, count)) for record in self.records)

    def where(self, row: int) -> str:
        """The name of a row: file:line, as a rule."""
        ends = np.cumsum([record.rows for record in self.records])
        record = self.records[int(np.searchsorted(ends, row, side="right"))]
        return record.where(int(self.line[row]))


def find_sources(data: Data) -> list[Source]:
    """Every input file with its split, or None where rows are split by content."""
    training = input_files(data.path, "data.path")
    if data.validation_path is None:
        return [(file, None) for file in training]
    sources: list[Source] = [(file, "train") for file in training]
    held_out = input_files(data.validation_path, "data.validation_path")
    return [*sources, *((file, "validation") for file in held_out)]


def read_sources(sources: list[Source], data: Data) -> list[FileRecord]:
    """Ingest every file, side by side where there are several, and join their rows in order."""
    shutil.rmtree(DATASET, ignore_errors=True)
    shards = []
    for number in range(len(sources)):
        shard = DATASET / f"shard-{number:05d}"
        shard.mkdir(parents=True)
        shards.append({split: shard / f"{split}.jsonl" for split in SPLITS})
    ingest = partial(
        ingest_file,
        validation_fraction=data.validation_fraction,
        split_seed=data.split_seed,
        stop_at_bad_row=data.on_bad_row == "stop",
        dialect=data.dialect,
    )
    with progress("bytes") as bar:
        size = sum(path.stat().st_size for path, _ in sources)
        task = bar.add_task("reading", total=size)
        if len(sources) == 1:
            (path, split), advance = sources[0], partial(bar.advance, task)
            records = [ingest(path, shards[0], fixed_split=split, advance=advance)]
        else:
            workers = min(len(sources), os.cpu_count() or 1)
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(workers, mp_context=context) as pool:
                futures = [
                    pool.submit(ingest, path, shard, fixed_split=split)
                    for (path, split), shard in zip(sources, shards, strict=True)
                ]
                for future in as_completed(futures):
                    bar.advance(task, future.result().size)
                records = [future.result() for future in futures]
    join_shards(shards)
    return records


def join_shards(shards: list[dict[Split, Path]]) -> None:
    """Turn the shards into one file a split; the first is renamed, so one input is never copied."""
    for split in SPLITS:
        first, *others = (shard[split] for shard in shards)
        joined = first.rename(DATASET / f"{split}.jsonl")
        with joined.open("ab") as output:
            for other in others:
                with other.open("rb") as rows:
                    shutil.copyfileobj(rows, output, 1 << 20)
    for shard in shards:
        shutil.rmtree(shard["train"].parent)


def refuse_bad_rows(records: list[FileRecord]) -> None:
    """Raise UserError for the first row that is no conversation."""
    bad = [(record.where(row), reason) for record in records for row, reason in record.bad_rows]
    if bad:
        where, reason = bad[0]
        raise UserError(
            f"{where}: {reason}; mend the row, or set data.on_bad_row to 'report' to leave such "
            "rows out and have them counted and named, and gates.data.max_unreadable to how many "
            "may be left out"
        )


def find_repeats(records: list[FileRecord], sha256: str) -> tuple[Dataset, Repeats]:
    """The data set without the long keys of its rows, which nothing needs from here on."""
    keys = RowKeys.concatenate([record.take_keys() for record in records])
    repeats = Repeats(duplicates(keys), conflicting_answers(keys), split_overlap(keys))
    return Dataset(records, keys.line, keys.split, sha256), repeats


def audit(dataset: Dataset, repeats: Repeats, gate: DataGate) -> TextAudit:
    """What the texts say, beyond the keys of their rows."""
    with progress("rows") as bar:
        task = bar.add_task("auditing texts", total=2 * len(dataset))
        return audit_texts(
            DATASET,
            dataset.split,
            repeats.duplicates[0],
            similarity=gate.near_duplicate_similarity,
            leaked_share=gate.leaked_ngram_share,
            script_share=gate.rare_script_share,
            advance=partial(bar.advance, task),
        )


def measure(dataset: Dataset, repeats: Repeats) -> dict[str, Measured]:
    """What the rules ask of the data."""
    rows = len(dataset)
    in_validation = int(dataset.split.sum())

    def pairs(found: tuple[Rows, Rows], words: str) -> tuple[str, ...]:
        shown = zip(found[0][:FINDINGS_SHOWN], found[1][:FINDINGS_SHOWN], strict=True)
        return tuple(f"{dataset.where(row)} {words} {dataset.where(other)}" for row, other in shown)

    bad = [
        f"{record.where(row)}: {reason}"
        for record in dataset.records
        for row, reason in record.bad_rows
    ]
    empty = [record.where(row) for record in dataset.records for row in record.empty_answers]
    repeated, conflicting, leaked = repeats.duplicates, repeats.conflicts, repeats.overlap
    return {
        "data_sha256": Measured(dataset.sha256, n=len(dataset.records)),
        "unreadable_rows": Measured(
            len(bad), rows + len(bad), evidence=tuple(bad[:FINDINGS_SHOWN])
        ),
        "empty_answers": Measured(len(empty), rows, evidence=tuple(empty[:FINDINGS_SHOWN])),
        "split_overlap": Measured(
            len(leaked[0]), in_validation, evidence=pairs(leaked, "has the prompt of")
        ),
        "duplicate_fraction": Measured(
            len(repeated[0]) / max(rows, 1),
            rows,
            f"{len(repeated[0])} rows",
            pairs(repeated, "repeats"),
        ),
        "conflicting_fraction": Measured(
            len(conflicting[0]) / max(rows, 1),
            rows,
            f"{len(conflicting[0])} rows",
            pairs(conflicting, "answers otherwise than"),
        ),
        "train_rows": Measured(rows - in_validation),
        "validation_rows": Measured(in_validation),
    }


def measure_baselines() -> dict[str, float]:
    """Exact match on validation without a model, over at most BASELINE_ROWS of each split."""
    train, validation = (
        list(islice(read_conversations(DATASET / f"{split}.jsonl"), BASELINE_ROWS[split]))
        for split in SPLITS
    )
    return {
        "majority_exact_match": majority_answer_score(train, validation),
        "keyword_exact_match": keyword_table_score(train, validation),
    }


def list_findings(
    dataset: Dataset, repeats: Repeats, texts: TextAudit
) -> Iterator[tuple[str, str, str]]:
    """(kind, file:line, detail) of every finding."""
    for record in dataset.records:
        for number, reason in record.bad_rows:
            yield "unreadable_row", record.where(number), reason
        for number in record.empty_answers:
            yield "empty_answer", record.where(number), "an assistant turn says nothing"
    for kind, (rows, others) in {
        "duplicate": repeats.duplicates,
        "conflicting_answer": repeats.conflicts,
        "split_overlap": repeats.overlap,
    }.items():
        for row, other in zip(rows, others, strict=True):
            yield kind, dataset.where(row), dataset.where(other)
    for kind, found in texts.findings.items():
        for source, detail in found:
            yield kind, source, detail


def write_findings(dataset: Dataset, repeats: Repeats, texts: TextAudit) -> Counter[str]:
    """Write findings.csv (the first FINDINGS_WRITTEN); return how many there are of each kind."""
    counts: Counter[str] = Counter()
    path = report_directory("hash_data") / "findings.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kind", "source", "detail"))
        for finding in list_findings(dataset, repeats, texts):
            counts[finding[0]] += 1
            if counts.total() <= FINDINGS_WRITTEN:
                writer.writerow(finding)
    return counts | texts.counts


def describe(dataset: Dataset, counts: Counter[str], numbers: dict[str, Any]) -> list[Section]:
    """The sections of the page below the checks."""
    turns, characters = Counter[str](), Counter[str]()
    for record in dataset.records:
        turns += record.role_turns
        characters += record.role_characters
    roles = [(role, n, characters[role] / n) for role, n in turns.most_common()]
    files = [
        (
            record.path,
            record.dialect,
            record.rows,
            len(record.bad_rows),
            record.blank_lines,
            record.size,
            record.sha256,
        )
        for record in dataset.records
    ]
    columns = ("file", "dialect", "rows", "bad rows", "blank lines", "bytes", "sha256")
    listed = f"findings.csv lists the first {FINDINGS_WRITTEN}" if counts else "None."
    baselines = (
        "Exact match on validation without a model, over at most "
        f"{BASELINE_ROWS['train']} training and {BASELINE_ROWS['validation']} validation rows. "
        "A model is worth its cost where it does better."
    )
    return [
        Section("Files", f"sha256 in total: {dataset.sha256}", table=Table(columns, files)),
        Section("Roles", table=Table(("role", "turns", "mean characters"), roles)),
        Section("Findings", listed, table=Table(("kind", "rows"), counts.most_common())),
        Section(
            "Trivial baselines",
            baselines,
            table=Table(
                ("baseline", "value"),
                [
                    ("most frequent answer", numbers["majority_exact_match"]),
                    ("keyword table", numbers["keyword_exact_match"]),
                    ("unigram entropy of answers, nats per byte", numbers["answer_entropy"]),
                ],
            ),
        ),
    ]


def main(params: Params) -> None:
    binding = bind("hash_data", software_environment(AUDITING_PACKAGES))
    sources = find_sources(params.data)
    records = read_sources(sources, params.data)
    if params.data.on_bad_row == "stop":
        refuse_bad_rows(records)
    inputs = {record.path: record.sha256 for record in records}
    dataset, repeats = find_repeats(records, total_sha256(inputs.values()))
    texts = audit(dataset, repeats, params.gates.data)

    measured = measure(dataset, repeats) | measure_texts(texts)
    checks = judge_all(RULES, measured, binding.params)
    status = overall_status(checks, RULES)
    verdict = make_verdict(
        binding,
        status,
        checks,
        causes=rank_causes(checks, CAUSES),
        not_covered=NOT_COVERED,
        inputs=inputs,
        outputs=sha256_tree([DATASET]),
    )
    numbers = {
        "rows": len(dataset),
        "train_rows": measured["train_rows"].value,
        "validation_rows": measured["validation_rows"].value,
        "bad_rows": dataset.total("bad_rows"),
        "empty_answers": dataset.total("empty_answers"),
        "duplicates": len(repeats.duplicates[0]),
        "conflicting_answers": len(repeats.conflicts[0]),
        "split_overlap": len(repeats.overlap[0]),
        "answer_entropy": entropy_nats(np.sum([record.answer_bytes for record in records], axis=0)),
        **text_numbers(texts),
        **measure_baselines(),
    }
    counts = write_findings(dataset, repeats, texts)
    sections = [*describe(dataset, counts, numbers), *text_sections(texts)]
    publish(verdict, __doc__, numbers=numbers, sections=sections)
    console.print(f"sha256 of the data: {dataset.sha256}")


if __name__ == "__main__":
    run_stage("hash_data", main)
