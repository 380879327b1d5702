"""Which class is each position trained on, and by how many positions are labels moved for that?"""

from dataclasses import dataclass

import torch

from ..batches import IGNORE_INDEX, moved_labels
from ..tasks import TRIED_SHIFTS
from .lines import LINE_RESIDUAL, fit_positions


@dataclass(frozen=True)
class Alignment:
    """trained: int64 [P], the class that each position is trained on; target: int64 [P], labels
    moved by `shift` to where they are trained on; share: of positions that fit their target."""

    trained: torch.Tensor
    target: torch.Tensor
    shift: int
    share: float


def align(
    z: torch.Tensor, g: torch.Tensor, active: torch.Tensor, labels: torch.Tensor
) -> Alignment:
    """Align a gradient g [P, K] at logits z [P, K] with labels [P], or [B, T] where P = B T.

    The class trained on is the one with the most negative gradient. A likely class with smoothing
    may have a positive one: there it is the label, if with it the others lie on a line.
    active: bool [P], positions with a gradient.
    """
    lowest = g.argmin(1)

    def moved(shift: int) -> torch.Tensor:
        within_rows = labels if labels.ndim < 2 else moved_labels(labels, shift)
        return within_rows.reshape(-1).to(g.device)

    def explained(target: torch.Tensor) -> torch.Tensor:
        fits = lowest == target
        doubtful = active & ~fits & (target >= 0) & (target < g.shape[1])
        if g.shape[1] > 3 and bool(doubtful.any()):
            _, smoothing, residuals = fit_positions(z[doubtful], g[doubtful], target[doubtful])
            fits[doubtful] = (residuals < LINE_RESIDUAL) & (smoothing < 1)
        return fits

    def share(target: torch.Tensor) -> float:
        known = active & (target != IGNORE_INDEX)
        return float(explained(target)[known].double().mean()) if bool(known.any()) else 0.0

    tried = [0, *(s for s in TRIED_SHIFTS if s != 0 and labels.ndim == 2 and labels.shape[1] > 3)]
    shares = {shift: share(moved(shift)) for shift in tried}
    best = max(tried, key=lambda shift: shares[shift])
    if shares[best] < shares[0] + 0.2:
        best = 0
    target = moved(best)
    trained = torch.where(explained(target), target, lowest)
    return Alignment(trained, target, best, shares[best])
