"""Which learning rates can this run bear? A sweep from far too low to far too high, step by step.

The range test of Smith, "Cyclical Learning Rates for Training Neural Networks" (2017): the rate
grows by a constant factor at each step of one short training, and the loss is watched. It falls
where a rate is worth having and rises where it is too high.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..config import Params
from ..config.schema import Train
from ..training.run import start_run
from ..training.setup import Parts

LOWEST, HIGHEST = 1e-7, 10.0
SMOOTHING = 0.7
"""Weight of the past in the moving average of the loss."""
DIVERGED = 4.0
"""The sweep ends where the smoothed loss is this many times its minimum, as fastai's does."""
MARGIN = 10.0
"""The suggestion lies this factor below the rate of the smallest loss, as fastai's does."""
RISEN = 0.1
"""Share of the loss's fall by which it has risen again where a rate is called too high."""
TOO_LOW = 100.0
"""A rate this many times below the suggestion learns next to nothing in the steps that it has."""


@dataclass(frozen=True)
class Sweep:
    """losses: in nats, at each rate; both end where the loss diverged."""

    rates: list[float]
    losses: list[float]

    @property
    def smoothed(self) -> list[float]:
        """Moving average without the bias of its start."""
        average, averages = 0.0, []
        for step, loss in enumerate(self.losses, 1):
            average = SMOOTHING * average + (1 - SMOOTHING) * loss
            averages.append(average / (1 - SMOOTHING**step))
        return averages


@dataclass(frozen=True)
class Finding:
    """suggestion: None where the loss never fell; steepest: the rate at which it fell fastest;
    ceiling: the first rate at which it had risen again, None where it never did.
    """

    suggestion: float | None
    steepest: float | None
    ceiling: float | None

    def place(self, rate: float) -> str | None:
        """What is wrong with a rate, or None."""
        if self.ceiling is not None and rate >= self.ceiling:
            return "too high: the loss rises at it"
        if self.suggestion is not None and rate * TOO_LOW <= self.suggestion:
            return "too low: the loss hardly moves at it"
        return None


def sweep_rates(params: Params, steps: int, advance: Callable[[], object] = lambda: None) -> Sweep:
    """Train `steps` steps of the run, from its start, at rates from LOWEST to HIGHEST.

    advance: called after each step.
    """
    growth = (HIGHEST / LOWEST) ** (1 / (steps - 1))

    def schedule(optimizer: Optimizer, train: Train, total: int) -> LRScheduler:
        return LambdaLR(optimizer, lambda step: growth**step)

    # a sweep that skips the steps at which its loss leaps would never see where it must end
    train = replace(params.train, learning_rate=LOWEST, on_anomaly="warn")
    params = replace(params, train=train)
    run = start_run(params, parts=replace(Parts.of(params), build_scheduler=schedule))
    rates: list[float] = []
    losses: list[float] = []
    for step in range(steps):
        rate = float(run.trainer.optimizer.param_groups[0]["lr"])
        loss = run.trainer.step(run.batches.of_step(step)).loss
        advance()
        if not math.isfinite(loss):
            break
        rates.append(rate)
        losses.append(loss)
        smoothed = Sweep(rates, losses).smoothed
        if smoothed[-1] > DIVERGED * min(smoothed):
            break
    return Sweep(rates, losses)


def read_sweep(sweep: Sweep) -> Finding:
    """Where the loss fell, and where it rose again."""
    if not sweep.losses:
        return Finding(None, None, None)
    smoothed = sweep.smoothed
    lowest = min(range(len(smoothed)), key=smoothed.__getitem__)
    fall = smoothed[0] - smoothed[lowest]
    after = zip(sweep.rates[lowest:], smoothed[lowest:], strict=True)
    ceiling = next((rate for rate, loss in after if loss > smoothed[lowest] + RISEN * fall), None)
    if fall <= 0:
        return Finding(None, None, ceiling)
    slopes = [later - earlier for earlier, later in pairwise(smoothed[: lowest + 1])]
    steepest = sweep.rates[min(range(len(slopes)), key=slopes.__getitem__)]
    return Finding(sweep.rates[lowest] / MARGIN, steepest, ceiling)
