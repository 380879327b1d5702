"""The user's model, loss and training step behind one face, whatever their form."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..probes.outputs import logits_of
from .batches import LABEL_KEYS, Batch, labels_of, map_tensors

TrainStep = Callable[[nn.Module, Batch, Optimizer], Any]
EvalFunction = Callable[[nn.Module, Any], float]
LossFunction = Callable[[Any, torch.Tensor], torch.Tensor]


class Subject:
    """What is examined."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction | None,
        optimizer: Optimizer | None,
        train_step: TrainStep | None,
    ) -> None:
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.train_step = train_step
        first = next(model.parameters(), None)
        self.device = torch.device("cpu") if first is None else first.device

    def forward(self, batch: Batch) -> Any:
        batch = self.to_device(batch)
        if isinstance(batch, Mapping):
            if self.loss_fn is None:
                return self.model(**batch)
            return self.model(**{k: v for k, v in batch.items() if k not in LABEL_KEYS})
        return self.model(*batch[:-1])

    def loss(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """The user's loss of outputs; raises ValueError where a model computes it and did not."""
        if self.loss_fn is not None:
            labels = labels_of(self.to_device(batch))
            if labels is None:
                raise ValueError("the batch holds no labels")
            return self.loss_fn(outputs, labels)
        loss = outputs["loss"] if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if not isinstance(loss, torch.Tensor):
            raise ValueError("the model returned no loss: give loss_fn, or labels in each batch")
        return loss

    def logits(self, batch: Batch) -> torch.Tensor:
        """The model's outputs for a batch, in the mode in which it is; no gradient."""
        with torch.no_grad():
            return logits_of(self.forward(batch)).detach()

    def step(self, batch: Batch, optimizer: Optimizer) -> float:
        """One training step, the user's own if there is one; the loss that it returned."""
        if self.train_step is not None:
            returned = self.train_step(self.model, batch, optimizer)
            if isinstance(returned, tuple | list) and returned:
                returned = returned[0]
            if isinstance(returned, torch.Tensor):
                return float(returned.detach().float().mean())
            return float(returned) if isinstance(returned, int | float) else math.nan
        optimizer.zero_grad()
        loss = self.loss(self.forward(batch), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    def to_device(self, batch: Batch) -> Batch:
        return map_tensors(batch, lambda tensor: tensor.to(self.device))
