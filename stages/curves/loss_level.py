"""Does the loss fall at all, and far enough?"""

from collections.abc import Iterator

import numpy as np

from .run_log import Floats, RunLog
from .signature import Finding, Known, NotJudged, Signature, show
from .trends import FEWEST, Change, Shape, change_of

NOISY = 0.3
FLAT = 0.05
"""trainproof calls a run slow whose level falls by less than 5 %."""
CONSTANT = 1e-3
"""trainproof calls a run flat whose standard deviation is below 0.1 % of its mean."""
NEAR_PRIOR = 0.02
HIGH = 0.9
"""Of the prior: less can be all that a hard task allows, and is remarked from LOW_PLATEAU on."""
LOW_PLATEAU = 0.7
CLASSES_OF_SOFTMAX = 10
"""From so many on, the floor of a softmax in front of the cross-entropy is no common loss."""


def judge_noise(shape: Shape) -> Iterator[Finding]:
    """Small batches scatter; so does a rate that is too high, and no curve tells which it is."""
    if shape.noise > NOISY:
        evidence = f"from step to step, the loss differs by {100 * shape.noise:.0f} % of its level"
        yield Signature("noisy", "the loss is noisy", (evidence,), is_fault=False)


def judge_level(shape: Shape, known: Known, begins: bool, log: RunLog) -> Iterator[Finding]:
    """A loss that does not fall: from the start, at the prior, or high above what was asked."""
    values = shape.values
    tail = values[-max(len(values) // 5, 3) :]
    level, prior = float(np.median(tail)), known.prior_loss
    change = change_of(values)
    at_prior = prior is not None and abs(level / prior - 1) < NEAR_PRIOR
    if at_prior and prior is not None:
        evidence = f"the last {len(tail)} losses are {show(level)} at the median; the prior is"
        title = "the loss is stuck at the prior"
        yield Signature("at_prior", title, (f"{evidence} {show(prior)} nats",))
    if not begins:
        yield NotJudged("flat from the start", "the log does not hold the start of the run")
    elif is_flat(values, change) and not validation_falls(log):
        evidence = (
            f"from the first fifth ({show(values[: len(values) // 5].mean())}) to the last "
            f"({show(tail.mean())}) the loss falls by {100 * change.fall:.2f} % "
            f"(standard error {100 * change.error:.2f} %)"
        )
        yield Signature("flat", "the loss is flat from the start", (evidence,))
    elif change.most >= FLAT and change.least < 0:
        reason = (
            f"noise of {100 * change.error:.1f} % hides a change of {100 * change.fall:.1f} %; log "
            "more steps, or average over them"
        )
        yield NotJudged("flat from the start", reason)
    else:
        yield from judge_plateau(shape, level, known, at_prior)


def is_flat(values: Floats, change: Change) -> bool:
    if values.std() < CONSTANT * values.mean():
        return True
    return -FLAT < change.least < 0 and change.most < FLAT


def validation_falls(log: RunLog) -> bool:
    return any(
        len(one.finite()) > 1 and one.finite().values[-1] < (1 - FLAT) * one.finite().values[0]
        for one in log.validation
    )


def judge_plateau(shape: Shape, level: float, known: Known, at_prior: bool) -> Iterator[Finding]:
    """Fallen a little, and flat since: for the second half when the prior tells what is high."""
    half, rest = shape.values[len(shape) // 2 :], shape.values[len(shape) // 5 :]
    prior = known.prior_loss
    if len(half) < FEWEST or at_prior:
        return
    if prior is None:
        if level > LOW_PLATEAU * shape.start and is_flat(rest, change_of(rest)):
            evidence = (
                f"it fell from {show(shape.start)} to {show(float(np.median(rest[:5])))} in the "
                f"first fifth and is {show(level)} at the end; --classes or --prior tells whether "
                "that is high"
            )
            title = "the loss stops to fall early"
            yield Signature("early_plateau", title, (evidence,), is_fault=False)
        return
    twice = is_floor_of_softmax(level, known.classes)
    if (LOW_PLATEAU * prior < level < prior or twice) and is_flat(half, change_of(half)):
        evidence = (
            f"the second half of the run is flat at {show(level)}, which is "
            f"{100 * level / prior:.0f} % of the prior {show(prior)}"
        )
        more = "; it is the least that a softmax in front of the cross-entropy allows"
        evidence += more if twice else ""
        is_fault = twice or level > HIGH * prior
        yield Signature("plateau_high", "the loss stays high", (evidence,), is_fault=is_fault)


def is_floor_of_softmax(level: float, classes: int | None) -> bool:
    """Is it the loss of a right answer whose probability, taken for a logit, is 1?"""
    if classes is None or classes < CLASSES_OF_SOFTMAX:
        return False
    return bool(abs(level / (np.log(np.e + classes - 1) - 1) - 1) < NEAR_PRIOR)
