"""The outputs of a model: what they are, which module gives them, and others put in their place."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from ..probes.outputs import logits_of, with_logits
from .batches import Batch
from .subject import Subject
from .tasks import Task

OutputKind = Literal["logits", "probabilities", "log-probabilities"]


def output_kind(own: torch.Tensor, task: Task, class_axis: int = -1) -> OutputKind:
    """Are a model's outputs logits, probabilities or log-probabilities?"""
    if task in ("binary", "multilabel"):
        within = bool(((own >= 0) & (own <= 1)).all())
        return "probabilities" if within and own.numel() >= 4 else "logits"
    if task == "regression" or own.ndim < 2:
        return "logits"
    total = own.sum(class_axis)
    if bool((own >= 0).all()) and bool(((total - 1).abs() < 1e-3).all()):
        return "probabilities"
    if bool((own.logsumexp(class_axis).abs() < 1e-3).all()):
        return "log-probabilities"
    return "logits"


def find_site(subject: Subject, batch: Batch) -> nn.Module:
    """The module whose output is the logits: the model, or its head where it computes the loss."""
    if subject.loss_fn is not None:
        return subject.model
    outputs: list[tuple[nn.Module, torch.Tensor]] = []

    def saw(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            outputs.append((module, output))

    handles = [m.register_forward_hook(saw) for m in subject.model.modules()]
    try:
        logits = subject.logits(batch)
    finally:
        for handle in handles:
            handle.remove()
    for module, output in reversed(outputs):
        if output.shape == logits.shape and torch.equal(output, logits):
            return module
    return subject.model


@contextmanager
def replaced_logits(
    site: nn.Module, make: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[tuple[list[torch.Tensor], dict[int, torch.Tensor]]]:
    """While open, what `site` returns is `make(logits)`; gradients flow through unchanged.

    Yields, by call: what took the place of the model's own logits, and its gradient.
    """
    seen: list[torch.Tensor] = []
    gradients: dict[int, torch.Tensor] = {}

    def hook(module: nn.Module, given: Any, outputs: Any) -> Any:
        logits = logits_of(outputs)
        with torch.no_grad():
            moved = make(logits.detach()).to(logits.dtype) - logits
        replaced = logits + moved.detach()
        call = len(seen)
        seen.append(replaced.detach())
        if replaced.requires_grad:

            def keep(gradient: torch.Tensor) -> None:
                known = gradients.get(call)
                gradients[call] = gradient.detach() + (0 if known is None else known)

            untyped: Any = replaced
            untyped.register_hook(keep)
        return with_logits(outputs, replaced)

    handle = site.register_forward_hook(hook)
    try:
        yield seen, gradients
    finally:
        handle.remove()
