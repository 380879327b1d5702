"""Rows of a log with named columns become the curves of a run.

Names are compared in lower case with `_` for every other separator, so that `train/loss`,
`Train Loss` and `train_loss` are one. The names are those that transformers, Lightning, Keras,
torchtune, Megatron, nanoGPT and W&B give.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ..config.errors import UserError
from .run_log import RunLog, Series

Role = Literal[
    "loss",
    "validation_loss",
    "learning_rate",
    "grad_norm",
    "accuracy",
    "validation_accuracy",
    "step",
    "epoch",
    "max_steps",
]
NAMES: dict[Role, tuple[str, ...]] = {
    # the first that a log has is taken
    "loss": (
        "loss",
        "train_loss",
        "training_loss",
        "train_loss_step",
        "loss_train",
        "lm_loss",
        "batch_loss",
        "train_loss_epoch",
        "epoch_loss",
        "train_epoch_loss",
    ),
    "validation_loss": (
        "eval_loss",
        "val_loss",
        "validation_loss",
        "valid_loss",
        "val_loss_epoch",
        "loss_val",
        "loss_eval",
        "dev_loss",
        "evaluation_loss",
        "lm_loss_validation",
        "validation_epoch_loss",
        "val_epoch_loss",
        "test_loss",
    ),
    "learning_rate": (
        "learning_rate",
        "lr",
        "train_learning_rate",
        "train_lr",
        "optim_learning_rate_group0",
    ),
    "grad_norm": (
        "grad_norm",
        "train_grad_norm",
        "gradient_norm",
        "train_gradient_norm",
        "total_grad_norm",
        "total_norm",
        "optim_total_grad_norm",
        "gnorm",
    ),
    "accuracy": (
        "accuracy",
        "acc",
        "train_accuracy",
        "train_acc",
        "training_accuracy",
        "mean_token_accuracy",
        "train_mean_token_accuracy",
    ),
    "validation_accuracy": (
        "eval_accuracy",
        "val_accuracy",
        "validation_accuracy",
        "val_acc",
        "eval_acc",
        "valid_accuracy",
        "valid_acc",
        "eval_mean_token_accuracy",
        "test_accuracy",
    ),
    "step": (
        "global_step",
        "train_global_step",
        "trainer_global_step",
        "step",
        "current_steps",
        "iteration",
        "iter",
        "num_updates",
        "update",
        "steps",
        "batch",
        "train_step",
        "_step",
    ),
    "epoch": ("epoch", "train_epoch", "epochs"),
    "max_steps": ("total_steps", "max_steps"),
}
PATTERNS: dict[Role, str] = {
    # one column a validation set, as transformers names them; one a group of parameters
    "validation_loss": r"(eval|val|valid|validation|dev)_\w+_loss",
    "learning_rate": r"(lr|learning_rate)_\w+",
}
NULLS = ("null", "none", "na", "n/a")
"""Words for no number, by which many programs also write NaN."""
NOT_LOGGED = ("", "no log", "-")
"""transformers writes "No log" in a notebook's table, before the first loss."""
Cell = float | None
"""None: nothing stands there, or null."""


FEWEST_FALLING = 3
"""Steps that only fall are those of one run, newest first; two can be the first of two runs."""


@dataclass(frozen=True)
class Rows:
    """A log as its reader found it.

    rows: (place, name -> what stands there); a name that a row lacks is missing there.
    """

    form: str
    rows: Sequence[tuple[str, Mapping[str, Any]]]
    remarks: tuple[str, ...] = ()
    max_steps: float | None = None


@dataclass(frozen=True)
class Chosen:
    """The column of each role, several of validation losses; columns with numbers left unused."""

    single: Mapping[Role, str]
    validation: tuple[str, ...]
    unused: tuple[str, ...]


def normal(name: str) -> str:
    """The name as it is compared: W&B's export puts the run's name and ' - ' before it."""
    own = name.rpartition(" - ")[2]
    return re.sub(r"[^a-z0-9_]+", "_", own.strip().lower()).strip("/ ")


def choose(names: Iterable[str], mapped: Mapping[Role, str]) -> Chosen:
    """Which column is what. mapped: role -> column, as the user says.

    Raises UserError for a mapped column that is not there, and for two that could be the loss.
    """
    available = [name for name in names if not name.endswith(("__MIN", "__MAX"))]
    for role, name in mapped.items():
        if name not in available:
            raise UserError(
                f"--map {role}={name}: the log has no column '{name}'; it has "
                f"{', '.join(available[:20]) or 'none'}"
            )
    by_name: dict[str, list[str]] = {}
    for name in available:
        by_name.setdefault(normal(name), []).append(name)
    single: dict[Role, str] = dict(mapped)
    validation: list[str] = [mapped["validation_loss"]] if "validation_loss" in mapped else []
    for role, known in NAMES.items():
        if role in mapped:
            continue
        found = [name for name in known if name in by_name]
        if role == "validation_loss" or not found:
            pattern = PATTERNS.get(role)
            others = [name for name in by_name if pattern and re.fullmatch(pattern, name)]
            found = [*found[:1], *(name for name in others if name not in NAMES[role])]
        if not found:
            continue
        for name in found if role == "validation_loss" else found[:1]:
            if len(by_name[name]) > 1:
                raise UserError(
                    f"the log has {len(by_name[name])} columns for {role}: "
                    f"{', '.join(by_name[name][:5])}; say which by --map {role}=NAME"
                )
        if role == "validation_loss":
            validation = [by_name[name][0] for name in found]
        else:
            single[role] = by_name[found[0]][0]
    taken = {*single.values(), *validation}
    return Chosen(single, tuple(validation), tuple(name for name in available if name not in taken))


def number(cell: Any, place: str, name: str) -> Cell:
    """The number of a cell, NaN and infinities among them, also when they are written as text.

    Raises UserError for anything else.
    """
    if isinstance(cell, bool):
        cell = float(cell)
    if cell is None or isinstance(cell, float):
        return cell
    if isinstance(cell, int):
        try:
            return float(cell)
        except OverflowError:
            return math.inf if cell > 0 else -math.inf
    if isinstance(cell, str):
        text = cell.strip()
        if text.lower() in (*NULLS, *NOT_LOGGED):
            return None
        try:
            return float(text)
        except ValueError:
            pass
    raise UserError(
        f"{place}: '{name}' is {str(cell)[:40]!r}; it must be a number, with a decimal point"
    )


def is_nulled(cell: Any) -> bool:
    return isinstance(cell, str) and cell.strip().lower() in NULLS


def to_run_log(table: Rows, mapped: Mapping[Role, str]) -> RunLog:
    """The curves of the table's columns. Raises UserError when a cell is no number."""
    names = dict.fromkeys(name for _, row in table.rows for name in row)
    chosen = choose(names, mapped)
    columns = {
        name: [number(row.get(name), place, name) for place, row in table.rows]
        for name in (*chosen.single.values(), *chosen.validation)
    }
    if newest_first(columns.get(chosen.single.get("step", chosen.single.get("epoch", "")), [])):
        remark = "the lines run from the last step to the first, and were turned round"
        table = replace(table, rows=table.rows[::-1], remarks=(*table.remarks, remark))
        columns = {name: cells[::-1] for name, cells in columns.items()}
    remarks = [*table.remarks]
    if "loss" in chosen.single:
        remarks += restore_nan(table, chosen, columns)
    steps, x_label, step_remarks = steps_of(chosen, columns, len(table.rows))
    remarks += step_remarks
    first = first_row_of_last_run(steps)
    if first:
        remarks.append(f"{first} lines of earlier runs stand above the last run, and were left out")

    def series(name: str | None) -> Series | None:
        if name is None:
            return None
        kept = [
            (step, value)
            for step, value in zip(steps[first:], columns[name][first:], strict=True)
            if value is not None and not math.isnan(step)
        ]
        if not kept:
            return None
        pairs = np.array(kept, np.float64)
        return Series(name, pairs[:, 0], pairs[:, 1])

    def merged(role: Role) -> Series | None:
        found = series(chosen.single.get(role))
        return found.last_of_each_step() if found else None

    logged = series(chosen.single.get("loss"))
    if logged and (again := len(logged) - len(logged.last_of_each_step())):
        remarks.append(f"{again} losses were logged again for the same step; the last one counts")
    lost = sum(math.isnan(step) for step in steps[first:])
    if lost:
        remarks.append(f"{lost} lines have no {x_label}, and were left out")
    planned = [cell for cell in columns.get(chosen.single.get("max_steps", ""), []) if cell]
    validation = (series(name) for name in chosen.validation)
    return RunLog(
        form=table.form,
        logged_loss=logged,
        validation=tuple(one.last_of_each_step() for one in validation if one),
        learning_rate=merged("learning_rate"),
        grad_norm=merged("grad_norm"),
        accuracy=merged("accuracy"),
        validation_accuracy=merged("validation_accuracy"),
        x_label=x_label,
        max_steps=table.max_steps or (planned[-1] if planned else None),
        remarks=tuple(remarks),
    )


def newest_first(steps: Sequence[Cell]) -> bool:
    """Do the steps only fall, as dashboards list them?"""
    known = [step for step in steps if step is not None and not math.isnan(step)]
    return len(set(known)) >= FEWEST_FALLING and all(a >= b for a, b in pairwise(known))


def is_nan(cell: Cell) -> bool:
    return cell is not None and math.isnan(cell)


def restore_nan(table: Rows, chosen: Chosen, columns: dict[str, list[Cell]]) -> list[str]:
    """Tell a loss that was NaN from one that was not logged, where a log has one word for both.

    JSON's null, and NaN in a file that pandas wrote, can be either. On a line of training (it has a
    rate or a norm, or no other number at all) null is NaN. NaN beside a validation loss is a gap
    when no line of the file has both losses.
    """
    name = chosen.single["loss"]
    loss = columns[name]
    training = [
        columns[chosen.single[role]]
        for role in ("learning_rate", "grad_norm")
        if role in chosen.single
    ]
    validation = [columns[column] for column in chosen.validation]
    places = {chosen.single.get(role) for role in ("step", "epoch", "max_steps")}
    others = [column for column in columns if column != name and column not in places]

    def has(cells: Sequence[Sequence[Cell]], row: int) -> bool:
        return any(one[row] is not None and math.isfinite(one[row] or 0) for one in cells)

    interleaved = bool(validation) and not any(
        cell is not None and math.isfinite(cell) and has(validation, row)
        for row, cell in enumerate(loss)
    )
    nulls = 0
    for row, (_, cells) in enumerate(table.rows):
        cell = cells.get(name, "")
        if (cell is None or is_nulled(cell)) and (
            has(training, row) or not any(columns[column][row] is not None for column in others)
        ):
            loss[row] = math.nan
            nulls += 1
        elif is_nan(loss[row]) and interleaved and has(validation, row) and not has(training, row):
            loss[row] = None
    return [f"{nulls} losses are null, and were read as NaN"] if nulls else []


def steps_of(
    chosen: Chosen, columns: Mapping[str, Sequence[Cell]], rows: int
) -> tuple[list[float], str, list[str]]:
    """The step of each row (NaN: it has none), what it counts, and what was put right."""
    for role in ("step", "epoch"):
        if role not in chosen.single:
            continue
        cells = columns[chosen.single[role]]
        steps = [math.nan if cell is None else float(cell) for cell in cells]
        if role == "step" and "epoch" in chosen.single:
            return (*count_through_epochs(steps, columns[chosen.single["epoch"]]),)
        remarks = [] if role == "step" else ["the log has no steps: epochs are taken for them"]
        return steps, role, remarks
    remark = "the log has no steps: its lines are taken for them"
    return [float(row) for row in range(1, rows + 1)], "line", [remark]


def count_through_epochs(
    steps: list[float], epochs: Sequence[Cell]
) -> tuple[list[float], str, list[str]]:
    """Steps that begin anew in each epoch, counted on from one epoch to the next."""
    offset, through, before, epoch_before = 0.0, [], -math.inf, -math.inf
    for step, epoch in zip(steps, epochs, strict=True):
        if step < before and epoch is not None and epoch > epoch_before:
            offset += before + 1
        if not math.isnan(step):
            before = step
            epoch_before = epoch if epoch is not None else epoch_before
        through.append(step + offset)
    if not offset:
        return steps, "step", []
    return through, "step", ["steps begin anew in each epoch, and were counted on"]


def first_row_of_last_run(steps: Sequence[float]) -> int:
    """Where the last run of a file begins to which several runs were appended.

    A run begins where the step falls back to the first step of the file, or below it.
    """
    known = [(row, step) for row, step in enumerate(steps) if not math.isnan(step)]
    begin = known[0][0] if known else 0
    for (_, before), (row, step) in pairwise(known):
        if step < before and step <= known[0][1]:
            begin = row
    return begin
