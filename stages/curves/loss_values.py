"""Which single losses are wrong: not finite, exactly 0, below 0, or those of other steps again?"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .run_log import Floats, RunLog, Series
from .signature import Finding, Known, Signature, at, show

ZERO_LOSS = 1e-8
"""TheDeepChecker's zero loss: less than a model that trains on a batch of 16 reaches by itself."""
FIRST_LOSSES = 3
REPEATED = 5
"""Losses in a row that are the same to the last digit, in two places."""


def judge_not_finite(loss: Series) -> Iterator[Finding]:
    wrong = np.flatnonzero(~loss.is_finite)
    if not len(wrong):
        return
    first = int(wrong[0])
    is_early = first < max(5, len(loss) // 10)
    later = np.isfinite(loss.values[first:]).sum()
    evidence = [
        f"step {at(loss.steps[first])}: the loss is {loss.values[first]}; {len(wrong)} of "
        f"{len(loss)} losses are not finite, {later} behind the first are"
    ]
    before = loss.values[max(first - 3, 0) : first]
    if len(before):
        evidence.append(f"the losses before it: {', '.join(show(value) for value in before)}")
    yield Signature(
        "nan_early" if is_early else "nan_late",
        f"the loss is NaN or infinite {'in the first steps' if is_early else 'late in the run'}",
        tuple(evidence),
        (float(loss.steps[first]),),
    )


def judge_zeros(log: RunLog) -> Iterator[Finding]:
    """A loss of exactly 0: nothing was supervised, or a NaN is hidden behind it."""
    loss = log.loss
    assert loss is not None
    zero = np.abs(loss.values) <= ZERO_LOSS
    if not zero.any():
        return
    hidden = zero & not_finite_at(log.grad_norm, loss.steps)
    dropped = first_drop_to_zero(loss, zero)
    if hidden.any() or dropped is not None:
        first = int(np.flatnonzero(hidden)[0]) if hidden.any() else dropped or 0
        evidence = [f"step {at(loss.steps[first])}: the loss is exactly 0"]
        if hidden.any():
            evidence.append(f"the gradient norm is not finite at {hidden.sum()} losses of 0")
        if first:
            evidence.append(f"the loss before it: {show(loss.values[first - 1])}")
        title = "losses of exactly 0 hide NaN"
        yield Signature("hidden_nan", title, tuple(evidence), (float(loss.steps[first]),))
    elif zero[:FIRST_LOSSES].any():
        first = int(np.flatnonzero(zero)[0])
        evidence = [
            f"step {at(loss.steps[first])}: the loss is {show(loss.values[first])}; it is 0 at "
            f"{zero.sum()} of {len(loss)} steps"
        ]
        yield Signature(
            "zero_at_start",
            "the loss is 0 from the first steps on",
            tuple(evidence),
            (float(loss.steps[first]),),
        )


def not_finite_at(norm: Series | None, steps: Floats) -> NDArray[np.bool_]:
    if norm is None:
        return np.zeros(len(steps), bool)
    return np.isin(steps, norm.steps[~norm.is_finite])


def first_drop_to_zero(loss: Series, zero: NDArray[np.bool_]) -> int | None:
    """Where the loss falls to exactly 0 in one step and stays there; none falls so by learning."""
    first = int(np.flatnonzero(zero)[0])
    stays = zero[first:].all() and zero[first:].sum() >= FIRST_LOSSES
    falls = first > 0 and np.nan_to_num(loss.values[first - 1], nan=1.0) > 0.01
    return first if stays and falls and (loss.values[first:] == 0).all() else None


def below_zero(loss: Series, known: Known) -> Signature:
    """A fault of a cross-entropy, which the loss is when classes or the prior are known."""
    first = int(np.flatnonzero(loss.values < 0)[0])
    evidence = f"step {at(loss.steps[first])}: the loss is {show(loss.values[first])}"
    is_fault = known.prior_loss is not None
    where = (float(loss.steps[first]),)
    return Signature("negative", "the loss falls below 0", (evidence,), where, is_fault)


def judge_repeats(logged: Series) -> Iterator[Finding]:
    """The same losses again at other steps: weights and data that were there before.

    A step that a resumed run computed again with the same loss is how it should be.
    """
    values, steps = logged.values, logged.steps
    usable = values[np.isfinite(values) & (values != 0)]
    if len(np.unique(usable)) < 0.5 * len(usable):
        return  # few digits were logged: equal ones say nothing
    seen: dict[float, int] = {}
    for i, value in enumerate(values.tolist()):
        earlier = seen.setdefault(value, i)
        if earlier + REPEATED > i or steps[earlier] == steps[i]:
            continue
        length = same_from(values, earlier, i)
        if len(np.unique(values[i : i + length])) >= REPEATED:
            evidence = (
                f"the {length} losses from step {at(steps[i])} on are those from step "
                f"{at(steps[earlier])} on, to the last digit",
                f"they begin: {', '.join(show(loss) for loss in values[i : i + 3])}",
            )
            title = "losses are repeated to the last digit"
            yield Signature("repeated_losses", title, evidence, (float(steps[i]),))
            return


def same_from(values: Floats, earlier: int, later: int) -> int:
    """How many values from `earlier` on are those from `later` on."""
    length = 0
    while later + length < len(values) and values[earlier + length] == values[later + length]:
        length += 1
    return length
