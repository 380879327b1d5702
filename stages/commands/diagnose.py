"""What do the curves of a training run show, and what should be tried?

    holdshort diagnose LOG [--report DIR]

Reads the log of a run, whoever wrote it (`curves.read_log`), and names the signatures of failures
that its curves show, with evidence, likely causes and what to try. DIR gets index.html,
diagnosis.json and the charts as SVG and PNG.
Exit code: 0 nothing found, 1 a signature found, 2 could not be judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.errors import UserError, visible
from ..curves.columns import NAMES, Role
from ..curves.diagnosis import Diagnosis, diagnose
from ..curves.read_log import read_log
from ..curves.run_log import RunLog
from ..curves.signature import Known, Signature
from ..report.terminal import console


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    log: Path
    mapped: dict[Role, str]
    known: Known
    report: Path | None = None


def options_of(arguments: Any) -> Options:
    """Options from the parsed command line. Raises UserError for a role that nobody knows."""
    mapped: dict[Role, str] = {}
    for pair in arguments.map:
        role, equals, name = pair.partition("=")
        if role not in NAMES or not equals or not name:
            raise UserError(
                f"--map {pair}: write --map ROLE=NAME, where ROLE is one of {', '.join(NAMES)}"
            )
        mapped[role] = name
    for name, value, below in (
        ("--classes", arguments.classes, 1),
        ("--prior", arguments.prior, 0),
        ("--max-grad-norm", arguments.max_grad_norm, 0),
    ):
        if value is not None and not value > below:
            raise UserError(f"{name} is {value}; it must be above {below}")
    known = Known(arguments.classes, arguments.prior, arguments.max_grad_norm)
    return Options(arguments.log, mapped, known, arguments.report)


def describe_log(path: Path, log: RunLog) -> list[str]:
    """What was read, in sentences."""
    found = ", ".join(f"{one.name} ({len(one)})" for one in log.series)
    lines = [f"{path.name}: {log.form}; {found or 'no curve of a known name'}"]
    if log.loss is not None:
        first, last = log.loss.steps[0], log.loss.steps[-1]
        planned = f" of {log.max_steps:g}" if log.max_steps else ""
        lines.append(f"training loss from {log.x_label} {first:g} to {last:g}{planned}")
    return [*lines, *log.remarks]


def describe_signature(signature: Signature, diagnosis: Diagnosis) -> list[str]:
    """Evidence, then the causes, first what is worth to be tried first."""
    causes = diagnosis.causes_of(signature) if signature.is_fault else []
    return [
        *(f"  {line}" for line in signature.evidence[:EVIDENCE_SHOWN]),
        *(f"  perhaps {cause.text}: {cause.remedy}" for cause in causes[:CAUSES_SHOWN]),
    ]


EVIDENCE_SHOWN = 5
CAUSES_SHOWN = 4


def print_diagnosis(told: Sequence[str], diagnosis: Diagnosis) -> None:
    """What was read, then faults, remarks, and what was not judged."""
    for line in told:
        console.print(visible(line))
    for signature in diagnosis.faults:
        console.print(visible(f"{signature.id}: {signature.title}"), style="bold red")
        for line in describe_signature(signature, diagnosis):
            console.print(visible(line))
    for signature in diagnosis.remarks:
        line = f"remark: {signature.title}: {'; '.join(signature.evidence)}"
        console.print(visible(line))
    for one in diagnosis.not_judged:
        console.print(visible(f"not judged: {one.id}: {one.reason}"))
    if not diagnosis.faults and diagnosis.could_judge:
        console.print("no signature of a failure was found")


def run(options: Options) -> int:
    """Exit code: 0 nothing found, 1 a signature found. Raises UserError without enough evidence."""
    log = read_log(options.log, options.mapped)
    diagnosis = diagnose(log, options.known)
    told = describe_log(options.log, log)
    print_diagnosis(told, diagnosis)
    if options.report is not None:
        from ..curves.report_files import write_report  # matplotlib: only when a page is asked for

        page = write_report(options.report, __doc__, log, diagnosis, told, options.known)
        console.print(f"evidence: {page}")
    if diagnosis.exit_code == 2:
        reasons = [one for one in diagnosis.not_judged if one.id in ("loss", "shape of the loss")]
        raise UserError(f"not enough evidence: {reasons[0].reason}")
    return diagnosis.exit_code
