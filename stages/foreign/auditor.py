"""Are the labels of a token file right? Finds the conversation of every row, and audits the row.

The audit is that of gate 1, which decodes a row and looks its messages up in the text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ..chat.conversation import BadRow, Conversation
from ..chat.tokenizer import ChatTokenizer
from ..config.errors import UserError
from ..config.schema import Labels
from ..mask_audit.audit import audit_rows
from ..mask_audit.findings import Audit, Finding
from ..report.terminal import progress
from ..report.token_view import TokenView
from .conversations import ForeignRow, conversations_of
from .locating import Found, Located, Locator
from .matching import Match, SourceIndex, fill_gaps
from .row_view import view_of
from .source import Source
from .survey import Survey
from .token_files import read_rows

CHUNK_ROWS = 512
MIN_MATCHED = 0.5
"""Share of the token rows that must hold a conversation of the source."""
VIEWS = 40
NOBODY = Conversation("", "no source", [])


@dataclass
class Outcome:
    """What was found in a token file. rows: conversations in it; matched: by what they say."""

    audit: Audit = field(default_factory=Audit)
    located: list[Located] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    views: list[TokenView] = field(default_factory=list)
    rows: int = 0
    matched: int = 0
    by_order: int = 0
    packed: int = 0
    repeated: int = 0
    outside: int = 0


class Auditor:
    """Judges the rows of one token file against the conversations of its source."""

    def __init__(
        self, tokens: Path, source: Source, tokenizer: ChatTokenizer, policy: Labels
    ) -> None:
        self._tokens, self._source = tokens, source
        self._tokenizer, self._policy = tokenizer, policy
        self._index = SourceIndex(source.conversations, tokenizer)
        self._locator = Locator(tokenizer)
        self._matched: list[int | None] = []
        self._strangers: dict[int, tuple[ForeignRow, str]] = {}
        self._expected = 0
        self.outcome = Outcome()

    def run(self, surveyed: Survey) -> Outcome:
        """Raises UserError when too few rows hold a conversation, and for packed rows that do not
        say where each begins."""
        outcome = self.outcome
        outcome.unreadable = list(surveyed.unreadable)
        with progress("rows") as bar:
            task = bar.add_task("auditing", total=None)
            for chunk in chunks_of(self._rows(surveyed.shifted)):
                self._judge(chunk)
                bar.advance(task, len(chunk))
        self._refuse_strangers()
        self._match_by_order()
        used = {one for one in self._matched if one is not None}
        outcome.unused = [
            conversation.source
            for number, conversation in enumerate(self._source.conversations)
            if number not in used
        ]
        outcome.repeated = outcome.rows - len(outcome.unmatched) - len(used)
        return outcome

    def _rows(self, shifted: bool) -> Iterator[ForeignRow]:
        pad, stops = self._tokenizer.pad_token_id, self._tokenizer.stop_token_ids.tolist()
        for name, columns in read_rows(self._tokens):
            if isinstance(columns, BadRow):
                continue
            try:
                yield from conversations_of(name, columns, shifted, pad, stops)
            except BadRow as reason:
                self.outcome.unreadable.append(f"{name}: {reason}")

    def _judge(self, chunk: list[ForeignRow]) -> None:
        known = [self._known_ids(row) for row in chunk]
        texts = self._tokenizer.decode_batch(known)
        found = []
        for row, ids, text in zip(chunk, known, texts, strict=True):
            self.outcome.rows += 1
            self.outcome.packed += row.packed
            self.outcome.outside += len(ids) < len(row.input_ids)
            match = self._index.find(text, self._expected)
            self._matched.append(match.conversation if match else None)
            if match is None:
                self._strangers[len(self._matched) - 1] = row, text
                continue
            self.outcome.matched += 1
            self._index.used[match.conversation] += 1
            self._expected = match.conversation + 1
            self._refuse_packed(row, text, match)
            found.append(self._found(row, text, match))
        self._audit(found)

    def _known_ids(self, row: ForeignRow) -> list[int]:
        ids = row.input_ids
        known: list[int] = ids[(ids >= 0) & (ids < self._tokenizer.vocab_size)].tolist()
        return known

    def _refuse_packed(self, row: ForeignRow, text: str, match: Match) -> None:
        other = None if row.packed else self._index.holds_another(text, match)
        if other is not None:
            first, second = (
                self._source.conversations[number].source for number in (match.conversation, other)
            )
            raise UserError(
                f"{self._tokens}: {row.name} holds {first} and {second} one behind the other; "
                "packed rows cannot be judged without 'seq_lengths' or 'position_ids': write them, "
                "or do not pack"
            )

    def _found(self, row: ForeignRow, text: str, match: Match) -> Found:
        conversation = self._source.conversations[match.conversation]
        cut = self._index.is_cut(text, match)
        if cut:
            self.outcome.truncated.append(f"{conversation.source} ({row.name})")
        return Found(row, text, conversation, cut)

    def _refuse_strangers(self) -> None:
        rows, matched = self.outcome.rows, self.outcome.matched
        if rows and matched >= MIN_MATCHED * rows:
            return
        if not rows:
            raise UserError(f"{self._tokens}: no row can be read: {self.outcome.unreadable[0]}")
        beyond = (
            f"; {self.outcome.outside} rows hold ids beyond its vocabulary of "
            f"{self._tokenizer.vocab_size}"
            if self.outcome.outside
            else ""
        )
        raise UserError(
            f"{self._tokens}: only {matched} of {rows} rows ({matched / rows:.0%}) hold a "
            f"conversation of {self._source.path} when {self._tokenizer.directory} decodes them"
            f"{beyond}; name the source and the tokenizer that they were made from"
        )

    def _match_by_order(self) -> None:
        """Judge what matches nothing: against the conversation in its place, or not at all."""
        by_order = fill_gaps(self._matched, len(self._source.conversations))
        found = []
        for number, (row, text) in self._strangers.items():
            if number in by_order:
                self._matched[number] = by_order[number]
                match = self._index.match(text, by_order[number])
                found.append(self._found(row, text, match))
                continue
            self.outcome.unmatched.append(row.name)
            if len(self._known_ids(row)) < len(row.input_ids):
                found.append(Found(row, text, NOBODY))
        self.outcome.by_order = len(by_order)
        for start in range(0, len(found), CHUNK_ROWS):
            self._audit(found[start : start + CHUNK_ROWS])

    def _audit(self, found: list[Found]) -> None:
        audit, known = self.outcome.audit, len(self.outcome.audit.findings)
        audit_rows([one.to_audit() for one in found], self._tokenizer, self._policy, audit)
        for one in found:
            if len(one.row.padding):
                count, first = len(one.row.padding), int(one.row.padding[0])
                detail = f"{count} labels on padding"
                audit.add(Finding("padding_supervised", one.row.name, first, count, detail))
        by_name = {one.row.name: one for one in found}
        located: dict[str, list[Located]] = {}
        for finding in audit.findings[known:]:
            places = self._locator.locate(finding, by_name[finding.source])
            located.setdefault(finding.source, []).extend(places)
        for name, findings in located.items():
            self.outcome.located += findings
            if len(self.outcome.views) < VIEWS:
                anchor = f"row-{len(self.outcome.views) + 1}"
                view = view_of(by_name[name], findings, self._locator, self._tokenizer, anchor)
                self.outcome.views.append(view)


def chunks_of(rows: Iterable[ForeignRow]) -> Iterator[list[ForeignRow]]:
    stream = iter(rows)
    while chunk := list(islice(stream, CHUNK_ROWS)):
        yield chunk
