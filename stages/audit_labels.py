"""Do the labels that another trainer made supervise exactly what shall be learned?

    holdshort audit-labels --tokens FILE --source FILE --tokenizer DIR [--report DIR]

Reads token rows (`chat.foreign_labels`), finds the conversation of each (`chat.matching`), and
judges them with the audit of gate 1. Writes DIR/index.html, DIR/findings.csv and DIR/verdict.json.
Exit code: 0 passed, 1 failed, 2 could not be judged.
"""

import csv
import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .chat.conversation import BadRow, Conversation
from .chat.labels import IGNORE_INDEX, ROLE_OF_MESSAGE, Role
from .chat.spans import NotJudgeable, SpanFinder
from .chat.tokenizer import ChatTokenizer, TemplateError
from .config.errors import UserError
from .config.schema import Labels
from .foreign.foreign_labels import (
    LABELS,
    MASKS,
    ForeignRow,
    Reading,
    conversations_of,
    decide_shift,
    read_rows,
    reading_of,
)
from .foreign.matching import Match, Place, SourceIndex, fill_gaps, place_messages
from .mask_audit.audit import audit_rows, token_bounds
from .mask_audit.findings import Audit, Finding, Row
from .provenance.code import sources_sha256
from .provenance.environment import RENDERING_PACKAGES, software_environment
from .provenance.hashing import files_below, sha256_file
from .provenance.records import write_json
from .reading.dialects import Dialect, RowParser
from .reading.formats import open_rows, position
from .reading.sources import CODECS, FORMATS, format_of
from .report.page import Section, Table, write_page
from .report.terminal import console, print_verdict, progress
from .report.token_view import TokenFinding, TokenView
from .verdict.judging import Measured, judge_all, overall_status, passes, rank_causes
from .verdict.record import Binding, Verdict, make_verdict
from .verdict.rules.audit_labels import CAUSES, NOT_COVERED, RULES

SUPERVISE = ("content", "reasoning", "tool_call", "scaffold")
CHUNK_ROWS = 512
MIN_MATCHED = 0.5
"""Share of the token rows that must hold a conversation of the source."""
SOURCE_KINDS = f"{', '.join(FORMATS)}; all but Parquet also with {' or '.join(CODECS)} behind it"
TEMPLATE_DATE = "2026-01-01"
EVIDENCE = 20
VIEWS = 40
CSV_LINES = 100_000
RULE_OF_KIND = {"label_differs_from_input": "label_differs", "call_differs": "calls_differ"}


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    tokens: Path
    source: Path
    tokenizer: Path
    turns: Literal["all", "last"] = "all"
    supervise: tuple[str, ...] = SUPERVISE[:3]
    dialect: Dialect | Literal["auto"] = "auto"
    report: Path | None = None
    pre_shifted: Literal["auto", "yes", "no"] = "auto"


@dataclass(frozen=True)
class Located:
    """A finding and where it is. position: of its first token in the stored row, or -1.

    where: in, before or after the text of message `message`; both empty where that is not known.
    """

    kind: str
    source: str
    row: str
    position: int
    count: int
    where: str
    message: int | str
    role: str
    tokens: str
    detail: str

    def __str__(self) -> str:
        at = f" token {self.position} {self.tokens}" if self.position >= 0 else ""
        told = f"{self.where} message {self.message} ({self.role})" if self.where else self.detail
        return f"{self.source} ({self.row}){at}: {told}"


@dataclass
class Sources:
    """The conversations of a source, and the rows that are none."""

    conversations: list[Conversation] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


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


def read_source(path: Path, dialect: Dialect | Literal["auto"]) -> Sources:
    """All conversations of a file, in their order; rows that are none are named.

    Raises UserError for a file that is missing or empty or holds no conversation.
    """
    if not path.is_file():
        raise UserError(f"{path} (--source) does not exist or is not a file")
    if not format_of(path):
        raise UserError(f"{path} (--source) is of a kind that cannot be read; use {SOURCE_KINDS}")
    sources, parser = Sources(), RowParser(dialect)
    with closing(open_rows(path)) as reader:
        for row in reader.rows():
            where = position(path.name, row.number, reader.unit)
            try:
                sources.conversations.append(parser.parse(row.value, where))
            except BadRow as reason:
                sources.unreadable.append(f"{where}: {reason}")
    if not sources.conversations:
        raise UserError(f"{path} (--source) holds no conversation: {sources.unreadable[0]}")
    return sources


def policy_of(options: Options) -> Labels:
    """Raises UserError for a role that nobody knows."""
    unknown = [name for name in options.supervise if name not in SUPERVISE]
    if unknown or not options.supervise:
        raise UserError(
            f"--supervise: {unknown[0] if unknown else 'nothing'!r} cannot be supervised; use some "
            f"of {', '.join(SUPERVISE)}, separated by commas"
        )
    return Labels(
        turns=options.turns,
        supervise=list(options.supervise),  # type: ignore[arg-type]
        straddling="supervise",
        template_date=TEMPLATE_DATE,
    )


@dataclass(frozen=True)
class Survey:
    """What the first pass over a token file finds. form: the columns that say what is supervised"""

    shifted: bool
    form: str
    unreadable: list[str]


def survey(options: Options) -> Survey:
    """Read the file once: what can be read, and whether its labels are pre-shifted.

    Raises UserError when no row can be read, or when it cannot be told.
    """
    readings: Counter[Reading] = Counter()
    forms: Counter[str] = Counter()
    unreadable = []
    for name, columns in read_rows(options.tokens):
        if isinstance(columns, BadRow):
            unreadable.append(f"{name}: {columns}")
            continue
        masks = [mask for mask in MASKS if mask in columns]
        forms[LABELS if LABELS in columns else " and ".join(masks)] += 1
        readings[reading_of(columns)] += 1
    if not forms:
        raise UserError(f"{options.tokens}: no row can be read: {unreadable[0]}")
    form = ", ".join(sorted(forms))
    if options.pre_shifted != "auto":
        shifted = options.pre_shifted == "yes"
        if shifted and LABELS not in forms:
            raise UserError(f"--pre-shifted yes: {options.tokens} has {form}, which nobody shifts")
    else:
        shifted = decide_shift(options.tokens, readings)
    return Survey(shifted, form, unreadable)


def chunks_of(rows: Iterable[ForeignRow]) -> Iterator[list[ForeignRow]]:
    stream = iter(rows)
    while chunk := list(islice(stream, CHUNK_ROWS)):
        yield chunk


@dataclass(frozen=True)
class Found:
    """A token row, its text, and the conversation that it holds."""

    row: ForeignRow
    text: str
    conversation: Conversation
    truncated: bool = False

    def to_audit(self) -> Row:
        row, messages = self.row, self.conversation.messages
        return Row(row.name, row.input_ids, row.labels, messages, self.truncated)


Anatomy = tuple[NDArray[np.int64], NDArray[np.int64], Sequence[Place]]
"""First character and end of every token, and where the messages stand."""
NOBODY = Conversation("", "no source", [])


class Auditor:
    """Judges the rows of one token file against the conversations of its source."""

    def __init__(self, options: Options, sources: Sources, tokenizer: ChatTokenizer) -> None:
        self._options, self._tokenizer = options, tokenizer
        self._conversations = sources.conversations
        self._policy = policy_of(options)
        self._index = SourceIndex(sources.conversations, tokenizer)
        self._spans = SpanFinder(tokenizer.render, tokenizer.inspected)
        self._matched: list[int | None] = []
        self._strangers: dict[int, tuple[ForeignRow, str]] = {}
        self._expected = 0
        self._last: tuple[Found, Anatomy] | None = None
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
            for number, conversation in enumerate(self._conversations)
            if number not in used
        ]
        outcome.repeated = outcome.rows - len(outcome.unmatched) - len(used)
        return outcome

    def _rows(self, shifted: bool) -> Iterator[ForeignRow]:
        pad, stops = self._tokenizer.pad_token_id, self._tokenizer.stop_token_ids.tolist()
        for name, columns in read_rows(self._options.tokens):
            if isinstance(columns, BadRow):
                continue
            try:
                yield from conversations_of(name, columns, shifted, pad, stops)
            except BadRow as reason:
                self.outcome.unreadable.append(f"{name}: {reason}")

    def _judge(self, chunk: list[ForeignRow]) -> None:
        texts = self._tokenizer.decode_batch([self._known_ids(row) for row in chunk])
        found = []
        for row, text in zip(chunk, texts, strict=True):
            self.outcome.rows += 1
            self.outcome.packed += row.packed
            match = self._index.find(text, self._expected)
            self._matched.append(match.conversation if match else None)
            if match is None:
                self._strangers[len(self._matched) - 1] = row, text
                continue
            self.outcome.matched += 1
            self._index.used[match.conversation] += 1
            self._expected = match.conversation + 1
            found.append(self._take(row, text, match))
        self._audit(found)

    def _known_ids(self, row: ForeignRow) -> list[int]:
        ids = row.input_ids
        known = (ids >= 0) & (ids < self._tokenizer.vocab_size)
        self.outcome.outside += not known.all()
        return [int(token) for token in ids[known]]

    def _take(self, row: ForeignRow, text: str, match: Match) -> Found:
        conversation = self._conversations[match.conversation]
        other = None if row.packed else self._index.holds_another(text, match)
        if other is not None:
            raise UserError(
                f"{self._options.tokens}: {row.name} holds {conversation.source} and "
                f"{self._conversations[other].source} one behind the other; packed rows cannot be "
                "judged without 'seq_lengths' or 'position_ids': write them, or do not pack"
            )
        return self._found(row, text, match)

    def _found(self, row: ForeignRow, text: str, match: Match) -> Found:
        conversation = self._conversations[match.conversation]
        cut = self._index.is_cut(text, match)
        if cut:
            self.outcome.truncated.append(f"{conversation.source} ({row.name})")
        return Found(row, text, conversation, cut)

    def _refuse_strangers(self) -> None:
        rows, matched, options = self.outcome.rows, self.outcome.matched, self._options
        if rows and matched >= MIN_MATCHED * rows:
            return
        if not rows:
            raise UserError(f"{options.tokens}: no row can be read: {self.outcome.unreadable[0]}")
        beyond = (
            f"; {self.outcome.outside} rows hold ids beyond its vocabulary of "
            f"{self._tokenizer.vocab_size}"
            if self.outcome.outside
            else ""
        )
        raise UserError(
            f"{options.tokens}: only {matched} of {rows} rows ({matched / rows:.0%}) hold a "
            f"conversation of {options.source} when {options.tokenizer} decodes them{beyond}; name "
            "the source and the tokenizer that they were made from"
        )

    def _match_by_order(self) -> None:
        """Judge what matches nothing: against the conversation in its place, or not at all."""
        by_order = fill_gaps(self._matched, len(self._conversations))
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
            one = by_name[finding.source]
            located.setdefault(finding.source, []).extend(self._locate(finding, one))
        for name, findings in located.items():
            self.outcome.located += findings
            if len(self.outcome.views) < VIEWS:
                self.outcome.views.append(self._view(by_name[name], findings))

    def _locate(self, finding: Finding, one: Found) -> Iterator[Located]:
        """The finding at every stretch of its tokens."""
        source, row = one.conversation.source, one.row
        if finding.position < 0 or finding.kind == "padding_supervised":
            yield Located(
                finding.kind,
                source,
                row.name,
                finding.position,
                finding.count,
                *("", "", "", ""),
                finding.detail,
            )
            return
        for start, end in finding.runs or ((finding.position, finding.position + 1),):
            count = end - start if finding.runs else finding.count
            where, message, role = self._place(finding.kind, one, start)
            shown = self._shown(row, start, min(end, start + 8))
            position = int(row.positions[start])
            yield Located(
                *(finding.kind, source, row.name, position, count, where, message, role),
                shown,
                finding.detail,
            )

    def _shown(self, row: ForeignRow, start: int, end: int) -> str:
        ids = row.input_ids[start:end]
        known = ids[(ids >= 0) & (ids < self._tokenizer.vocab_size)]
        return repr(self._tokenizer.decode(known.tolist()))

    def _place(self, kind: str, one: Found, token: int) -> tuple[str, int | str, str]:
        """(in, before or after, message, its role) of a token."""
        if kind == "id_outside_vocabulary":
            return "", "", ""
        starts, _, places = self._anatomy(one)
        character, messages = int(starts[token]), one.conversation.messages
        inside = [place for place in places if place.start <= character < place.end]
        earlier = [place for place in places if place.end <= character]
        later = [place for place in places if place.start >= character]
        follows = kind in ("scaffold_differs", "stop_masked")
        for where, around in (
            ("in", inside[:1]),
            ("after", earlier[-1:] if follows else []),
            ("before", later[:1]),
            ("after", earlier[-1:]),
        ):
            if around:
                index = around[0].index
                return where, index, str(messages[index]["role"])
        return "", "", ""

    def _anatomy(self, one: Found) -> Anatomy:
        if self._last is None or self._last[0] is not one:
            bounds = token_bounds(one.row.input_ids.tolist(), one.text, self._tokenizer)
            self._last = one, (*bounds, self._places(one))
        return self._last[1]

    def _places(self, one: Found) -> Sequence[Place]:
        """Where the messages stand: to the character, where the template wrote this very text."""
        messages, tools = one.conversation.messages, one.conversation.tools
        try:
            whole = self._tokenizer.render(messages, tools)
            if whole.startswith(one.text):
                spans = self._spans.find(whole, messages, tools)
                return [Place(span.index, span.start, span.end) for span in spans]
        except (TemplateError, NotJudgeable):
            pass
        return place_messages(one.text, messages)[0]

    def _view(self, one: Found, findings: Sequence[Located]) -> TokenView:
        row, labels = one.row, one.row.labels
        roles = np.full(len(row.input_ids), Role.SCAFFOLD.name.lower(), object)
        if all(finding.kind != "id_outside_vocabulary" for finding in findings):
            starts, ends, places = self._anatomy(one)
            for place in places:
                said_by = str(one.conversation.messages[place.index]["role"])
                role = ROLE_OF_MESSAGE.get(said_by, Role.OTHER).name.lower()
                roles[(starts < place.end) & (ends > place.start)] = role
        at = {int(position): token for token, position in enumerate(row.positions)}
        shown = np.full(len(row.input_ids), IGNORE_INDEX, np.int64)
        shown[: len(labels)] = labels[: len(shown)]
        return TokenView(
            anchor=f"row-{len(self.outcome.views) + 1}",
            source=f"{one.conversation.source} ({row.name})",
            split="tokens",
            status="cut" if one.truncated else "kept",
            tokens=[self._shown_plain(int(token)) for token in row.input_ids],
            ids=row.input_ids.tolist(),
            labels=shown.tolist(),
            roles=roles.tolist(),
            findings=[
                TokenFinding(
                    finding.kind, at.get(finding.position, -1), finding.count, str(finding)
                )
                for finding in findings
            ],
        )

    def _shown_plain(self, token: int) -> str:
        inside = 0 <= token < self._tokenizer.vocab_size
        return self._tokenizer.pieces([token])[0] if inside else f"<{token}>"


def measure(outcome: Outcome, sources: Sources) -> dict[str, Measured]:
    """What the rules ask."""
    audit = outcome.audit
    by_rule: dict[str, list[Located]] = {}
    for finding in outcome.located:
        by_rule.setdefault(RULE_OF_KIND.get(finding.kind, finding.kind), []).append(finding)

    def named(rows: Sequence[str], n: int) -> Measured:
        return Measured(len(rows), n, evidence=tuple(rows[:EVIDENCE]))

    measured = {
        "unreadable_rows": named(outcome.unreadable, outcome.rows + len(outcome.unreadable)),
        "unmatched_token_rows": named(outcome.unmatched, outcome.rows),
        "truncated_rows": named(outcome.truncated, outcome.rows),
        "unmatched_source_rows": named(outcome.unused, len(sources.conversations)),
        "unreadable_source_rows": named(
            sources.unreadable, len(sources.conversations) + len(sources.unreadable)
        ),
    }
    tokens = audit.must_mask + audit.must_supervise
    for rule in RULES:
        if rule.id not in measured:
            found = by_rule.get(rule.id, [])
            evidence = tuple(str(finding) for finding in found[:EVIDENCE])
            n = tokens if rule.unit == "tokens" else outcome.rows
            count = sum(finding.count for finding in found)
            measured[rule.id] = Measured(count, n, evidence=evidence)
    return measured


def describe(options: Options, surveyed: Survey, outcome: Outcome, sources: Sources) -> list[str]:
    """What was read, and how, in sentences."""
    shift = "yes" if surveyed.shifted else "no"
    how = "as given" if options.pre_shifted != "auto" else "told by the ids they copy"
    if LABELS not in surveyed.form:
        how = "masks never are"
    policy = f"{options.turns} assistant turns; {', '.join(options.supervise)} and the stop token"
    lines = [
        f"{options.tokens.name}: {outcome.rows} conversations, read from {surveyed.form}",
        f"labels pre-shifted by one: {shift} ({how})",
        f"{options.source.name}: {len(sources.conversations)} conversations; {outcome.matched} "
        f"token rows match by what they say, {outcome.by_order} by their order, "
        f"{len(outcome.unmatched)} not at all",
        f"supervised shall be: {policy}",
    ]
    if outcome.packed:
        lines.append(f"packed: {outcome.packed} conversations share rows with others")
    if outcome.repeated:
        lines.append(f"{outcome.repeated} token rows hold a conversation that another holds too")
    return lines


def bind(options: Options) -> Binding:
    """What the verdict is bound to: the options, this code and its libraries."""
    package = Path(__file__).parent
    files = [package / "audit_labels.py", *files_below(package / "chat")]
    code = {file.relative_to(package).as_posix(): file for file in files if file.suffix == ".py"}
    params = {
        "turns": options.turns,
        "supervise": list(options.supervise),
        "dialect": options.dialect,
        "pre_shifted": options.pre_shifted,
    }
    environment = software_environment(RENDERING_PACKAGES)
    return Binding("audit_labels", params, sources_sha256(code), environment)


def digests(options: Options) -> dict[str, str]:
    """Name -> sha256 of everything that was read; names begin at the file or directory given."""
    found = {}
    for role in ("tokens", "source", "tokenizer"):
        root: Path = getattr(options, role)
        for file in files_below(root):
            inside = file.relative_to(root).as_posix() if root.is_dir() else ""
            name = "/".join(part for part in (role, root.resolve().name, inside) if part)
            found[name] = sha256_file(file)
    return found


def write_report(directory: Path, verdict: Verdict, outcome: Outcome, told: Sequence[str]) -> None:
    """Write index.html, findings.csv and verdict.json into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    shown = outcome.located[:CSV_LINES]
    with (directory / "findings.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = list(Located.__dataclass_fields__)
        writer.writerow(columns)
        writer.writerows([getattr(finding, name) for name in columns] for finding in shown)
    kinds = Counter(finding.kind for finding in outcome.located)
    listed = f"findings.csv lists {len(shown)} of {len(outcome.located)} places."
    sections = [
        Section("What was read", "; ".join(told) + "."),
        Section("Findings by kind", listed, table=Table(("kind", "places"), sorted(kinds.items()))),
    ]
    for title, names in (
        ("Token rows that were not matched", outcome.unmatched),
        ("Source rows that no token row holds", outcome.unused),
    ):
        if names:
            rows = [(name,) for name in names[:1000]]
            sections.append(Section(title, table=Table(("row",), rows, len(names))))
    write_page(
        verdict.gate,
        __doc__,
        verdict=verdict,
        sections=sections,
        conversations=outcome.views,
        directory=directory,
    )
    write_json(directory / "verdict.json", asdict(verdict))


def run(options: Options) -> int:
    """Exit code: 0 passed, 1 failed. Raises UserError when nothing can be judged."""
    binding, policy = bind(options), policy_of(options)
    sources = read_source(options.source, options.dialect)
    today = datetime.date.fromisoformat(policy.template_date)
    surveyed = survey(options)
    tokenizer = ChatTokenizer(str(options.tokenizer), today)
    outcome = Auditor(options, sources, tokenizer).run(surveyed)
    checks = judge_all(RULES, measure(outcome, sources), {})
    verdict = make_verdict(
        binding,
        overall_status(checks, RULES),
        checks,
        causes=rank_causes(checks, CAUSES),
        not_covered=NOT_COVERED,
        inputs=digests(options),
    )
    told = describe(options, surveyed, outcome, sources)
    for line in told:
        console.print(line, markup=False)
    evidence = "give --report DIR for a page, findings.csv and verdict.json"
    if options.report is not None:
        write_report(options.report, verdict, outcome, told)
        evidence = str(options.report / "index.html")
    print_verdict(verdict, evidence)
    return 0 if passes(verdict.status) else 1


def options_of(arguments: Any) -> Options:
    """Options from the parsed command line."""
    names = [name.strip() for name in arguments.supervise.split(",") if name.strip()]
    return Options(
        tokens=arguments.tokens,
        source=arguments.source,
        tokenizer=arguments.tokenizer,
        turns=arguments.turns,
        supervise=tuple(dict.fromkeys(names)),
        dialect=arguments.dialect,
        report=arguments.report,
        pre_shifted=arguments.pre_shifted,
    )
