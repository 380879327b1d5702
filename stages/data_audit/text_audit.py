"""What do the texts of a data set say about it? Read from what hash_data wrote for both splits.

Two passes over the rows: one checks every text, counts n-grams and holds training rows against
validation rows; the second makes the signatures that near duplicates are found by. What is found
is then read again and compared exactly. Beyond a few tables of fixed size (40 MiB) this takes some
90 bytes a row, and findings beyond FINDINGS_KEPT of a kind are counted, but no longer named.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..chat.conversation import ASSISTANT, Conversation
from ..chat.split import SPLITS, Split
from .endings import breaks_off
from .leakage import HeldOut, LeakSearch, Suspect
from .near_duplicates import NearDuplicateSearch, ShingleCounts, answers_alike
from .placeholders import unfilled_placeholder
from .text_checks import damage, dominant_script
from .words import USER, Batch, spoken, text_of, word_hashes

KINDS = (
    "near_duplicate",
    "ngram_leak",
    "placeholder",
    "broken_off_answer",
    "damaged_text",
    "script_outlier",
)
BATCH_ROWS = 512
FINDINGS_KEPT = 10_000
ROWS_COMPARED = 1_000_000
"""Near duplicates are searched among about so many rows, drawn by their id."""
NGRAM_ROWS = 200_000
"""Leaks are searched among so many validation rows, the first ones."""


@dataclass
class Shape:
    """How long conversations are. `characters` counts what users and assistants say, by role."""

    turns: Counter[int] = field(default_factory=Counter)
    characters: Counter[str] = field(default_factory=Counter)
    median_characters: float = 0.0
    longest_characters: int = 0
    longest: str = ""


@dataclass
class TextAudit:
    """What was found. A finding is a row: its file:line, and what shows it."""

    rows: int
    compared_rows: int = 0
    leak_searched_rows: int = 0
    validation_rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, list[tuple[str, str]]] = field(
        default_factory=lambda: {kind: [] for kind in KINDS}
    )
    scripts: Counter[str] = field(default_factory=Counter)
    shape: Shape = field(default_factory=Shape)

    def add(self, kind: str, source: str, detail: str) -> None:
        self.counts[kind] += 1
        if len(self.findings[kind]) < FINDINGS_KEPT:
            self.findings[kind].append((source, detail))


class StoredRows:
    """The rows of both splits, numbered: training rows first. Read in batches, or one by one."""

    def __init__(self, directory: Path, sizes: dict[Split, int]) -> None:
        self._paths = {split: directory / f"{split}.jsonl" for split in SPLITS}
        self._first = {"train": 0, "validation": sizes["train"]}
        self._offsets = np.zeros(sum(sizes.values()), np.int64)
        self._decoder = msgspec.json.Decoder(Conversation)
        self._files = {split: path.open("rb") for split, path in self._paths.items()}

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def batches(self, split: Split) -> Iterator[tuple[NDArray[np.int64], list[bytes]]]:
        """(numbers, lines) of up to BATCH_ROWS rows in turn."""
        number, offset = self._first[split], 0
        lines: list[bytes] = []
        with self._paths[split].open("rb") as file:
            for line in file:
                self._offsets[number + len(lines)] = offset
                offset += len(line)
                lines.append(line)
                if len(lines) == BATCH_ROWS:
                    yield np.arange(number, number + len(lines)), lines
                    number, lines = number + len(lines), []
        if lines:
            yield np.arange(number, number + len(lines)), lines

    def decode(self, line: bytes) -> Conversation:
        return self._decoder.decode(line)

    def read(self, number: int) -> Conversation:
        """One row, once its split was read in batches."""
        split: Split = "validation" if number >= self._first["validation"] else "train"
        file = self._files[split]
        file.seek(self._offsets[number])
        return self.decode(file.readline())


def audit_texts(
    directory: Path,
    split: NDArray[np.uint8],
    repeated: NDArray[np.int64],
    *,
    similarity: float,
    leaked_share: float,
    script_share: float,
    advance: Callable[[int], None] = lambda rows: None,
) -> TextAudit:
    """Audit the rows of directory/{train,validation}.jsonl.

    split: uint8 [rows], the index into SPLITS of each row; repeated: the rows that repeat an
    earlier one exactly, and are therefore no near duplicates.
    similarity: at which two rows are near duplicates; leaked_share: of its 13-grams, at which a
    validation row is leaked; script_share: of all rows, below which a script is an outlier.
    advance: told the number of rows passed since the last call, each row twice.
    """
    repeats = np.zeros(len(split), bool)
    repeats[repeated] = True
    repeats = np.concatenate([repeats[split == 0], repeats[split == 1]])
    held_out = int((split == 1).sum())
    stored = StoredRows(directory, {"train": len(split) - held_out, "validation": held_out})
    auditor = _Auditor(stored, repeats, held_out, advance)
    try:
        auditor.name_leaks(auditor.first_pass(), leaked_share, similarity)
        auditor.name_script_outliers(script_share)
        auditor.name_near_duplicates(auditor.second_pass(), similarity)
        auditor.measure_shape()
    finally:
        stored.close()
    return auditor.audit


class _Auditor:
    def __init__(
        self,
        stored: StoredRows,
        repeats: NDArray[np.bool_],
        held_out: int,
        advance: Callable[[int], None],
    ) -> None:
        self.audit = TextAudit(len(repeats), validation_rows=held_out)
        self._stored, self._repeats, self._advance = stored, repeats, advance
        self._shingles = ShingleCounts()
        self._first_held_out = len(repeats) - held_out
        self._characters = np.zeros(len(repeats), np.uint32)
        self._scripts = array("H", bytes(2 * len(repeats)))
        self._script_names: list[str | None] = [None]

    def first_pass(self) -> LeakSearch:
        held_out, leaks = HeldOut(), None
        for split in reversed(SPLITS):
            for numbers, lines in self._stored.batches(split):
                rows = [self._stored.decode(line) for line in lines]
                for number, row, line in zip(numbers, rows, lines, strict=True):
                    self._check(int(number), row, line)
                batch, kept = self._batch(rows, numbers)
                self._shingles.add(batch)
                if split == "validation":
                    if self.audit.leak_searched_rows < NGRAM_ROWS:
                        held_out.add(Batch.of([word_hashes(spoken(row)) for row in rows]))
                        self.audit.leak_searched_rows += len(rows)
                else:
                    leaks = leaks or held_out.search()
                    leaks.pass_training(batch, kept)
                self._advance(len(rows))
        return leaks or held_out.search()

    def second_pass(self) -> NearDuplicateSearch:
        search = NearDuplicateSearch(self._shingles)
        sampled = min(1.0, ROWS_COMPARED / max(len(self._repeats), 1))
        for split in SPLITS:
            for numbers, lines in self._stored.batches(split):
                rows = [self._stored.decode(line) for line in lines]
                drawn = [int(row.id[:8], 16) < sampled * 2**32 for row in rows]
                self.audit.compared_rows += sum(drawn)
                batch, kept = self._batch(rows, numbers, drawn)
                search.add(batch, kept)
                self._advance(len(rows))
        return search

    def _batch(
        self,
        rows: Sequence[Conversation],
        numbers: NDArray[np.int64],
        wanted: Sequence[bool] | None = None,
    ) -> tuple[Batch, NDArray[np.int64]]:
        """The words of the wanted rows that repeat no other exactly, and their numbers."""
        keep = ~self._repeats[numbers]
        if wanted is not None:
            keep &= np.array(wanted)
        words = [word_hashes(spoken(rows[int(place)])) for place in np.flatnonzero(keep)]
        return Batch.of(words), numbers[keep]

    def _check(self, number: int, row: Conversation, line: bytes) -> None:
        said: Counter[str] = Counter()
        broken = None
        answers = []
        for message in row.messages:
            text = text_of(message)
            said[message["role"]] += len(text)
            if message["role"] == ASSISTANT:
                answers.append(text)
                if not message.get("tool_calls"):
                    broken = broken or breaks_off(text)
        if broken:
            self.audit.add("broken_off_answer", row.source, broken)
        if placeholder := unfilled_placeholder(row):
            self.audit.add("placeholder", row.source, placeholder)
        if _may_be_damaged(line) and (found := _first_damage(row)):
            self.audit.add("damaged_text", row.source, found)
        self._note_script(number, dominant_script("\n".join(answers)))
        self._characters[number] = said[USER] + said[ASSISTANT]
        self.audit.shape.turns[len(row.messages)] += 1
        for role in (USER, ASSISTANT):
            self.audit.shape.characters[role] += said[role]

    def _note_script(self, number: int, script: str | None) -> None:
        if script not in self._script_names:
            self._script_names.append(script)
        self._scripts[number] = self._script_names.index(script)
        if script:
            self.audit.scripts[script] += 1

    def name_script_outliers(self, share: float) -> None:
        total = self.audit.scripts.total()
        for number, code in enumerate(self._scripts):
            script = self._script_names[code]
            if script and self.audit.scripts[script] < share * total:
                source = self._stored.read(number).source
                self.audit.add("script_outlier", source, f"answers in {script} letters")

    def name_leaks(self, leaks: LeakSearch, share: float, similarity: float) -> None:
        for suspect in leaks.suspects(share):
            row = self._stored.read(self._first_held_out + suspect.row)
            training_row = self._stored.read(suspect.training_row)
            if _answers_alike(row, training_row, similarity):
                self.audit.add("ngram_leak", row.source, _leak_detail(suspect, training_row))

    def name_near_duplicates(self, search: NearDuplicateSearch, similarity: float) -> None:
        named = -1
        for number, earlier in zip(*search.candidates(), strict=True):
            if number == named:
                continue
            row, other = self._stored.read(number), self._stored.read(earlier)
            words, other_words = (word_hashes(spoken(each)) for each in (row, other))
            if search.alike(words, other_words, similarity) and _answers_alike(
                row, other, similarity
            ):
                named = number
                self.audit.add("near_duplicate", row.source, other.source)

    def measure_shape(self) -> None:
        if len(self._characters):
            longest = int(self._characters.argmax())
            shape = self.audit.shape
            shape.median_characters = float(np.median(self._characters))
            shape.longest_characters = int(self._characters[longest])
            shape.longest = self._stored.read(longest).source


def _leak_detail(suspect: Suspect, training_row: Conversation) -> str:
    return f"{suspect.share:.0%} of its wording is in training, most of it in {training_row.source}"


def _answers_alike(one: Conversation, other: Conversation, similarity: float) -> bool:
    words, other_words = (word_hashes(spoken(row, (ASSISTANT,))) for row in (one, other))
    return answers_alike(words, other_words, similarity)


def _may_be_damaged(line: bytes) -> bool:
    """Whether a row as JSON holds a character that is not plain ASCII, possibly escaped."""
    return not line.isascii() or b"\\u00" in line or b"\x7f" in line


def _first_damage(row: Conversation) -> str | None:
    for message in row.messages:
        if found := damage(text_of(message)):
            return f"the {message['role']} turn {found}"
    return None
