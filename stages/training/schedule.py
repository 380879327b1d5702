"""The learning rate of every step: linear warm-up from 0, then the decay of `lr_scheduler_type`.

The factors are those of transformers' schedules of the same names.
"""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..config.errors import UserError
from ..config.schema import Train
from .batches import BatchPlan


def count_steps(train: Train, plan: BatchPlan) -> int:
    """Optimizer steps of the training: `max_steps`, or as many as `num_train_epochs` need."""
    if train.max_steps > 0:
        return train.max_steps
    return plan.count_steps(train.num_train_epochs)


def count_warmup_steps(train: Train, steps: int) -> int:
    """`warmup_steps`, or `warmup_ratio` of the training, rounded up, where that is 0.

    Raises UserError when it does not end before the training does.
    """
    warmup = train.warmup_steps or math.ceil(train.warmup_ratio * steps)
    if warmup >= steps:
        raise UserError(
            f"params.yaml: the warm-up of {warmup} steps is not shorter than the training of "
            f"{steps}; lower train.warmup_steps or train.warmup_ratio, or train longer"
        )
    return warmup


def schedule_factor(kind: str, warmup: int, steps: int) -> Callable[[int], float]:
    """The factor on the peak rate at step 0, 1, ..., steps - 1."""

    def factor(step: int) -> float:
        if step < warmup:
            return step / warmup
        progress = (step - warmup) / max(steps - warmup, 1)
        match kind:
            case "cosine":
                return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))
            case "linear":
                return max(0.0, 1.0 - progress)
            case "constant_with_warmup":
                return 1.0
        raise ValueError(f"no schedule is called {kind!r}")

    return factor


def build_scheduler(optimizer: Optimizer, train: Train, steps: int) -> LambdaLR:
    """The schedule of the training over `steps` optimizer steps."""
    warmup = count_warmup_steps(train, steps)
    return LambdaLR(optimizer, schedule_factor(train.lr_scheduler_type, warmup, steps))


def constant_schedule(optimizer: Optimizer) -> LambdaLR:
    """The schedule of the overfit gate, which brings its own rate."""
    return LambdaLR(optimizer, lambda step: 1.0)
