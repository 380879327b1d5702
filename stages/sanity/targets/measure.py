"""Run the user's step on made-up outputs, and read what its gradient says (see the package)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from ..batches import Batch, labels_of, size_of, with_labels
from ..outputs import find_site, output_kind
from ..subject import Subject
from ..tasks import Task, side_by_side
from .capture import Captured, TrialStep, confident, row_order, spread_around
from .classes import read_classes
from .losses import direction
from .numbers import read_numbers
from .probe import TargetProbe


def run_target_probe(
    subject: Subject,
    batch: Batch,
    optimizer: Optimizer,
    task: Task,
    num_classes: int | None,
    undone: Callable[[], Any],
    loss_scale: Callable[[], float],
) -> TargetProbe | None:
    """Run the user's step on made-up logits and read its gradient; None where that cannot be."""
    labels = labels_of(batch)
    if labels is None:
        return None
    with undone():
        site = find_site(subject, batch)
        own = subject.logits(batch)
    at_own = side_by_side(own, labels, task, num_classes)
    class_axis = -1
    if at_own is not None and at_own.logits.shape[-1] != own.shape[-1] and own.ndim > 2:
        class_axis = 1
    kind = output_kind(own, task, class_axis)
    make = spread_around(labels) if task == "regression" else confident(kind, task, class_axis)
    step = TrialStep(subject, site, optimizer, undone, loss_scale)
    captured = step.capture(batch, make)
    if captured is None:
        return None
    probe = TargetProbe(outputs=kind, calls=len(captured.calls))
    probe.rows_used = sum(captured.calls) / max(size_of(batch), 1)
    probe.finite = bool(captured.gradient.isfinite().all())
    if probe.rows_used > 1.001 or not probe.finite:
        return probe
    used, in_order = _labels_used(captured, batch, labels)
    side = side_by_side(captured.logits, used, task, num_classes)
    gradient = side_by_side(captured.gradient, used, task, num_classes)
    if side is None or gradient is None:
        return probe
    z, g = side.logits, gradient.logits
    if task in ("regression", "binary", "multilabel"):
        read_numbers(probe, z[:, 0], g[:, 0], side.labels.to(z), len(used), task)
    else:
        read_classes(probe, z, g, used, batch, task)
        if probe.kind == "cross-entropy" and probe.weights_vary:
            probe.uneven_calls = uneven_calls(probe.sign * g, side.rows, captured.calls)
    if in_order:
        probe.local = is_local(step, batch, labels, task, captured)
    return probe


def _labels_used(
    captured: Captured, batch: Batch, labels: torch.Tensor
) -> tuple[torch.Tensor, bool]:
    """(labels of the rows that the model was given, in its order; is that the batch's?)."""
    order = row_order(batch, captured.given)
    in_order = torch.arange(len(captured.logits))
    if order is None or len(order) != len(in_order) or len(captured.logits) > len(labels):
        return labels[: sum(captured.calls)], True
    return labels[order.to(labels.device)], torch.equal(order, in_order)


def uneven_calls(g: torch.Tensor, rows: torch.Tensor, calls: Sequence[int]) -> float | None:
    """With micro-batches: the largest weight of a position over the smallest, between calls.

    Where each micro-batch is averaged by itself, positions of short ones weigh more.
    g: gradient [P, K] of a cross-entropy; rows: int64 [P]; calls: rows of each call.
    """
    if len(calls) < 2:
        return None
    rows = rows.to(g.device)
    weights, counts, start = [], [], 0
    for size in calls:
        own = g[(rows >= start) & (rows < start + size)]
        active = own.abs().sum(1) > 0
        if bool(active.any()):
            weights.append(float(own[active].amin(1).abs().max()))
            counts.append(int(active.sum()))
        start += size
    if len(set(counts)) < 2:
        return None
    products = [weight * count for weight, count in zip(weights, counts, strict=True)]
    return max(counts) / min(counts) if max(products) / min(products) < 1.25 else None


def is_local(
    step: TrialStep, batch: Batch, labels: torch.Tensor, task: Task, captured: Captured
) -> bool | None:
    """Does the gradient of one half of the rows keep its direction when other labels change?"""
    half = len(labels) // 2
    if half < 2 or captured.calls != [len(labels)] or len(captured.logits) != len(labels):
        return None
    changed = labels.clone()
    if task == "regression":
        changed[half:] += 3 * float(labels.float().std()) + 1
    elif labels.ndim == 1 or task == "multilabel":
        changed[half:] = labels[half:].roll(1, 0)
    else:
        return None
    again_made = iter([captured.logits])
    again = step.capture(with_labels(batch, changed), lambda own: next(again_made))
    if again is None or again.gradient.shape != captured.gradient.shape:
        return None
    before, after = captured.gradient[:half], again.gradient[:half]
    if not float(before.norm()) or not bool(after.isfinite().all()):
        return None
    return direction(before, after) > 0
