"""The loss of next-token prediction, weighted by supervised tokens.

A loss of your own (`train.loss._target_`) is called as `loss(logits, labels, num_items)`.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

from ..chat.labels import IGNORE_INDEX

LossFunction = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def causal_lm_loss(logits: torch.Tensor, labels: torch.Tensor, num_items: int) -> torch.Tensor:
    """Cross-entropy in nats of labels[:, t + 1] under logits[:, t], summed and over `num_items`.

    logits: float [B, T, V]; labels: int64 [B, T], -100 where masked; num_items: supervised tokens
    of the whole step, so that micro-batches add up to one mean over all its tokens. Returns a
    float32 scalar.
    """
    shifted = logits[:, :-1].flatten(0, 1).float()
    targets = labels[:, 1:].flatten()
    total = functional.cross_entropy(shifted, targets, ignore_index=IGNORE_INDEX, reduction="sum")
    return total / num_items


def count_targets(labels: torch.Tensor) -> int:
    """Supervised tokens of a batch that have a token before them to be predicted from."""
    return int((labels[:, 1:] != IGNORE_INDEX).sum())
