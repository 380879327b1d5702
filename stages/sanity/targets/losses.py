"""Losses over classes other than a cross-entropy of logits, told by the direction of a gradient."""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

SAME_DIRECTION = 0.999
"""Cosine from which on two gradients are one, up to their scale."""
HEALTHY_KINDS = ("cross-entropy", "binary cross-entropy", "squared error", "absolute error")
SOFTMAX_KINDS = (
    "softmax before cross-entropy",
    "sigmoid before cross-entropy",
    "sigmoid before binary cross-entropy",
)


def _one_hot(target: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return functional.one_hot(target, z.shape[1]).to(z)


OF_LOGITS: Mapping[str, Loss] = {
    "softmax before cross-entropy": lambda z, t: functional.cross_entropy(z.softmax(1), t),
    "sigmoid before cross-entropy": lambda z, t: functional.cross_entropy(z.sigmoid(), t),
    "negative log-likelihood of probabilities": lambda z, t: functional.nll_loss(z.softmax(1), t),
    "mean squared error for classes": lambda z, t: functional.mse_loss(
        z.softmax(1), _one_hot(t, z)
    ),
    "mean squared error of logits": lambda z, t: functional.mse_loss(z, _one_hot(t, z)),
    "mean absolute error for classes": lambda z, t: functional.l1_loss(
        z.softmax(1), _one_hot(t, z)
    ),
    "binary cross-entropy": lambda z, t: functional.binary_cross_entropy_with_logits(
        z, _one_hot(t, z)
    ),
    "binary cross-entropy of probabilities": lambda z, t: functional.binary_cross_entropy(
        z.softmax(1), _one_hot(t, z)
    ),
    "softmax over the batch": lambda z, t: functional.nll_loss(z.log_softmax(0), t),
}
OF_PROBABILITIES: Mapping[str, Loss] = {
    "softmax before cross-entropy": lambda p, t: functional.cross_entropy(p, t),
    "cross-entropy": lambda p, t: functional.nll_loss(p.log(), t),
    "negative log-likelihood of probabilities": lambda p, t: functional.nll_loss(p, t),
    "mean squared error for classes": lambda p, t: functional.mse_loss(p, _one_hot(t, p)),
    "binary cross-entropy of probabilities": lambda p, t: functional.binary_cross_entropy(
        p.clamp(1e-6, 1 - 1e-6), _one_hot(t, p)
    ),
}


def recognise(
    z: torch.Tensor, g: torch.Tensor, target: torch.Tensor, losses: Mapping[str, Loss]
) -> tuple[str, int]:
    """(the loss that g [P, K] is the gradient of at z [P, K], 1; -1 where it is negated)."""
    for name, loss in losses.items():
        leaf = z.clone().requires_grad_()
        with torch.enable_grad():
            (reference,) = torch.autograd.grad(loss(leaf, target), leaf)
        if sign := direction(reference, g):
            return name, sign
    return "unknown", 1


def direction(reference: torch.Tensor, g: torch.Tensor) -> int:
    """1 where g points as `reference` does, -1 where it points the other way, else 0."""
    cosine = float(functional.cosine_similarity(reference.flatten(), g.flatten(), dim=0))
    if abs(cosine) > SAME_DIRECTION:
        return 1 if cosine > 0 else -1
    return 0
