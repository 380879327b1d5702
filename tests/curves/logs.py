"""Logs from columns, without a file."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stages.curves.columns import Rows, to_run_log
from stages.curves.diagnosis import Diagnosis, diagnose
from stages.curves.run_log import RunLog
from stages.curves.signature import Known


def log_of(columns: Mapping[str, Sequence[Any]], max_steps: float | None = None) -> RunLog:
    """A cell of a validation that is None or NaN was not logged; a loss of NaN was."""
    rows = []
    for number, cells in enumerate(zip(*columns.values(), strict=True)):
        row = {
            name: cell
            for name, cell in zip(columns, cells, strict=True)
            if cell is not None and not (name.endswith("val_loss") and math.isnan(cell))
        }
        rows.append((f"line {number}", row))
    return to_run_log(Rows("columns", rows, max_steps=max_steps), {})


def diagnosis_of(
    columns: Mapping[str, Sequence[Any]], known: Known | None = None, max_steps: float | None = None
) -> Diagnosis:
    return diagnose(log_of(columns, max_steps), known or Known())


def faults_of(
    columns: Mapping[str, Sequence[Any]], known: Known | None = None, max_steps: float | None = None
) -> list[str]:
    return [one.id for one in diagnosis_of(columns, known, max_steps).faults]
