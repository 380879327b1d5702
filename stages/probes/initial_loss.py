"""Does the untrained model guess evenly, and is the loss the cross-entropy that it claims to be?

A model that knows nothing has a loss of ln K over K classes (Karpathy, "A Recipe for Training
Neural Networks": verify loss at init). The reference is computed here from the logits, in float64,
without the production loss. It is also taken on made-up confident logits, for smoothing and its
like hardly show where all classes are equally likely.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from ..chat.collator import Batch
from ..chat.labels import IGNORE_INDEX
from ..training.loss import LossFunction, count_targets
from ..training.step import Autocast, forward

CONFIDENCE = 4.0
"""Standard deviation of the made-up logits: the likeliest class then takes most of the mass."""

EVEN = 0.75
"""Of ln K. Random weights of transformers' models (standard deviation 0.02) leave an entropy of
more than 0.85 ln K up to 8192 features; trained ones that are given another's tokens are confident.
"""


@dataclass(frozen=True)
class InitialLoss:
    """Nats per supervised token; uniform is ln(vocabulary).

    loss, reference: on the model's own logits; confident: the same two on confident logits;
    entropy: of the model's own predictions.
    """

    loss: float
    reference: float
    confident: tuple[float, float]
    uniform: float
    tokens: int
    entropy: float

    @property
    def guesses_evenly(self) -> bool:
        """Does the model hardly prefer any class, as random weights make it?"""
        return self.entropy > EVEN * self.uniform

    @property
    def error_to_uniform(self) -> float:
        """Relative distance of the reference to ln K."""
        return abs(self.reference - self.uniform) / self.uniform

    @property
    def error_to_reference(self) -> float:
        """Relative distance of the production loss to the reference, the larger of the two."""
        pairs = (self.loss, self.reference), self.confident
        errors = [abs(loss - reference) / reference for loss, reference in pairs]
        return max(errors) if all(map(math.isfinite, errors)) else math.nan


@torch.no_grad()
def measure_initial_loss(
    model: nn.Module, batch: Batch, loss_fn: LossFunction, autocast: Autocast, classes: int
) -> InitialLoss:
    """One forward pass in the mode in which the model is."""
    labels = batch["labels"]
    tokens = count_targets(labels)
    with autocast():
        logits = forward(model, batch)
    generator = torch.Generator().manual_seed(0)
    made_up = CONFIDENCE * torch.randn(logits.shape, generator=generator).to(logits)
    references = [reference_loss(one, labels) for one in (logits, made_up)]
    with autocast():  # after the references: a loss may change its logits in place
        losses = [float(loss_fn(one, labels, tokens)) for one in (logits, made_up)]
    confident = (losses[1], references[1])
    return InitialLoss(
        losses[0],
        references[0],
        confident,
        math.log(classes),
        tokens,
        mean_entropy(logits, labels),
    )


def mean_entropy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Mean entropy in nats of the predictions at supervised positions, in float32.

    logits: float [B, T, V]; labels: int64 [B, T].
    """
    log_probabilities = logits[:, :-1][labels[:, 1:] != IGNORE_INDEX].float().log_softmax(-1)
    return float(-(log_probabilities.exp() * log_probabilities).sum(-1).mean())


def reference_loss(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Mean cross-entropy of the next token over supervised positions, in float64.

    logits: float [B, T, V]; labels: int64 [B, T].
    """
    targets = labels[:, 1:]
    supervised = targets != IGNORE_INDEX
    log_probabilities = logits[:, :-1][supervised].double().log_softmax(-1)
    chosen = log_probabilities.gather(-1, targets[supervised].unsqueeze(-1))
    return float(-chosen.mean())
