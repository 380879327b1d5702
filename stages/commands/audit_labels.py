"""Do the labels that another trainer made supervise exactly what shall be learned?

    holdshort audit-labels --tokens FILE --source FILE --tokenizer DIR [--report DIR]

Reads token rows (`foreign.token_files`), finds the conversation of each (`foreign.matching`),
and judges them with the audit of gate 1 (`foreign.auditor`). Writes DIR/index.html,
DIR/findings.csv and DIR/verdict.json.
Exit code: 0 passed, 1 failed, 2 could not be judged.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..chat.tokenizer import ChatTokenizer
from ..config.errors import UserError
from ..config.schema import Labels
from ..foreign.auditor import Auditor, Outcome
from ..foreign.columns import LABELS
from ..foreign.locating import Located
from ..foreign.report_files import write_report
from ..foreign.source import Source, read_source
from ..foreign.survey import PreShifted, Survey, survey
from ..provenance.code import sources_sha256
from ..provenance.environment import RENDERING_PACKAGES, software_environment
from ..provenance.hashing import files_below, sha256_file
from ..reading.dialects import Dialect
from ..report.terminal import console, print_verdict
from ..verdict.judging import Measured, judge_all, overall_status, passes, rank_causes
from ..verdict.record import Binding, Verdict, make_verdict
from ..verdict.rules.audit_labels import CAUSES, NOT_COVERED, RULES

SUPERVISE = ("content", "reasoning", "tool_call", "scaffold")
TEMPLATE_DATE = "2026-01-01"
EVIDENCE = 20
PACKAGES = ("chat", "config", "foreign", "mask_audit", "provenance", "reading", "report", "verdict")
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
    pre_shifted: PreShifted = "auto"


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


def measure(outcome: Outcome, source: Source) -> dict[str, Measured]:
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
        "unmatched_source_rows": named(outcome.unused, len(source.conversations)),
        "unreadable_source_rows": named(
            source.unreadable, len(source.conversations) + len(source.unreadable)
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


def judge(binding: Binding, measured: Mapping[str, Measured], inputs: Mapping[str, str]) -> Verdict:
    """The verdict of audit-labels; none of its rules has a limit to be set."""
    checks = judge_all(RULES, measured, {})
    return make_verdict(
        binding,
        overall_status(checks, RULES),
        checks,
        causes=rank_causes(checks, CAUSES),
        not_covered=NOT_COVERED,
        inputs=inputs,
    )


def describe(options: Options, surveyed: Survey, outcome: Outcome, source: Source) -> list[str]:
    """What was read, and how, in sentences."""
    shift = "yes" if surveyed.shifted else "no"
    how = "as given" if options.pre_shifted != "auto" else "told by the ids they copy"
    if LABELS not in surveyed.form:
        how = "masks never are"
    policy = f"{options.turns} assistant turns; {', '.join(options.supervise)} and the stop token"
    lines = [
        f"{options.tokens.name}: {outcome.rows} conversations, read from {surveyed.form}",
        f"labels pre-shifted by one: {shift} ({how})",
        f"{options.source.name}: {len(source.conversations)} conversations; {outcome.matched} "
        f"token rows match by what they say, {outcome.by_order} by their order, "
        f"{len(outcome.unmatched)} not at all",
        f"supervised shall be: {policy}",
    ]
    if outcome.packed:
        lines.append(f"packed: {outcome.packed} conversations share rows with others")
    if outcome.repeated:
        lines.append(f"{outcome.repeated} token rows hold a conversation that another holds too")
    return lines


def code_files() -> dict[str, Path]:
    """Name below the package -> file of all code that decides a verdict."""
    package = Path(__file__).parents[1]
    below = [file for name in PACKAGES for file in files_below(package / name)]
    files = [Path(__file__), *(file for file in below if file.suffix == ".py")]
    return {file.relative_to(package).as_posix(): file for file in files}


def bind(options: Options) -> Binding:
    """What the verdict is bound to: the options, this code and its libraries."""
    params = {
        "turns": options.turns,
        "supervise": list(options.supervise),
        "dialect": options.dialect,
        "pre_shifted": options.pre_shifted,
    }
    environment = software_environment(RENDERING_PACKAGES)
    return Binding("audit_labels", params, sources_sha256(code_files()), environment)


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


def run(options: Options) -> int:
    """Exit code: 0 passed, 1 failed. Raises UserError when nothing can be judged."""
    binding, policy = bind(options), policy_of(options)
    source = read_source(options.source, options.dialect)
    surveyed = survey(options.tokens, options.pre_shifted)
    today = datetime.date.fromisoformat(policy.template_date)
    tokenizer = ChatTokenizer(str(options.tokenizer), today)
    outcome = Auditor(options.tokens, source, tokenizer, policy).run(surveyed)

    verdict = judge(binding, measure(outcome, source), digests(options))
    told = describe(options, surveyed, outcome, source)
    for line in told:
        console.print(line)
    evidence = "give --report DIR for a page, findings.csv and verdict.json"
    if options.report is not None:
        write_report(options.report, verdict, __doc__, outcome, told)
        evidence = str(options.report / "index.html")
    print_verdict(verdict, evidence)
    return 0 if passes(verdict.status) else 1
