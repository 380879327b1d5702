"""What does one change do? Arms that differ in one thing, trained side by side.

    holdshort compare NAME [--report DIR]

Reads conf/experiment/compare/NAME.yaml (`comparison.declared` says how it is written) and
artifacts/. Each arm takes all its steps through the training step of full_train, is judged by gate
3 and has its curves read; there are no checkpoints and no generations, and no model is kept. Arms
that are scripts go through `sanity_check`. Writes reports/compare/NAME/ (results.json and a page)
and nothing else. Exit code: 0 done, 2 bad input.
"""

import warnings
from pathlib import Path

from rich.table import Table as TerminalTable
from rich.text import Text

from ..comparison.declared import Comparison, path_of
from ..comparison.report import TITLES, Shown, cell, difference, told_of, varying, write_report
from ..comparison.scripts import load_script, try_script
from ..comparison.scripts import write_report as write_script_report
from ..comparison.training import set_up, train_arm
from ..config import Params, UserError
from ..faults.fault import DoesNotApply
from ..provenance.records import format_value
from ..report.page import claim_directory
from ..report.terminal import STATUS_STYLE, console, progress
from .overrides import refuse_other_tokens


def train_arms(comparison: Comparison, params: list[Params]) -> list[Shown]:
    """Every arm, under every seed."""
    setups = [set_up(arm, one) for arm, one in zip(comparison.arms, params, strict=True)]
    shown = []
    with progress() as bar:
        steps = sum(max(setup.params.train.max_steps, 0) for setup in setups)
        task = bar.add_task("arms", total=steps * max(len(comparison.seeds), 1) or None)
        for arm, setup in zip(comparison.arms, setups, strict=True):
            bar.update(task, description=arm.name)
            under = [setup.under(seed) for seed in comparison.seeds] or [setup]
            try:
                with warnings.catch_warnings(action="ignore"):  # libraries warn of what was planted
                    runs = [train_arm(one, lambda: bar.advance(task)) for one in under]
            except DoesNotApply as reason:
                raise UserError(f"arm '{arm.name}' cannot be planted: {reason}") from None
            shown.append(Shown(arm, runs))
    return shown


def print_arms(comparison: Comparison, arms: list[Shown]) -> None:
    """The numbers in which arms differ, then what their curves and gate 3 say."""
    columns = varying(arms)
    table = TerminalTable(title=comparison.question, title_justify="left")
    table.add_column("arm", no_wrap=True)
    for name in columns:
        table.add_column(TITLES[name], justify="right", overflow="fold")
    for shown in arms:
        cells = (cell(name, shown.values(name)) for name in columns)
        table.add_row(shown.arm.name, *cells)
    console.print(table)
    if comparison.seeds:
        for shown in arms[1:]:
            numbers = (f"{TITLES[name]} {difference(name, shown, arms[0])}" for name in columns)
            console.print(
                f"{shown.arm.name} less {arms[0].arm.name}, seed by seed: {', '.join(numbers)}"
            )
    for attribute, title in (("signatures", "curves"), ("checks", "gradient probe")):
        told = {shown.arm.name: told_of(shown, arms[0], attribute) for shown in arms}
        if set(told.values()) == {"-"}:
            console.print(f"{title}: nothing in any arm")
            continue
        for name, what in told.items():
            console.print(f"{title}: {name}: {what}")


def run_scripts(comparison: Comparison, directory: Path) -> int:
    """Exit code: 0 done. Raises UserError for a script that cannot be loaded or trained."""
    scripts = [load_script(arm, path_of(comparison.name)) for arm in comparison.arms]
    claim_directory(directory, "results.json")
    with progress() as bar:
        pairs = list(zip(comparison.arms, scripts, strict=True))
        tried = [try_script(*pair) for pair in bar.track(pairs, description="scripts")]
    table = TerminalTable(title=comparison.question, title_justify="left")
    for column in ("script", "check", "score", "first cause"):
        table.add_column(column, no_wrap=column != "first cause")
    for one in tried:
        score = "-" if one.after is None else format_value(one.after)
        style = STATUS_STYLE[one.verdict]
        table.add_row(one.arm.name, Text(one.verdict, style), score, Text(one.cause))
    console.print(table)
    console.print(f"written: {write_script_report(directory, comparison, tried)}")
    return 0


def run(comparison: Comparison, params: list[Params], directory: Path) -> int:
    """Exit code: 0 done. Raises UserError for arms that cannot be trained here."""
    for one in params:
        refuse_other_tokens(one)
    claim_directory(directory, "results.json")
    arms = train_arms(comparison, params)
    page = write_report(directory, comparison, arms)
    print_arms(comparison, arms)
    console.print(f"written: {page}")
    return 0
