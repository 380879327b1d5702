"""How much of a result is the seed? The committed run again under other seeds.

    holdshort seeds 1 2 3 [--report DIR]

Each seed is a DVC experiment of its own (`seed-1`, ...), through every gate, beside the work tree,
which stays as it is; params.yaml is taken as committed, but for run.seed. An experiment of this
commit that is there already is not run again. DIR gets seeds.csv, a page, and what each run said.
Exit code: 0 every seed trained, 1 one was refused, 2 bad input.
"""

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from rich.table import Table as TerminalTable

from ..config.errors import UserError
from ..provenance.git import lineage, read_git, refuse_elsewhere
from ..provenance.records import format_value
from ..report.page import Section, Table, claim_directory, write_page
from ..report.spread import deviation_of
from ..report.terminal import console, progress

METRICS = "metrics/full_train.json"
COLUMNS = ("metric", "mean", "sd", "lowest", "highest")

Metrics = dict[str, float]


def refuse(seeds: Sequence[int]) -> None:
    """Raises UserError for seeds that say nothing, and where none would be of a commit."""
    if len(set(seeds)) < 2:
        raise UserError("one seed has no deviation; give at least two different ones")
    if repeated := sorted({seed for seed in seeds if list(seeds).count(seed) > 1}):
        raise UserError(
            f"seed {repeated[0]} is given twice; a seed says nothing new the second time"
        )
    if min(seeds) < 0:
        raise UserError(f"seed {min(seeds)} is below 0; a seed is a whole number from 0")
    refuse_elsewhere()
    state = lineage()
    if state["commit"] is None:
        raise UserError("seeds are compared over one commit, and there is none; commit first")
    if state["dirty"]:
        raise UserError(
            f"seeds are compared over one commit, but {', '.join(state['dirty'][:3])} "
            f"{'is' if len(state['dirty']) == 1 else 'are'} not committed; commit, or take it back"
        )


def find_metrics(name: str) -> Metrics | None:
    """What the experiment `name` of this commit measured, or None where there is none."""
    head = (read_git("rev-parse", "HEAD") or "").strip()
    recorded = read_git("show", f"refs/exps/{head[:2]}/{head[2:]}/{name}:{METRICS}")
    if recorded is None:
        return None
    metrics: Metrics = json.loads(recorded)["full_train"]
    return metrics


def run_seed(seed: int, log: Path) -> Metrics | None:
    """What a run under `seed` measured, or None where it was refused; `log` tells why."""
    name = f"seed-{seed}"
    if (known := find_metrics(name)) is not None:
        return known
    options = ("--temp", "--no-hydra", "--name", name, "--set-param", f"run.seed={seed}")
    command = [sys.executable, "-m", "dvc", "exp", "run", *options]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    log.write_text(done.stdout, encoding="utf-8")
    return find_metrics(name) if done.returncode == 0 else None


def spread(measured: Mapping[int, Metrics]) -> pd.DataFrame:
    """Per metric: mean, standard deviation over seeds (n - 1; empty for one seed) and extremes."""
    rows = []
    for name in next(iter(measured.values()), {}):
        values = [float(one[name]) for one in measured.values()]
        extremes = float(np.min(values)), float(np.max(values))  # NaN where one is
        rows.append((name, fmean(values), deviation_of(values), *extremes, *values))
    return pd.DataFrame(rows, columns=[*COLUMNS, *(f"seed {seed}" for seed in measured)])


def print_spread(table: pd.DataFrame) -> None:
    shown = TerminalTable(title="over seeds", title_justify="left")
    for column in COLUMNS:
        shown.add_column(column, no_wrap=True)
    varies = table["lowest"] != table["highest"]  # also where one is NaN
    for row in table.loc[varies, list(COLUMNS)].itertuples(index=False):
        shown.add_row(*map(format_value, row))
    console.print(shown)
    console.print(f"the same under every seed: {', '.join(table.loc[~varies, 'metric']) or '-'}")


def _shown(cell: str | float) -> str | float:
    """Counts as whole numbers, and nothing for what one seed cannot tell."""
    if isinstance(cell, str):
        return cell
    return "" if math.isnan(cell) else int(cell) if cell.is_integer() else cell


def write_report(directory: Path, measured: Mapping[int, Metrics], asked: int) -> pd.DataFrame:
    """The spread that is known so far, which an interruption leaves there."""
    table = spread(measured)
    table.to_csv(directory / "seeds.csv", index=False)
    text = f"{len(measured)} of {asked} seeds trained. sd: over seeds, with n - 1."
    rows = [[_shown(cell) for cell in row] for row in table.itertuples(index=False)]
    section = Section("Spread", text, table=Table(list(table.columns), rows))
    write_page("seeds", __doc__, sections=[section], directory=directory)
    return table


def run(seeds: Sequence[int], directory: Path) -> int:
    """Exit code: 0 every seed trained, 1 not so. Raises UserError without a commit to run."""
    refuse(seeds)
    claim_directory(directory, "seed*")
    measured, refused = dict[int, Metrics](), dict[int, Path]()
    with progress() as bar:
        for seed in bar.track(seeds, description="seeds"):
            log = directory / f"seed-{seed}.log"
            found = run_seed(seed, log)
            if found is None:
                refused[seed] = log
                console.print(f"seed {seed} did not train; {log} says why")
            else:
                measured[seed] = found
                console.print(f"seed {seed}: validation loss {found['validation_loss']:.4g}")
            table = write_report(directory, measured, len(seeds))
    if measured:
        print_spread(table)
    console.print(f"written: {directory / 'index.html'}")
    return int(bool(refused))
