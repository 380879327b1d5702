"""The curves of a run as charts: logarithmic axes, the smoothed loss over the logged one."""

from collections.abc import Mapping

import numpy as np

from ..report.plots import Chart
from .diagnosis import Diagnosis
from .run_log import Floats, RunLog, Series
from .signature import Known
from .trends import ema

SMOOTHED_OVER = 50
"""The half-life of the average is this part of the run, and two values at least."""
DRAWN = 1500
"""Values of a line: of more, the largest of each bin is drawn, so that no spike is lost."""
MARKS = 6


def charts_of(log: RunLog, diagnosis: Diagnosis, known: Known) -> dict[str, Chart]:
    """Name of a file -> its chart, for each curve of the log."""
    charts: dict[str, Chart] = {}
    if log.loss is not None:
        charts["loss"] = loss_chart(log, log.loss, "Loss", marks_of(diagnosis))
        title = "Loss, both axes logarithmic"
        charts["loss_log_log"] = loss_chart(log, log.loss, title, {}, log_x=True)
    if log.learning_rate is not None:
        charts["learning_rate"] = single_chart(log, log.learning_rate, "Learning rate")
    if log.grad_norm is not None:
        limit = known.max_grad_norm
        limits = {} if limit is None else {"limit of the clipping": limit}
        charts["grad_norm"] = single_chart(
            log, log.grad_norm, "Gradient norm", log_y=True, limits=limits
        )
    if log.accuracy is not None:
        charts["accuracy"] = single_chart(log, log.accuracy, "Accuracy")
    if log.validation_accuracy is not None:
        title = "Validation accuracy"
        charts["validation_accuracy"] = single_chart(log, log.validation_accuracy, title)
    return charts


def loss_chart(
    log: RunLog, loss: Series, title: str, marks: Mapping[float, str], log_x: bool = False
) -> Chart:
    """The logged loss, its moving average and validation losses.

    log_x: steps are counted from 1, for 0 has no logarithm.
    """
    half_life = max(len(loss) / SMOOTHED_OVER, 2.0)
    first = 1 - min(float(loss.steps[0]), 1.0) if log_x else 0.0
    steps, logged, smoothed = thinned(loss.steps, loss.values, ema(loss.values, half_life))
    average = f"average (half-life {half_life:.0f})"
    return Chart(
        title,
        (steps + first).tolist(),
        {loss.name: logged.tolist(), average: smoothed.tolist()},
        x_label=f"{log.x_label} + {first:g}" if first else log.x_label,
        log_y=True,
        log_x=log_x,
        faint=(loss.name,),
        points={
            one.name: ((one.steps + first).tolist(), one.values.tolist()) for one in log.validation
        },
        marks=marks,
    )


def single_chart(
    log: RunLog,
    series: Series,
    title: str,
    *,
    log_y: bool = False,
    limits: dict[str, float] | None = None,
) -> Chart:
    steps, values, _ = thinned(series.steps, series.values, series.values)
    line = {series.name: values.tolist()}
    return Chart(title, steps.tolist(), line, log.x_label, log_y=log_y, limits=limits or {})


def thinned(steps: Floats, values: Floats, smooth: Floats) -> tuple[Floats, Floats, Floats]:
    """Steps, values and averages of at most DRAWN bins: the largest value, the last average."""
    if len(steps) <= DRAWN:
        return steps, values, smooth
    starts = np.linspace(0, len(steps), DRAWN, endpoint=False).astype(int)
    largest = np.fmax.reduceat(values, starts)
    ends = np.append(starts[1:], len(steps)) - 1
    return steps[starts], largest, smooth[ends]


def marks_of(diagnosis: Diagnosis) -> dict[float, str]:
    """Step -> what was found there; the first of each signature, and some in all."""
    marks: dict[float, str] = {}
    for signature in diagnosis.faults:
        for step in signature.steps[:1]:
            marks.setdefault(step, signature.id)
    return dict(sorted(marks.items())[:MARKS])
