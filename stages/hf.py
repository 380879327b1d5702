"""Does the run of a transformers Trainer stand up to the sanity check? Asked before its first step.

    from holdshort.hf import PreflightCallback
    trainer.add_callback(PreflightCallback(trainer))

Works for every subclass of Trainer, TRL's SFTTrainer among them. Examines the trainer's own model,
optimizer, data collator and loss on batches of its own training data, prints the report,
and stops the run when a check fails. Everything is left as it was found. The schedule is the
trainer's own affair: steps are taken at its peak rate.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .config.errors import Refusal
from .sanity import SanityReport, sanity_check

BATCHES = 8


class PreflightCallback(TrainerCallback):  # type: ignore[misc]
    """Runs the sanity check at `on_train_begin`; `report` is what it found.

    trainer: with it the loss is `trainer.compute_loss`, else what the model returns.
    on_failure: "raise" a Refusal before the first step, or "stop" the training by the trainer's
    own control, which ends it after its first step.
    settings: further arguments of `sanity_check` (pretrained, intended_frozen, steps, ...).
    """

    def __init__(
        self,
        trainer: Trainer | None = None,
        *,
        on_failure: Literal["raise", "stop"] = "raise",
        batches: int = BATCHES,
        **settings: Any,
    ) -> None:
        self.trainer, self.on_failure, self.batches = trainer, on_failure, batches
        self.settings = settings
        self.report: SanityReport | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **parts: Any,
    ) -> None:
        model, optimizer = parts["model"], parts["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)  # of accelerate's wrapper
        self.report = sanity_check(
            model,
            first_batches(parts["train_dataloader"], args, self.batches),
            None,
            optimizer=optimizer,
            train_step=make_step(self._loss, args.max_grad_norm),
            **self.settings,
        )
        print(self.report)
        if self.report.passed:
            return
        if self.on_failure == "raise":
            causes = "; ".join(self.report.causes)
            raise Refusal(f"the sanity check failed before the first step: {causes}")
        control.should_training_stop = True

    def _loss(self, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        loss: torch.Tensor
        if self.trainer is None:
            loss = model(**batch).loss
        else:
            loss = self.trainer.compute_loss(model, batch)
        return loss


def make_step(
    compute_loss: Callable[[nn.Module, dict[str, Any]], torch.Tensor],
    max_grad_norm: float | None,
) -> Callable[[nn.Module, Any, Optimizer], torch.Tensor]:
    """A step as Trainer takes it: loss, backward, clip, step, zero; at the peak of the schedule."""

    def train_step(model: nn.Module, batch: Any, optimizer: Optimizer) -> torch.Tensor:
        model.train()
        device = next(model.parameters()).device
        loss = compute_loss(model, {name: value.to(device) for name, value in batch.items()})
        loss.backward()  # type: ignore[no-untyped-call]
        if max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        for group in optimizer.param_groups:  # a warm-up begins at 0
            group["lr"] = group.get("initial_lr", group["lr"])
        optimizer.step()
        model.zero_grad()
        return loss.detach()

    return train_step


def first_batches(loader: Any, args: TrainingArguments, count: int) -> list[dict[str, Any]]:
    """Batches of the loader's data set by its collator, drawn by the run's seed.

    Beside the loader, because to iterate over it would move the trainer's own position.
    """
    loader = getattr(loader, "base_dataloader", loader)
    rows, size = loader.dataset, args.per_device_train_batch_size
    chosen: Iterable[Any]
    if isinstance(rows, IterableDataset):
        chosen = islice(iter(rows), count * size)
    else:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(args.seed))
        chosen = (rows[index] for index in order[: count * size].tolist())
    drawn = list(chosen)
    parts = [drawn[start : start + size] for start in range(0, len(drawn), size)]
    return [tensors_of(loader.collate_fn(part)) for part in parts]


def tensors_of(batch: Any) -> dict[str, Any]:
    """The tensors of a collated batch, which may hold more."""
    return {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
