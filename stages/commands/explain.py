"""Why do two runs differ? Causes first, in the order in which they act, then what came of it.

Of revisions it reads dvc.lock, manifests, metrics and code from git, and verdicts, rows, telemetry
and weights as far as DVC's cache or remote has them. Where one of the two is a model directory, a
copy of models/final wherever it lies, it compares records, cards and weights of the models. Changes
nothing; DIR gets a page. Exit code: 0 nothing differs, 1 something does, 2 it could not be told.

    holdshort explain A B [--report DIR]
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..provenance.drift import Drift
from ..report.page import Section, Table, write_page
from ..report.terminal import console
from ..revisions.comparison import (
    TRAINING,
    Comparison,
    compare_records,
    compare_stages,
    data_not_run,
    params_not_run,
)
from ..revisions.models import compare_models, is_model, opened
from ..revisions.printing import print_comparison, print_drifts
from ..revisions.record import Record, in_order

SINCE = ("run", "changed since")


def differing_stages(one: Record, other: Record) -> list[str]:
    """The stages of which some output is not the same, bit by bit, in their order."""
    stages = dict.fromkeys([*in_order(one.lock), *in_order(other.lock)])
    return list(compare_stages(one, other, stages)[0])


def describe(stages: Sequence[str], changed: bool) -> str:
    """In one sentence how far the two are from each other. changed: what was not run, at least."""
    if stages:
        others = f" (then {', '.join(stages[1:])})" if stages[1:] else ""
        return f"{stages[0]} is the first stage whose outputs differ{others}"
    same = "what they record is the same, bit by bit"
    return f"{same}, but not all was run since" if changed else same


def write_report(
    directory: Path,
    names: tuple[str, str],
    text: str,
    found: Comparison,
    since: Mapping[str, Sequence[Drift]],
) -> Path:
    """The page with all of it, however much that is."""

    def section(title: str, text: str, drifts: Sequence[Drift], names: tuple[str, str]) -> Section:
        rows = [(drift.kind, drift.name, drift.then, drift.now) for drift in drifts]
        return Section(title, text, table=Table(("kind", "what", *names), rows))

    directory.mkdir(parents=True, exist_ok=True)
    sections = [
        section("Causes", text, found.causes, names),
        section("Effects", "", found.effects, names),
        *(
            section(f"Changed at {name}, and not run", "", drifts, SINCE)
            for name, drifts in since.items()
            if drifts
        ),
        Section("Not compared", "; ".join(found.unknown) or "Nothing was left out."),
    ]
    return write_page("explain", __doc__, sections=sections, directory=directory)


def run(one: str, other: str, report: Path | None) -> int:
    """Exit code: 0 nothing differs, 1 something does."""
    if is_model(one) or is_model(other):
        return explain_models(one, other, report)
    first, second = Record.of_run(one), Record.of_run(other)
    names = first.name, second.name
    with console.status("comparing"):
        found = compare_records(first, second)
        stages = differing_stages(first, second)
    lacking = [record.name for record in (first, second) if TRAINING not in record.lock]
    found.unknown.extend(f"training: {name} records none" for name in lacking)
    since = {one.name: [*data_not_run(one), *params_not_run(one)] for one in (first, second)}
    text = describe(stages, bool(found.causes) or any(since.values()))
    tell(names, text, found, since, report)
    return int(bool(stages or found.causes or found.effects or any(since.values())))


def explain_models(one: str, other: str, report: Path | None) -> int:
    """Exit code: 0 the models are the same, 1 they are not."""
    with opened(one) as first, opened(other) as second:
        names = first.name, second.name
        with console.status("comparing"):
            found = compare_models(first, second)
        same = first.files == second.files
    text = f"the models are {'the same, bit by bit' if same else 'not the same'}"
    tell(names, text, found, {}, report)
    return int(bool(found.causes or found.effects))


def tell(
    names: tuple[str, str],
    text: str,
    found: Comparison,
    since: Mapping[str, Sequence[Drift]],
    report: Path | None,
) -> None:
    """Print the comparison, and write its page where one is asked for."""
    console.print(f"{' -> '.join(names)}: {text}")
    print_comparison(found, *names)
    for name, drifts in since.items():
        if drifts:
            console.print(f"changed at {name}, and not run:")
            print_drifts(drifts, *SINCE)
    if report is not None:
        page = write_report(report, names, text, found, since)
        console.print(f"evidence: {page}")
