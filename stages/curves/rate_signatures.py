"""Does the learning rate do what a schedule should?"""

from collections.abc import Iterator

import numpy as np

from .run_log import Floats, RunLog, Series
from .signature import Finding, NotJudged, Signature, at, show

FEWEST = 5
GONE = 1e-6
"""Of the peak: less than any floor that a schedule is given; a cosine is there in its last step."""
NEAR_END = 0.05
"""Of the run that may be left when a schedule has ended: rounding, and steps that were skipped."""
LEADING_ZEROS = 0.1
LOW, RISEN = 0.05, 0.2
"""Of the peak: where a schedule has ended, and where it has clearly begun to rise again."""
WARM = 0.9
MULTIPLE = 0.05
"""How near a schedule's length must be to a whole fraction of the run."""
CYCLE = 3.0
"""A rise this much longer than the warm-up is no warm-up of a cycle, but a cosine gone too far."""


def judge_rate(log: RunLog) -> Iterator[Finding]:
    """All that the learning rate shows."""
    rate = log.learning_rate.finite() if log.learning_rate else None
    if rate is None or len(rate) < FEWEST:
        logged = "no learning rate" if rate is None else f"{len(rate)} learning rates"
        yield NotJudged("schedule", f"the log has {logged}, {FEWEST} are needed")
        return
    values, steps = rate.values, rate.steps
    if not values.any():
        evidence = f"{rate.name} is 0 at all {len(rate)} steps"
        yield Signature("rate_zero", "the learning rate stays 0", (evidence,))
        return
    yield from judge_beginning(rate)
    if np.ptp(values) <= 1e-9 * values.max():
        evidence = f"{rate.name} is {show(values[0])} at all {len(rate)} steps"
        title = "the learning rate is constant"
        yield Signature("rate_constant", title, (evidence,), is_fault=False)
        return
    planned = max(log.max_steps or 0.0, float(steps[-1]))
    yield from judge_end(rate, planned)
    if (np.diff(values) > 0).all():
        yield still_warming_up(rate, planned, is_known=log.max_steps is not None)


def judge_beginning(rate: Series) -> Iterator[Finding]:
    values, steps = rate.values, rate.steps
    zeros = int(np.flatnonzero(values)[0])
    if zeros >= max(FEWEST, LEADING_ZEROS * len(rate)):
        evidence = f"{rate.name} is 0 up to step {at(steps[zeros - 1])}, {zeros} times in a row"
        title = "the learning rate stays 0 at the beginning"
        yield Signature("rate_zero", title, (evidence,), (float(steps[zeros - 1]),))
    starts = steps[0] <= 2 * np.median(np.diff(steps)) + 1
    if starts and not zeros and values[0] >= WARM * values.max():
        evidence = f"at step {at(steps[0])}, the first logged, it is {show(values[0])}, its highest"
        title = "the learning rate does not warm up"
        yield Signature("no_warmup", title, (evidence,), is_fault=False)


def judge_end(rate: Series, planned: float) -> Iterator[Finding]:
    """Does the schedule end before the training does, or begin to rise again?"""
    values, steps = rate.values, rate.steps
    peak = int(np.argmax(values))
    gone = np.flatnonzero(values[peak:] <= GONE * values[peak]) + peak
    if len(gone) and (values[gone[0] :] <= GONE * values[peak]).all():
        end = float(steps[gone[0]])
        if planned - end > NEAR_END * planned:
            evidence = f"{rate.name} is {show(values[gone[0]])} from step {at(end)} on, of "
            yield too_fast(
                "rate_ends_early",
                "the learning rate ends before the training",
                f"{evidence}{at(planned)} steps",
                end,
                planned,
            )
        return
    lowest = rises_again(values, steps, peak)
    if lowest is not None:
        low, end = show(values[lowest]), float(steps[lowest])
        again = show(values[lowest:].max())
        yield too_fast(
            "rate_rises_again",
            "the learning rate rises again after the schedule has ended",
            f"{rate.name} falls to {low} at step {at(end)} and rises to {again}, over "
            f"{at(planned)} steps",
            end,
            planned,
        )


def rises_again(values: Floats, steps: Floats, peak: int) -> int | None:
    """Where a schedule that went on past its end turns; a jump up is a restart that was meant.

    So is a cycle, whose first rise takes about as long as its later ones.
    """
    low = np.flatnonzero(values[peak:] <= LOW * values[peak]) + peak
    if not len(low):
        return None
    after = values[low[0] :]
    turn = int(low[0] + np.argmin(after[: int(np.argmax(after >= RISEN * values[peak])) or None]))
    rest = values[turn:]
    if rest.max() < RISEN * values[peak] or turn + 1 == len(values):
        return None
    top = turn + int(np.argmax(rest))
    jumps = np.diff(values[turn : top + 1]).max() > 0.5 * (values[top] - values[turn])
    first_rise = steps[peak] - steps[0]
    is_cycle = first_rise > 0 and steps[top] - steps[turn] < CYCLE * first_rise
    return None if jumps or is_cycle else turn


def too_fast(id: str, title: str, evidence: str, end: float, planned: float) -> Signature:
    """The schedule's end, and whether it is a whole fraction of the run."""
    times = planned / end if end else 0.0
    whole = round(times)
    if whole < 2 or abs(times - whole) > MULTIPLE * whole:
        return Signature(id, title, (evidence,), (end,))
    more = f"the schedule runs {whole} times as fast as the training"
    return Signature("rate_steps_twice", more, (evidence,), (end,))


def still_warming_up(rate: Series, planned: float, is_known: bool) -> Signature:
    """The rate rises at every step: a fault if the run was to end here."""
    values, steps = rate.values, rate.steps
    evidence = f"it rises from {show(values[0])} to {show(values[-1])} at step {at(steps[-1])}"
    is_over = is_known and steps[-1] >= (1 - NEAR_END) * planned
    return Signature(
        "warmup_too_long",
        "the learning rate is still warming up at the end",
        (evidence,),
        is_fault=bool(is_over),
    )
