"""Does the gradient norm explode, vanish, or is it always clipped?

Norms are those that trainers log: global L2 before clipping. Their scale depends on the model, so
most limits are relative to the run itself.
"""

from collections.abc import Iterator

import numpy as np

from .run_log import RunLog, Series
from .signature import Finding, Known, NotJudged, Signature, at, show
from .trends import running_median

FEWEST = 10
GREW = 10.0
AROUND = 51
BURST = 1000.0
"""Times the median of AROUND norms: runs end well in which steps of 100 times are clipped."""
VANISHED = 1e-5
"""The protocol's limit for a vanishing gradient."""
LEARNED = 0.1
"""Of the first loss: below it, small gradients are those of a model that has learned its data."""
ALWAYS = 5.0
"""Norm over limit that even the smallest step exceeds: clipping then sets every step's size."""
SAME = 1e-3
NOT_FINITE = 0.1
"""Share of steps: with float16, the loss scale overflows now and then, and these are skipped."""


def judge_norm(log: RunLog, known: Known) -> Iterator[Finding]:
    """All that the gradient norm shows."""
    norm = log.grad_norm
    if norm is None or len(norm) < FEWEST:
        logged = "no gradient norm" if norm is None else f"{len(norm)} gradient norms"
        yield NotJudged("gradient norm", f"the log has {logged}, {FEWEST} are needed")
        return
    yield from judge_finite(norm)
    finite = norm.finite()
    if len(finite) < FEWEST:
        return
    yield from judge_size(finite, log.loss)
    yield from judge_clipping(finite, known.max_grad_norm)


def judge_finite(norm: Series) -> Iterator[Finding]:
    wrong = ~norm.is_finite
    if not wrong.any():
        return
    often = bool(wrong.mean() > NOT_FINITE or wrong[-3:].all())
    first = float(norm.steps[wrong][0])
    evidence = f"{wrong.sum()} of {len(norm)} norms are NaN or infinite, first at step {at(first)}"
    title = f"gradients are not finite {'again and again' if often else 'at some steps'}"
    yield Signature("norm_not_finite", title, (evidence,), (first,), is_fault=often)


def judge_size(norm: Series, loss: Series | None) -> Iterator[Finding]:
    values, steps = norm.values, norm.steps
    tail = max(len(values) // 10, 3)
    end, usual = float(np.median(values[-tail:])), float(np.median(values))
    first_half = float(np.median(values[: len(values) // 2]))
    bursts = values / np.maximum(running_median(values, AROUND), np.finfo(float).tiny)
    highest = int(np.argmax(bursts))
    learned = has_learned(loss)
    if usual > 0 and end > GREW * first_half and end > 1 and not learned:
        evidence = (
            f"the last {tail} norms are {show(end)} at the median, those of the first half "
            f"{show(first_half)}",
        )
        title = "the gradient norm explodes"
        yield Signature("norm_explodes", title, evidence, (float(steps[-tail]),))
    elif usual > 0 and bursts[highest] > BURST:
        evidence = (
            f"step {at(steps[highest])}: the norm is {show(values[highest])}, "
            f"{bursts[highest]:.0f} times those around it",
        )
        title = "the gradient norm bursts"
        yield Signature("norm_explodes", title, evidence, (float(steps[highest]),))
    if end < VANISHED and not learned:
        evidence = (f"the last {tail} norms are {show(end)} at the median",)
        yield Signature("norm_vanishes", "the gradient norm vanishes", evidence)


def has_learned(loss: Series | None) -> bool:
    finite = loss.finite().values if loss is not None else np.empty(0)
    if len(finite) < FEWEST:
        return False
    return bool(np.median(finite[-3:]) < LEARNED * np.median(finite[:3]))


def judge_clipping(norm: Series, limit: float | None) -> Iterator[Finding]:
    values = norm.values
    middle = float(np.median(values))
    same = np.abs(values - middle) <= SAME * middle
    if middle > 0 and same.mean() > 0.95:
        evidence = (
            f"{same.sum()} of {len(values)} norms are {show(middle)}: they were logged behind "
            "the clipping, which sets the size of every step",
        )
        yield Signature("always_clipped", "every gradient is clipped", evidence, is_fault=False)
    elif limit is None:
        yield NotJudged("clipping", "the log has no limit; give it by --max-grad-norm")
    elif values.min() > ALWAYS * limit:
        evidence = (f"the smallest norm is {show(values.min())}, the limit is {show(limit)}",)
        yield Signature("always_clipped", "every gradient is clipped far", evidence)
