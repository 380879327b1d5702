"""Arms side by side: on the terminal, as results.json, and as a page that opens offline."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ..provenance.records import finite, write_json
from ..report.page import Link, Section, Table, write_page
from ..report.plots import Chart, draw
from ..report.spread import deviation_of
from .declared import Arm, Comparison
from .training import AROUND, AT_THE_END, TrainedArm

TITLES = {
    "last_loss": "last loss",
    "validation_loss": "val loss",
    "highest_rise": "rise",
    "not_finite": "not finite",
    "skipped": "skipped",
    "zero_gradient": "zero grad",
    "unmoved": "lost",
}
COUNTS = ("not_finite", "skipped")
SHARES = ("zero_gradient", "unmoved")
LEGEND = (
    f"Last loss: mean of the last {AT_THE_END} steps, as they report it. Val loss: nats per token "
    "over the held-out rows, at the end. Rise: the largest of any loss over the median of the "
    f"{AROUND} before it. Not finite: steps whose loss or gradient is NaN or infinite. Skipped: "
    "steps whose update the loss scaler left out. Zero grad: elements whose gradient is exactly 0, "
    "of all in all updates. Lost: of the others, those that the update left as they were, to the "
    "bit."
)
CAUSES_SHOWN = 2

Numbers = Mapping[str, float | None]


@dataclass(frozen=True)
class Shown:
    """An arm and its runs, one for each seed."""

    arm: Arm
    runs: Sequence[TrainedArm]

    def values(self, name: str) -> list[float]:
        """A number over the seeds; NaN where it could not be measured."""
        found = (run.numbers[name] for run in self.runs)
        return [math.nan if value is None else float(value) for value in found]

    def counted(self, lists: Sequence[Sequence[str]]) -> dict[str, int]:
        """Name -> of how many runs."""
        return dict(Counter(name for one in lists for name in one))

    @property
    def signatures(self) -> dict[str, int]:
        return self.counted([run.signatures for run in self.runs])

    @property
    def checks(self) -> dict[str, int]:
        """Checks of the gradient probe that do not pass."""
        return self.counted([run.probe.checks for run in self.runs])


def cell(name: str, values: Sequence[float]) -> str:
    """A number, or mean and deviation (n - 1) over seeds."""
    if all(map(math.isnan, values)):
        return "nan" if name.endswith("loss") else "-"
    mean, deviation = fmean(values), deviation_of(values) if len(values) > 1 else None
    if name in SHARES:
        return f"{100 * mean:.1f}{'' if deviation is None else f' ± {100 * deviation:.1f}'} %"
    if deviation is None:
        return f"{mean:.0f}" if name in COUNTS else f"{mean:.4g}"
    return f"{mean:.4g} ± {deviation:.2g}"


def against(reference: Mapping[str, int], found: Mapping[str, int], of: int) -> str:
    """What an arm shows beside the first: what is gone, what is still there, what is new."""

    def names(chosen: Sequence[str]) -> str:
        counts = {**reference, **found}
        return ", ".join(f"{n} ({counts[n]} of {of})" if of > 1 else n for n in chosen)

    parts = (
        ("without", [name for name in reference if name not in found]),
        ("still", [name for name in found if name in reference]),
        ("new:", [name for name in found if name not in reference]),
    )
    told = [f"{word} {names(chosen)}" for word, chosen in parts if chosen]
    return "; ".join(told) or "-"


def told_of(shown: Shown, first: Shown, attribute: str) -> str:
    """Signatures or checks of an arm: of the first as they are, of the others against it."""
    found: dict[str, int] = getattr(shown, attribute)
    of = len(shown.runs)
    if shown is first:
        return ", ".join(f"{n} ({k} of {of})" if of > 1 else n for n, k in found.items()) or "-"
    return against(getattr(first, attribute), found, of)


def varying(arms: Sequence[Shown]) -> list[str]:
    """The numbers in which arms differ as they are shown."""
    return [name for name in TITLES if len({cell(name, shown.values(name)) for shown in arms}) > 1]


def difference(name: str, shown: Shown, first: Shown) -> str:
    """Mean and deviation over seeds of the arm's number less that of the first, seed by seed."""
    pairs = zip(shown.values(name), first.values(name), strict=True)
    return cell(name, [one - other for one, other in pairs])


def compose_command(arm: Arm) -> str:
    """What makes the arm the run of params.yaml, without planted faults."""
    last = {one.partition("=")[0]: one for one in arm.overrides}
    return " ".join(["holdshort compose", *last.values()])


def record_of(comparison: Comparison, arms: Sequence[Shown]) -> Any:
    """results.json: all that was measured, the same bytes for the same runs."""

    def run_of(run: TrainedArm) -> dict[str, Any]:
        return {
            "seed": run.seed,
            **{name: finite(value) for name, value in run.numbers.items()},
            "curves": run.signatures,
            "gradient_probe": {"checks": list(run.probe.checks), "causes": list(run.probe.causes)},
            "steps": [{name: finite(value) for name, value in line.items()} for line in run.lines],
        }

    return {
        "comparison": comparison.name,
        "question": comparison.question,
        "arms": [
            {
                "name": shown.arm.name,
                "overrides": list(shown.arm.overrides),
                "plant": list(shown.arm.plant),
                "runs": [run_of(run) for run in shown.runs],
            }
            for shown in arms
        ],
    }


def write_report(directory: Path, comparison: Comparison, arms: Sequence[Shown]) -> Path:
    """Write results.json and the page, and return the page."""
    write_json(directory / "results.json", record_of(comparison, arms))
    sections = [side_by_side(comparison, arms), Section("Curves", charts=charts_of(arms))]
    if comparison.seeds:
        sections.insert(1, differences(arms))
    return write_page(
        f"compare {comparison.name}",
        comparison.question,
        sections=[*sections, what_they_say(arms), how_to_train(arms)],
        directory=directory,
    )


def side_by_side(comparison: Comparison, arms: Sequence[Shown]) -> Section:
    columns = varying(arms)
    same = [f"{TITLES[name]} {cell(name, arms[0].values(name))}" for name in TITLES]
    same = [one for one, name in zip(same, TITLES, strict=True) if name not in columns]
    text = f"{len(arms[0].runs[0].lines)} steps of the training step that full_train takes. "
    if comparison.shared:
        text += f"Every arm starts from {', '.join(comparison.shared)}. "
    if comparison.seeds:
        seeds = ", ".join(map(str, comparison.seeds))
        text += f"Mean and standard deviation over seeds {seeds}. "
    text += LEGEND + (f" The same in every arm: {', '.join(same)}." if same else "")
    rows = [
        [
            shown.arm.name,
            [Link(one) for one in shown.arm.changes] or "-",
            *(cell(name, shown.values(name)) for name in columns),
            told_of(shown, arms[0], "signatures"),
        ]
        for shown in arms
    ]
    header = ["arm", "changes", *(TITLES[name] for name in columns), "its curves show"]
    return Section("Side by side", text, table=Table(header, rows))


def differences(arms: Sequence[Shown]) -> Section:
    """Each arm less the first, under the same seed."""
    columns = varying(arms)
    rows = [
        [shown.arm.name, *(difference(name, shown, arms[0]) for name in columns)]
        for shown in arms[1:]
    ]
    text = (
        f"Each arm less {arms[0].arm.name} under the same seed: mean and deviation over seeds. A "
        "mean that is not well beyond its deviation is no result: another seed makes it too."
    )
    return Section(
        "Differences", text, table=Table(["arm", *(TITLES[name] for name in columns)], rows)
    )


def charts_of(arms: Sequence[Shown]) -> list[str]:
    """Loss, gradient norm and rate over the steps, of all arms in one chart; means over seeds."""

    def chart(title: str, column: str, unit: str, log_y: bool) -> str:
        lines = {
            shown.arm.name: [
                fmean(values)
                for values in zip(
                    *([line[column] for line in run.lines] for run in shown.runs), strict=False
                )
            ]
            for shown in arms
        }
        longest = max(map(len, lines.values()))
        padded = {n: [*line, *[math.nan] * (longest - len(line))] for n, line in lines.items()}
        return draw(Chart(title, list(range(longest)), padded, y_label=unit, log_y=log_y))

    return [
        chart("Loss", "loss", "as the step reports it", True),
        chart("Gradient norm before clipping", "grad_norm", "global L2", True),
        chart("Learning rate", "learning_rate", "", False),
    ]


def what_they_say(arms: Sequence[Shown]) -> Section:
    """Evidence and causes of the curves and of the gradient probe, arm by arm."""
    rows = []
    for shown in arms:
        run = shown.runs[0]
        curves = [
            Link(f"{one.id}: {line}") for one in run.diagnosis.faults for line in one.evidence[:1]
        ]
        told = () if shown is arms[0] else arms[0].runs[0].probe.causes
        causes = [cause for cause in run.probe.causes if cause not in told]
        probe = [Link(cause) for cause in causes[:CAUSES_SHOWN]]
        rows.append(
            (shown.arm.name, curves or "-", told_of(shown, arms[0], "checks"), probe or "-")
        )
    text = (
        "As `holdshort diagnose` reads the curves, and as gate 3 judges the first steps: checks "
        "that do not pass, and causes, the likeliest first, but for those of the first arm. Of "
        "several seeds, texts are of the first."
    )
    header = ("arm", "curves", "checks of the gradient probe", "its causes")
    return Section("What the probes say", text, table=Table(header, rows))


def how_to_train(arms: Sequence[Shown]) -> Section:
    rows = [(s.arm.name, compose_command(s.arm), ", ".join(s.arm.plant) or "-") for s in arms]
    text = "Makes an arm the run that every gate judges; planted faults are left out of it."
    return Section("As a run", text, table=Table(("arm", "command", "planted faults"), rows))
