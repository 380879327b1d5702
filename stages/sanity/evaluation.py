"""Does the user's evaluation measure the model it is given, on all rows, and the right way round?

It runs as it is, on a loader that counts what is read and with the model's outputs replaced by
perfect and by wrong ones.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .batches import (
    IGNORE_INDEX,
    Batch,
    first_tensor,
    join,
    labels_of,
    moved_labels,
    size_of,
    take_rows,
)
from .outputs import OutputKind, find_site, output_kind, replaced_logits
from .subject import EvalFunction, Subject
from .tasks import Task

SURE = 20.0
"""Logit of the class that a perfect model is sure of."""


@dataclass
class Evaluation:
    """What evaluating showed; None where it was not measured.

    value, again: the metric twice from one state, under other seeds; training: was the model in
    training mode; changed: what else than the mode is changed, None for nothing;
    batches_read of batches: how much of the loader; calls: of the model; whole: the metric over
    the same rows in one batch; perfect, wrong: with outputs that are always right, always wrong;
    given: what the model was given.
    """

    value: float = math.nan
    again: float = math.nan
    error: str | None = None
    training: bool = False
    changed: str | None = None
    batches_read: int = 0
    batches: int | None = None
    calls: int = 0
    whole: float | None = None
    perfect: float | None = None
    wrong: float | None = None
    given: list[torch.Tensor] = field(default_factory=list)

    @property
    def runs_model(self) -> bool:
        """Does it read the loader and call the model that it is given?"""
        return self.batches_read > 0 and self.calls > 0


class CountingLoader:
    """A loader that counts the batches that are taken from it; else it is the one it wraps."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.read = 0
        self.taken: list[Batch] = []

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            self.read += 1
            self.taken.append(batch)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def evaluate(
    subject: Subject,
    eval_fn: EvalFunction,
    loader: Any,
    task: Task | None,
    num_classes: int | None,
    undone: Callable[[], Any],
    fingerprint: Callable[[], str],
    shift: int,
) -> Evaluation:
    """Evaluate in several ways, each from the state that was found."""
    found = Evaluation()
    model = subject.model
    batches = list(loader)
    found.batches = len(batches)
    with undone():
        model.train()
        before = fingerprint()
        counting = CountingLoader(loader)
        handle = model.register_forward_pre_hook(_noting(found, model), with_kwargs=True)
        try:
            torch.manual_seed(1)
            found.value = float(eval_fn(model, counting))
        finally:
            handle.remove()
        found.batches_read = counting.read
        if found.calls and fingerprint() != before:
            found.changed = _what_changed(subject)
    with undone():
        model.train()
        torch.manual_seed(2)
        found.again = float(eval_fn(model, loader))
    if not found.runs_model:
        return found
    if len({size_of(batch) for batch in batches}) > 1 or _targets_uneven(batches):
        whole = join(batches)
        if whole is not None:
            with undone(), suppress(Exception):
                torch.manual_seed(1)
                found.whole = float(eval_fn(model, [whole]))
    _evaluate_answers(found, subject, eval_fn, loader, batches, task, num_classes, undone, shift)
    return found


def _noting(found: Evaluation, model: nn.Module) -> Callable[..., None]:
    def hook(module: nn.Module, given: Any, named: Any) -> None:
        if module is not model:
            return  # a copy brings the hooks of the original along
        found.calls += 1
        found.training |= module.training
        first = first_tensor(given, named)
        if first is not None:
            found.given.append(first.detach().clone())

    return hook


def _what_changed(subject: Subject) -> str:
    if any(p.grad is not None and bool(p.grad.any()) for p in subject.model.parameters()):
        return "gradients, perhaps weights"
    return "weights or buffers"


def _targets_uneven(batches: list[Batch]) -> bool:
    """Do batches differ in how many labels count?"""
    counts = set()
    for batch in batches:
        labels = labels_of(batch)
        if labels is not None and not labels.is_floating_point():
            counts.add(int((labels != IGNORE_INDEX).sum()))
    return len(counts) > 1


def _evaluate_answers(
    found: Evaluation,
    subject: Subject,
    eval_fn: EvalFunction,
    loader: Any,
    batches: list[Batch],
    task: Task | None,
    num_classes: int | None,
    undone: Callable[[], Any],
    shift: int,
) -> None:
    """The metric of outputs that are always right, and always wrong."""
    if task is None or labels_of(batches[0]) is None:
        return
    if isinstance(getattr(loader, "sampler", None), torch.utils.data.RandomSampler):
        return  # the order of the rows is not known before they come
    with undone():
        subject.model.eval()
        site = find_site(subject, batches[0])
        own = subject.logits(take_rows(batches[0], slice(0, 8)))
    kind = output_kind(own.double(), task)
    for right in (True, False):
        counting = CountingLoader(loader)

        def answers(
            logits: torch.Tensor, right: bool = right, taken: CountingLoader = counting
        ) -> torch.Tensor:
            labels = labels_of(taken.taken[-1])
            assert labels is not None
            made = make_answers(logits, labels, task, num_classes, kind, shift, right)
            if made is None:
                raise _Unfit
            return made

        with undone(), replaced_logits(site, answers):
            try:
                torch.manual_seed(1)
                value = float(eval_fn(subject.model, counting))
            except Exception:
                return
        if right:
            found.perfect = value
        else:
            found.wrong = value


class _Unfit(Exception):
    """The outputs are not of a form in which right and wrong ones can be made."""


def make_answers(
    logits: torch.Tensor,
    labels: torch.Tensor,
    task: Task,
    num_classes: int | None,
    kind: OutputKind,
    shift: int,
    right: bool,
) -> torch.Tensor | None:
    """Outputs formed as `logits` that give every label, or none; None where they do not fit."""
    labels = labels.to(logits.device)
    if labels.is_floating_point() or task in ("binary", "regression", "multilabel"):
        if labels.numel() != logits.numel():
            return None
        y = labels.reshape(logits.shape).double()
        if task == "regression":
            spread = float(y.std()) if y.numel() > 1 else 1.0
            return y if right else y + 10 * max(spread, 1.0)
        sure = y if right else 1 - y
        return sure * 0.998 + 0.001 if kind == "probabilities" else (2 * sure - 1) * SURE
    target = labels
    if shift > 0 and labels.ndim == 2:
        target = moved_labels(labels, shift)
    if logits.shape[:-1] == target.shape:
        k_axis = logits.ndim - 1
    elif logits.ndim == target.ndim + 1 and (logits.shape[0], *logits.shape[2:]) == target.shape:
        k_axis = 1
    elif logits.ndim == 2 and len(logits) == target.numel():
        target, k_axis = target.reshape(-1), 1
    else:
        return None
    k = logits.shape[k_axis]
    known = target.clamp(0, k - 1)
    chosen = known if right else (known + 1) % k
    hot = torch.nn.functional.one_hot(chosen, k).double().movedim(-1, k_axis)
    made = SURE * hot
    if kind == "probabilities":
        return made.softmax(k_axis)
    return made.log_softmax(k_axis) if kind == "log-probabilities" else made
