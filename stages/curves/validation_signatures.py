"""What do validation losses and accuracies show beside the training loss?"""

from collections.abc import Iterator

import numpy as np

from .run_log import RunLog, Series
from .signature import Finding, NotJudged, Signature, at, show
from .trends import FEWEST_FOR_NOISE, noise_of, running_median

FEWEST = 3
"""Evaluations: two make no trend."""
ROSE = 1.1
"""SageMaker's Overfit compares with 0.1 of the loss; here, of the lowest validation loss."""
FELL = 0.95
NOISE_SIGMA = 4.0
LATER = 2
"""Evaluations behind the lowest that must all lie high: one can be chance."""
BELOW = 0.5
"""Of the training loss: dropout, and means over an epoch that began worse, explain less."""
SLIGHTLY_BELOW = 0.95
ACCURACY_FLAT = 0.01


def judge_validation(log: RunLog) -> Iterator[Finding]:
    """All that the validation shows."""
    if not log.validation:
        yield NotJudged("overfitting", "the log has no validation loss")
    for series in log.validation:
        yield from judge_one(series, log)
    if log.validation and log.validation_accuracy:
        yield from judge_accuracy(log.validation[0], log.validation_accuracy)
    elif log.loss and not log.validation:
        yield from judge_accuracy(log.loss, log.accuracy)


def judge_one(series: Series, log: RunLog) -> Iterator[Finding]:
    finite = series.finite()
    if len(finite) < len(series):
        wrong = series.steps[~series.is_finite]
        evidence = f"{series.name} is not finite at {len(wrong)} of {len(series)} evaluations, "
        yield Signature(
            "validation_not_finite",
            "the validation loss is NaN or infinite",
            (f"{evidence}first at step {at(wrong[0])}",),
            (float(wrong[0]),),
        )
    if len(finite) < FEWEST:
        reason = f"{series.name} was logged {len(finite)} times, {FEWEST} are needed"
        yield NotJudged("overfitting", reason)
        return
    training = training_at(log, finite)
    if training is None:
        yield NotJudged("overfitting", "too few training losses to compare with")
        return
    yield from judge_overfitting(finite, training)
    yield from judge_below(finite, training)


def training_at(log: RunLog, validation: Series) -> Series | None:
    """The level of the training loss at the steps of the evaluations."""
    loss = log.loss.finite() if log.loss else None
    if loss is None or len(loss) < FEWEST:
        return None
    width = min(max(len(loss) // 40, 1), 25) * 2 + 1
    level = np.interp(validation.steps, loss.steps, running_median(loss.values, width))
    return Series(loss.name, validation.steps, level)


def judge_overfitting(validation: Series, training: Series) -> Iterator[Finding]:
    lowest = int(np.argmin(validation.values))
    later = validation.values[lowest + 1 :]
    low, end = validation.values[lowest], float(validation.values[-1])
    if low <= 0 or len(later) < LATER:
        return
    noise = noise_of(np.log(validation.values)) if len(validation) > FEWEST_FOR_NOISE else 0.0
    if (later[-LATER:] <= low * max(ROSE, np.exp(NOISE_SIGMA * noise))).any():
        return
    before, after = float(training.values[lowest]), float(training.values[-1])
    falls = after < FELL * before
    evidence = (
        f"{validation.name} is lowest at step {at(validation.steps[lowest])} ({show(low)}) and "
        f"{show(end)} at step {at(validation.steps[-1])}; the training loss goes from "
        f"{show(before)} to {show(after)}",
    )
    where = (float(validation.steps[lowest]),)
    if falls:
        title = "validation rises while training falls"
        yield Signature("overfitting", title, evidence, where)
    else:
        title = "the validation loss rises, and training does not fall"
        yield Signature("validation_rises", title, evidence, where)


def judge_below(validation: Series, training: Series) -> Iterator[Finding]:
    half = len(validation) // 2
    ratio = validation.values[half:] / np.maximum(training.values[half:], 1e-12)
    if len(ratio) < LATER or (ratio > SLIGHTLY_BELOW).any() or validation.values.min() < 0:
        return
    evidence = (
        f"over the second half of the run, {validation.name} is {show(ratio.min())} to "
        f"{show(ratio.max())} times the training loss",
    )
    is_fault = bool((ratio < BELOW).all())
    title = "validation lies far below training" if is_fault else "validation lies below training"
    yield Signature("validation_below", title, evidence, is_fault=is_fault)


def judge_accuracy(loss: Series, accuracy: Series | None) -> Iterator[Finding]:
    """The loss rises while the accuracy stays: the model is surer of what it gets wrong."""
    if accuracy is None:
        return
    loss, accuracy = loss.finite(), accuracy.finite()
    steps = np.intersect1d(loss.steps, accuracy.steps)
    if len(steps) < FEWEST:
        return
    losses = loss.values[np.isin(loss.steps, steps)]
    scores = accuracy.values[np.isin(accuracy.steps, steps)]
    scale = 100.0 if scores.max() > 1 else 1.0
    if len(losses) > 8 * FEWEST:  # logged each step: levels, not single batches
        width = len(losses) // 10 * 2 + 1
        losses, scores = running_median(losses, width), running_median(scores, width)
    lowest = int(np.argmin(losses))
    later = scores[lowest:] / scale
    if len(later) <= LATER or (losses[-LATER:] <= ROSE * losses[lowest]).any():
        return
    if np.ptp(later) > 2 * ACCURACY_FLAT or abs(later[-1] - later[0]) > ACCURACY_FLAT:
        return
    evidence = (
        f"{loss.name} rises from {show(losses[lowest])} (step {at(steps[lowest])}) to "
        f"{show(losses[-1])}, while {accuracy.name} stays between {show(scores[lowest:].min())} "
        f"and {show(scores[lowest:].max())}",
    )
    title = "the accuracy is flat while the loss rises"
    yield Signature("accuracy_flat_loss_rises", title, evidence, (float(steps[lowest]),))
