"""Can the gates fail? Faults are planted in a run, one at a time.

Reads params.yaml, or composes conf/ with overrides, and artifacts/. Runs gates 2 and 3 over the
healthy run, some variations of it and every fault that applies, and the controls of gate 1; without
the reruns in fresh processes. Writes reports/selftest/ (matrix.json and a page) and nothing else.

    holdshort selftest [OVERRIDE ...] [--quick] [--report DIR]
"""

import datetime
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table as TerminalTable
from rich.text import Text

from ..chat.tokenizer import ChatTokenizer
from ..config import Params
from ..faults.catalogue import FAULTS
from ..faults.fault import GATES, Fault, Gate, Kind
from ..faults.healthy import VARIATIONS
from ..faults.matrix import (
    GOT_THROUGH,
    WORDS,
    Listed,
    Outcome,
    account,
    beyond,
    outcome_of,
    record_of,
)
from ..faults.rates import tell_rate, upper_bound
from ..faults.running import Run, run_fault, run_gates
from ..mask_audit.controls import Control
from ..mask_report import prove_audit
from ..provenance.records import write_json
from ..report.page import Section, Table, claim_directory, write_page
from ..report.terminal import console, progress
from ..training.setup import Parts
from .overrides import name_run, refuse_other_tokens

NAMED = {True: "yes", False: "no", None: "-"}
"""Whether the gate names the cause; None where there is none to name, or nobody asked."""
STYLES = {"caught": "green", "warned": "yellow", "known": "yellow"}


def run_controls(params: Params) -> list[Control]:
    """Those that gate 1 runs over its own labels."""
    today = datetime.date.fromisoformat(params.labels.template_date)
    return prove_audit(params, ChatTokenizer(params.model.tokenizer, today))


def choose(params: Params, quick: bool) -> list[list[Fault]]:
    """The faults to plant, of each list the first that can be: all, or one of each kind.

    Whether a model has what a fault breaks is known when the fault is planted, not before.
    """
    if not quick:
        return [[fault] for fault in FAULTS]
    of_kind: dict[Kind, list[Fault]] = {}
    for fault in FAULTS:
        if not fault.missed and fault.applies(params) is None:
            of_kind.setdefault(fault.kind, []).append(fault)
    return list(of_kind.values())


def plant_first(faults: Sequence[Fault], params: Params, healthy: Run) -> Outcome:
    """What became of the first of `faults` that can be planted, or of the last."""
    for fault in faults:
        outcome = try_fault(fault, params, healthy)
        if outcome.status != "not_applicable":
            break
    return outcome


def try_fault(fault: Fault, params: Params, healthy: Run) -> Outcome:
    try:
        with warnings.catch_warnings(action="ignore"):  # libraries warn of what was broken
            result: Run | str | Exception = run_fault(fault, params)
    except Exception as error:  # gates that stop have not judged, whatever stopped them
        result = error
    return outcome_of(fault, result, healthy)


def count_alarms(variations: Mapping[str, str]) -> tuple[int, int]:
    """Alarms over sound runs, and how many such runs were made."""
    ran = [told for told in variations.values() if not told.startswith("not run")]
    return sum(told.startswith("ALARM") for told in ran), len(ran)


def vary(params: Params, healthy: Run) -> dict[str, str]:
    """By variation: the checks that raise an alarm over a sound run, or why it was not made."""
    told = {}
    with progress() as bar:
        for name, change in bar.track(VARIATIONS.items(), description="healthy variations"):
            varied = change(params)
            if isinstance(varied, str):
                told[name] = f"not run: {varied}"
                continue
            found = beyond(run_gates(varied, Parts.of(varied)), healthy)
            alarms = [f"{gate}: {check}" for gate in GATES for check in found[gate]]
            told[name] = f"ALARM: {', '.join(alarms)}" if alarms else "no alarm"
    return told


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """The matrix of faults and gates, without those that do not apply."""
    table = TerminalTable(title="planted faults", title_justify="left")
    table.add_column("fault", no_wrap=True)
    for column in (*GATES, "cause named", "seconds"):
        table.add_column(column)
    for one in outcomes:
        if one.status == "not_applicable":
            continue
        cells = [_cell(one, gate) for gate in GATES]
        table.add_row(one.fault.name, *cells, NAMED[one.named], f"{one.seconds:.1f}")
    console.print(table)


def _cell(outcome: Outcome, gate: Gate) -> Text:
    """What became of the fault at the gate that must see it; at the other, whether it does too."""
    if gate != outcome.fault.gate:
        return Text("sees it too" if outcome.found.get(gate) else "-")
    return Text(WORDS[outcome.status], STYLES.get(outcome.status, "bold red"))


def summarise(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(one.status for one in outcomes)
    told = [f"{counts[status]} {words}" for status, words in WORDS.items() if counts[status]]
    asked = [one.named for one in outcomes if one.status in ("caught", "warned")]
    named = f"; the cause is named for {asked.count(True)} of {len(asked) - asked.count(None)}"
    return ", ".join(told) + named


def describe_list(listed: Sequence[Listed]) -> list[Section]:
    """The whole list by what sees each fault, and apart from it what nothing sees, and why."""
    seen = [one for one in listed if one.gates]
    unseen = [one for one in listed if not one.gates]
    counts = Counter(one.status for one in listed)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    by = [
        (
            str(one.number),
            one.title,
            one.status,
            ", ".join(one.gates),
            ", ".join(one.checks),
            NAMED[one.named],
            "; ".join(one.how),
        )
        for one in seen
    ]
    why = [(str(one.number), one.title, one.status, "; ".join(one.how)) for one in unseen]
    columns = ("number", "fault", "", "gate", "check", "cause named", "how")
    return [
        Section(f"Of {len(listed)} known faults: seen", f"{told}.", table=Table(columns, by)),
        Section(
            "The others, and why nothing sees them here",
            table=Table(("number", "fault", "", "why"), why),
        ),
    ]


def write_report(
    directory: Path,
    outcomes: Sequence[Outcome],
    variations: dict[str, str],
    controls: Sequence[Control],
    listed: Sequence[Listed],
    healthy: Run,
    overrides: Sequence[str],
) -> None:
    alarms, trials = count_alarms(variations)
    record = {
        "run": name_run(overrides),
        "healthy": {gate: list(healthy.found[gate].checks) for gate in GATES},
        "variations": variations,
        "false_alarms": {
            "alarms": alarms,
            "trials": trials,
            "upper_bound_95": upper_bound(alarms, trials),
        },
        "faults": [record_of(one) for one in outcomes],
        "controls": [
            {"name": one.name, "rows": one.applied, "caught": one.caught} for one in controls
        ],
        "list": [
            {
                "number": one.number,
                "title": one.title,
                "status": one.status,
                "gates": list(one.gates),
                "checks": list(one.checks),
                "cause_named": one.named,
                "how": list(one.how),
            }
            for one in listed
        ],
    }
    write_json(directory / "matrix.json", record)
    faults = [
        (
            one.fault.name.replace("_", " "),
            ", ".join(map(str, one.fault.numbers)),
            WORDS[one.status],
            *(", ".join(one.found.get(gate, ())) for gate in GATES),
            NAMED[one.named],
            "; ".join(one.causes[:1]) or one.note,
        )
        for one in outcomes
    ]
    sections = [
        Section("The run", f"{name_run(overrides)}."),
        *describe_list(listed),
        Section(
            "Planted faults",
            f"{summarise(outcomes)}. Checks that do not pass, and do in the healthy run.",
            table=Table(("fault", "number", "", *GATES, "cause named", "first cause"), faults),
        ),
        Section(
            "Healthy variations",
            f"False alarms: {tell_rate(alarms, trials)}.",
            table=Table(("variation", ""), list(variations.items())),
        ),
    ]
    write_page("selftest", __doc__, sections=sections, directory=directory)


def run(params: Params, overrides: Sequence[str], quick: bool, directory: Path) -> int:
    """Exit code: 0 all caught and no alarm, 1 not so. Raises UserError without tokens."""
    refuse_other_tokens(params)
    claim_directory(directory, "matrix.json")
    with console.status("running the healthy configuration"):
        healthy = run_gates(params, Parts.of(params), twice=True)
        controls = run_controls(params)
    faults = choose(params, quick)
    minutes = (len(VARIATIONS) + len(faults)) * healthy.seconds / 60
    console.print(
        f"{len(faults)} faults and {len(VARIATIONS)} healthy variations: about {minutes:.1f} "
        f"minutes, for the healthy run took {healthy.seconds:.1f} seconds"
    )
    variations = vary(params, healthy)
    outcomes = []
    with progress() as bar:
        for first in bar.track(faults, description="planted faults"):
            outcomes.append(plant_first(first, params, healthy))
    listed = account(outcomes, controls)
    print_outcomes(outcomes)
    for gate in GATES:
        if healthy.found[gate].checks:
            console.print(
                f"the healthy run does not pass {', '.join(healthy.found[gate].checks)} of {gate}"
            )
    for name, told in variations.items():
        console.print(f"healthy variation {name}: {told}")
    alarms, trials = count_alarms(variations)
    console.print(f"false alarms over sound runs: {tell_rate(alarms, trials)}")
    missed = [one.name for one in controls if one.missed]
    tried = sum(one.applied > 0 for one in controls)
    console.print(f"mask_report: {tried - len(missed)} of {tried} controls caught")
    console.print(f"faults: {summarise(outcomes)}")
    for one in outcomes:
        if one.status in GOT_THROUGH:
            console.print(f"{WORDS[one.status]}: {one.fault.name}: {one.note}")
    write_report(directory, outcomes, variations, controls, listed, healthy, overrides)
    console.print(f"written: {directory / 'index.html'}")
    got_through = [one for one in outcomes if one.status in GOT_THROUGH]
    return int(bool(missed or alarms or got_through))
