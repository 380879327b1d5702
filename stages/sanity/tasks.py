"""Which kind of task is it, and which logits belong to which labels?"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from .batches import IGNORE_INDEX, Batch, input_of, is_integer, labels_of

TRIED_SHIFTS = (1, 0, 2, -1)
SAME_TOKENS = 0.9
"""Share of labels that repeat the input from which on a task is language modelling."""

Task = Literal["classification", "binary", "multilabel", "regression", "tagging", "lm"]

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


def same_share(input_ids: torch.Tensor, labels: torch.Tensor, shift: int) -> float:
    """Share of labels that equal the input `shift` positions later. Both int64 [B, T]."""
    steps = labels.shape[1]
    ahead = input_ids[:, max(shift, 0) : steps + min(shift, 0)]
    here = labels[:, max(-shift, 0) : steps - max(shift, 0)]
    known = here != IGNORE_INDEX
    return float((ahead == here)[known].float().mean()) if bool(known.any()) else 0.0


@dataclass(frozen=True)
class Logits:
    """Logits and labels side by side: logits [P, K] (K is 1 for one number a position), labels [P].

    rows: int64 [P], the row of the batch that each position belongs to.
    """

    logits: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor


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
