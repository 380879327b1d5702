"""Do two sets of inputs have one mean and one spread?"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class InputScale:
    """Mean and spread of inputs, over all and by channel, with the error of the mean."""

    mean: float
    std: float
    error: float
    low: float
    high: float


def scale_of_inputs(inputs: list[torch.Tensor]) -> InputScale | None:
    """None for token ids, and where there are too few numbers."""
    if not inputs or not inputs[0].is_floating_point():
        return None
    flat = torch.cat(
        [x.detach().double().reshape(len(x), -1).cpu() for x in inputs if x.ndim > 1]
        or [torch.zeros(0, 1)]
    )
    if flat.numel() < 64 or not bool(flat.isfinite().all()):
        return None
    by_row = flat.mean(1)
    error = float(by_row.std() / len(by_row) ** 0.5) if len(by_row) > 1 else float("inf")
    return InputScale(
        float(flat.mean()), float(flat.std()), error, float(flat.min()), float(flat.max())
    )


def scale_difference(one: InputScale, other: InputScale) -> tuple[float, float]:
    """(difference of means in units of the spread beyond its error, ratio of spreads)."""
    spread = max(one.std, other.std, 1e-12)
    apart = max(abs(one.mean - other.mean) - 4 * (one.error + other.error), 0.0)
    ratio = max(one.std, other.std) / max(min(one.std, other.std), 1e-12)
    return apart / spread, ratio
