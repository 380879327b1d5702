"""The user's model, loss and batches behind one face, whatever their form.

Batches are (x, ..., y) or dicts as Hugging Face models take them. Labels stand last, or below
`labels`; everything else is input.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from ..probes.outputs import logits_of

IGNORE_INDEX = -100
LABEL_KEYS = ("labels", "label", "targets", "target", "y")
NOT_INPUT = ("attention_mask", "token_type_ids", "position_ids")
TRIED_SHIFTS = (1, 0, 2, -1)
SAME_TOKENS = 0.9
"""Share of labels that repeat the input from which on a task is language modelling."""

Batch = Any
Task = Literal["classification", "binary", "multilabel", "regression", "tagging", "lm"]
TrainStep = Callable[[nn.Module, Batch, Optimizer], Any]
EvalFunction = Callable[[nn.Module, Any], float]
LossFunction = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Logits:
    """Logits and labels side by side: logits [P, K] (K is 1 for one number a position), labels [P].

    rows: int64 [P], the row of the batch that each position belongs to.
    """

    logits: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor


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


def map_tensors(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """The same batch with every tensor changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, change) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)([map_tensors(value, change) for value in batch])
    return batch


def labels_of(batch: Batch) -> torch.Tensor | None:
    if isinstance(batch, Mapping):
        return next((batch[key] for key in LABEL_KEYS if batch.get(key) is not None), None)
    return batch[-1] if isinstance(batch[-1], torch.Tensor) else None


def with_labels(batch: Batch, labels: torch.Tensor) -> Batch:
    if isinstance(batch, Mapping):
        key = next(key for key in LABEL_KEYS if batch.get(key) is not None)
        return {**batch, key: labels}
    return type(batch)([*batch[:-1], labels])


def input_of(batch: Batch) -> torch.Tensor | None:
    """The tensor that carries what the model looks at: ids, pixels or features."""
    candidates = batch.items() if isinstance(batch, Mapping) else enumerate(batch[:-1])
    for key, value in candidates:
        if isinstance(value, torch.Tensor) and key not in LABEL_KEYS and key not in NOT_INPUT:
            return value
    return None


def with_input(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """The same batch with its main input changed."""
    if isinstance(batch, Mapping):
        key = next(
            k
            for k, v in batch.items()
            if isinstance(v, torch.Tensor) and k not in LABEL_KEYS and k not in NOT_INPUT
        )
        return {**batch, key: change(batch[key])}
    at = next(i for i, v in enumerate(batch[:-1]) if isinstance(v, torch.Tensor))
    return type(batch)([change(v) if i == at else v for i, v in enumerate(batch)])


def first_tensor(arguments: Iterable[Any], named: Mapping[str, Any]) -> torch.Tensor | None:
    """The first tensor that a call of a model was given."""
    every = (*arguments, *named.values())
    return next((one for one in every if isinstance(one, torch.Tensor)), None)


def size_of(batch: Batch) -> int:
    given = input_of(batch)
    return 0 if given is None or given.ndim == 0 else len(given)


def take_rows(batch: Batch, rows: Any) -> Batch:
    """Some rows of a batch; tensors of another length are left as they are."""
    size = size_of(batch)
    return map_tensors(batch, lambda t: t[rows] if t.ndim and len(t) == size else t)


def join(batches: list[Batch]) -> Batch | None:
    """All rows as one batch, or None where their shapes do not fit (padding differs)."""
    first = batches[0]
    try:
        if isinstance(first, Mapping):
            return {k: torch.cat([b[k] for b in batches]) for k in first}
        return type(first)([torch.cat(list(parts)) for parts in zip(*batches, strict=True)])
    except (RuntimeError, TypeError, ValueError):
        return None


def side_by_side(
    logits: torch.Tensor, labels: torch.Tensor, task: Task, num_classes: int | None
) -> Logits | None:
    """Logits and labels position by position, or None where their shapes do not tell how."""
    shape, size = logits.shape, len(labels)
    if task in ("binary", "regression", "multilabel"):
        if logits.numel() != labels.numel():
            return None
        rows = torch.arange(size).repeat_interleave(labels.numel() // max(size, 1))
        return Logits(logits.reshape(-1, 1), labels.reshape(-1), rows)
    positions = labels.numel()
    rows = torch.arange(size).repeat_interleave(positions // max(size, 1))
    if logits.shape[:-1] == labels.shape or (
        logits.ndim == 2 and labels.ndim > 1 and len(logits) == positions
    ):
        k_last = True
    elif logits.ndim == labels.ndim + 1 and (shape[0], *shape[2:]) == tuple(labels.shape):
        k_last = False
    else:
        return None
    if k_last and logits.ndim == 3 and shape[1] == shape[2] and num_classes is None:
        return None  # which of the two is the class axis?
    if not k_last:
        logits = logits.movedim(1, -1)
    return Logits(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), rows)


def same_share(input_ids: torch.Tensor, labels: torch.Tensor, shift: int) -> float:
    """Share of labels that equal the input `shift` positions later. Both int64 [B, T]."""
    steps = labels.shape[1]
    ahead = input_ids[:, max(shift, 0) : steps + min(shift, 0)]
    here = labels[:, max(-shift, 0) : steps - max(shift, 0)]
    known = here != IGNORE_INDEX
    return float((ahead == here)[known].float().mean()) if bool(known.any()) else 0.0


def moved_labels(labels: torch.Tensor, shift: int) -> torch.Tensor:
    """Labels [B, T], each `shift` positions earlier than it was; -100 where none comes."""
    if shift == 0:
        return labels
    moved = torch.full_like(labels, IGNORE_INDEX)
    if shift > 0:
        moved[:, :-shift] = labels[:, shift:]
    else:
        moved[:, -shift:] = labels[:, :shift]
    return moved


def is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def copies_input(batch: Batch) -> int | None:
    """By how many positions labels are the input moved ahead, or None where they are not."""
    given, labels = input_of(batch), labels_of(batch)
    if given is None or labels is None or given.ndim != 2 or given.shape != labels.shape:
        return None
    if not is_integer(given) or not is_integer(labels) or labels.shape[1] < 4:
        return None
    shares = {shift: same_share(given, labels, shift) for shift in TRIED_SHIFTS}
    best = max(TRIED_SHIFTS, key=lambda shift: shares[shift])
    return best if shares[best] >= SAME_TOKENS else None


WORDS: tuple[tuple[str, Task], ...] = (
    ("mask", "tagging"),
    ("regress", "regression"),
    ("multilabel", "multilabel"),
    ("multi_label", "multilabel"),
    ("binary", "binary"),
    ("tag", "tagging"),
    ("token", "tagging"),
    ("ner", "tagging"),
    ("segment", "tagging"),
    ("lm", "lm"),
    ("language", "lm"),
    ("causal", "lm"),
    ("generat", "lm"),
    ("class", "classification"),
)
"""What people call their tasks, in the order in which it is looked for in `task`."""


def find_task(
    task: str | None, model: nn.Module, batch: Batch, logits: torch.Tensor
) -> Task | None:
    """The kind of task: from what it is called, else from the labels' and logits' form."""
    labels = labels_of(batch)
    named = next((kind for word, kind in WORDS if task and word in task.lower()), None)
    if labels is None:
        return named
    if is_integer(labels) and named in (None, "classification"):
        if labels.numel() == logits.numel() and set(torch.unique(labels).tolist()) <= {0, 1}:
            return "binary"
        if logits.ndim < 2 or logits.numel() == labels.numel():
            return "regression"
        if labels.ndim == 1:
            return "classification"
        kind = type(model).__name__
        copied = copies_input(batch) is not None
        return "lm" if copied or "CausalLM" in kind or "LMHead" in kind else "tagging"
    if named in (None, "classification", "binary", "multilabel") and not is_integer(labels):
        two_valued = bool(((labels == 0) | (labels == 1)).all())
        if not two_valued:
            return "regression" if named is None else None
        many = labels.ndim > 1 and labels.shape[-1] > 1
        if many and bool((labels.sum(-1) == 1).all()):
            return None  # one-hot: a cross-entropy over them is not looked into
        return "multilabel" if many else "binary"
    return named


def read_batches(loader: Iterable[Batch], most: int, most_rows: int) -> list[Batch]:
    """The first batches of a loader."""
    batches, rows = [], 0
    for batch in loader:
        batches.append(batch)
        rows += size_of(batch)
        if len(batches) >= most or rows >= most_rows:
            break
    return batches
