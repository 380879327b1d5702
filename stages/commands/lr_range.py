"""Does the learning rate fit this run? The rate grows step by step, and the loss is watched.

Reads params.yaml, or composes conf/ with overrides, and artifacts/tokens/. Trains a few steps of
the run, from its start, at rates from far too low to far too high, and keeps nothing of it. Writes
reports/lr_range/ (sweep.csv and a page) and nothing else.

    holdshort lr-range [OVERRIDE ...] [--steps N] [--report DIR]
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ..config import Params, UserError
from ..probes.rate_range import Finding, Sweep, read_sweep, sweep_rates
from ..report.page import Section, Table, claim_directory, write_page
from ..report.plots import Chart, draw
from ..report.terminal import console, progress
from .overrides import name_run, refuse_other_tokens

FEWEST_STEPS = 20
"""Over eight orders of magnitude, so that two steps and a half fall on each."""


def describe(finding: Finding, rate: float) -> list[tuple[str, str]]:
    """(what, value) for terminal and page."""

    def tell(value: float | None, otherwise: str) -> str:
        return otherwise if value is None else f"{value:.3g}"

    return [
        ("the loss falls fastest at", tell(finding.steepest, "no rate")),
        ("suggested peak rate", tell(finding.suggestion, "none: the loss never fell")),
        ("the loss rises again from", tell(finding.ceiling, "no rate that was tried")),
        ("train.learning_rate", f"{rate:.3g}, {finding.place(rate) or 'in between'}"),
    ]


def write_report(
    directory: Path, sweep: Sweep, finding: Finding, rate: float, overrides: Sequence[str]
) -> None:
    table = pd.DataFrame(
        {"learning_rate": sweep.rates, "loss": sweep.losses, "smoothed": sweep.smoothed}
    )
    table.to_csv(directory / "sweep.csv", index_label="step", lineterminator="\n")
    marks = {rate: "train.learning_rate"}
    if finding.suggestion is not None:
        marks[finding.suggestion] = "suggested"
    chart = Chart(
        "Loss while the rate grows",
        sweep.rates,
        {"loss": sweep.losses, "smoothed": sweep.smoothed},
        x_label="learning rate",
        y_label="nats per token",
        log_x=True,
        faint=("loss",),
        marks=marks,
    )
    sections = [
        Section(
            "Rates",
            f"Of {name_run(overrides)}.",
            charts=[draw(chart)],
            table=Table(("", "rate"), describe(finding, rate)),
        )
    ]
    write_page("lr_range", __doc__, sections=sections, directory=directory)


def run(params: Params, overrides: Sequence[str], steps: int, directory: Path) -> int:
    """Exit code: 0 the rate fits, 1 it does not, or the loss never falls.

    Raises UserError without tokens, or for too few steps to see a loss fall.
    """
    if steps < FEWEST_STEPS:
        raise UserError(
            f"--steps {steps} are too few to see the loss fall; take {FEWEST_STEPS} or more"
        )
    refuse_other_tokens(params)
    claim_directory(directory, "sweep.csv")
    with progress() as bar:
        task = bar.add_task("learning rates", total=steps)
        sweep = sweep_rates(params, steps, lambda: bar.advance(task))
    finding, rate = read_sweep(sweep), params.train.learning_rate
    for what, value in describe(finding, rate):
        console.print(f"{what}: {value}")
    write_report(directory, sweep, finding, rate, overrides)
    console.print(f"written: {directory / 'index.html'}")
    return int(finding.suggestion is None or finding.place(rate) is not None)
