"""What does the curve of the training loss show?

Rules keep the names that the field gives them; their limits come from the sources named at each,
and were set so that healthy runs of many kinds (tests/curves/healthy_runs.py) show none.
"""

from collections.abc import Iterator

import numpy as np

from .loss_level import judge_level, judge_noise
from .loss_rises import judge_rises, rises_with_rate
from .loss_values import below_zero, judge_not_finite, judge_repeats, judge_zeros
from .run_log import Floats, RunLog
from .signature import Finding, Known, NotJudged
from .trends import FEWEST, shape_of

NO_LOSS = "the log has no training loss"


def judge_loss(log: RunLog, known: Known) -> Iterator[Finding]:
    """All that the training loss shows."""
    if log.loss is None or log.logged_loss is None:
        yield NotJudged("loss", f"{NO_LOSS}; say which column it is by --map loss=NAME")
        return
    finite = log.loss.finite()
    yield from judge_not_finite(log.loss)
    yield from judge_zeros(log)
    yield from judge_repeats(log.logged_loss)
    if len(finite) < FEWEST:
        reason = f"{len(finite)} finite losses were logged, {FEWEST} are needed"
        yield NotJudged("shape of the loss", f"{reason}; log every step")
        return
    if (finite.values == 0).mean() > 0.5:
        yield NotJudged("shape of the loss", "most losses are exactly 0")
        return
    if finite.values.min() < 0:
        yield below_zero(finite, known)
        yield NotJudged("rises and level of the loss", "they are judged of losses above 0")
        return
    shape = shape_of(finite.steps, finite.values)
    deliberate = rises_with_rate(log.learning_rate, shape.steps)
    begins = is_begin(finite.steps)
    yield from judge_noise(shape)
    yield from judge_rises(shape, deliberate)
    yield from judge_level(shape, known, begins, log)


def is_begin(steps: Floats) -> bool:
    """Does the log begin where training began? A log of a resumed run does not."""
    return bool(steps[0] <= 2 * np.median(np.diff(steps)) + 1)
