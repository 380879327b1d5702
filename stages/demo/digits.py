"""Scripts that learn 8 x 8 digits, two sound and five broken; each broken one trains all the same.

`holdshort compare digits` has them checked by `sanity_check` and then trains them. Each function
returns the arguments of `sanity_check`; what is wrong stands in one line of it. The images are
those of scikit-learn, which come with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import Adam, Optimizer

Batches = list[tuple[torch.Tensor, torch.Tensor]]
TRAINING_ROWS, ROWS, BATCH = 1000, 1790, 50
CLASSES = 10


@dataclass
class Script:
    """The parts of a script that a fault may change. clears: whether it calls zero_grad."""

    model: nn.Sequential
    x: torch.Tensor
    y: torch.Tensor
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    evaluate: Callable[[nn.Module, Batches], float]
    clears: bool = True

    def arguments(self) -> dict[str, Any]:
        """What `sanity_check` takes."""
        classifies = self.evaluate is accuracy
        return {
            "model": self.model,
            "loader": self._batches(0, TRAINING_ROWS),
            "loss_fn": self.loss_fn,
            "optimizer": Adam(self.model.parameters(), lr=1e-3),
            "train_step": self._train_step,
            "eval_fn": self.evaluate,
            "val_loader": self._batches(TRAINING_ROWS, ROWS),
            "num_classes": CLASSES if classifies else None,
            "task": "classification" if classifies else "regression",
            "steps": 100,
        }

    def _train_step(self, model: nn.Module, batch: Any, optimizer: Optimizer) -> torch.Tensor:
        if self.clears:
            optimizer.zero_grad()
        loss = self.loss_fn(model(batch[0]), batch[1])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    def _batches(self, begin: int, end: int) -> Batches:
        return [(self.x[i : i + BATCH], self.y[i : i + BATCH]) for i in range(begin, end, BATCH)]


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels float32 [1797, 64] of mean 0 and deviation 1, digits int64 [1797], shuffled."""
    from sklearn.datasets import load_digits  # not needed by whoever only reads the scripts

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = torch.tensor(digits.data[order], dtype=torch.float32)
    return (pixels - pixels.mean()) / pixels.std(), torch.tensor(digits.target[order])


def accuracy(model: nn.Module, batches: Batches) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(float((model(x).argmax(1) == y).sum()) for x, y in batches)
    model.train()
    return right / sum(len(y) for _, y in batches)


def minus_error(model: nn.Module, batches: Batches) -> float:
    """The mean squared error, negative: higher is better."""
    model.eval()
    with torch.no_grad():
        error = sum(float((model(x).view(-1) - y.view(-1)).square().sum()) for x, y in batches)
    model.train()
    return -error / sum(len(y) for _, y in batches)


def classifier() -> Script:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    return Script(model, *load(), functional.cross_entropy, accuracy)


def regressor() -> Script:
    torch.manual_seed(0)
    x, y = load()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return Script(model, x, ((y - 4.5) / 2.9)[:, None], functional.mse_loss, minus_error)


def healthy_classifier() -> dict[str, Any]:
    """Which digit is it? Nothing is wrong."""
    return classifier().arguments()


def labels_shuffled() -> dict[str, Any]:
    """Labels are shuffled against their images."""
    script = classifier()
    script.y = script.y[torch.randperm(len(script.y))]
    return script.arguments()


def zero_grad_missing() -> dict[str, Any]:
    """Gradients of earlier steps are never cleared."""
    script = classifier()
    script.clears = False
    return script.arguments()


def softmax_twice() -> dict[str, Any]:
    """The loss gets probabilities, and takes them for logits."""
    script = classifier()
    script.loss_fn = lambda logits, y: functional.cross_entropy(logits.softmax(1), y)
    return script.arguments()


def head_times_50() -> dict[str, Any]:
    """The last layer begins with weights 50 times too large."""
    script = classifier()
    *_, head = script.model.children()
    with torch.no_grad():
        next(head.parameters()).mul_(50)
    return script.arguments()


def healthy_regressor() -> dict[str, Any]:
    """How large is the digit? Nothing is wrong."""
    return regressor().arguments()


def targets_broadcast() -> dict[str, Any]:
    """Outputs (B, 1) are compared with targets (B,), each with all of them."""
    script = regressor()
    script.y = script.y[:, 0]
    return script.arguments()
