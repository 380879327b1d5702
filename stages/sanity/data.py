"""Are the batches fit to be learned from? Read from what the loaders give, without the model."""

import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .batches import IGNORE_INDEX, Batch, input_of, is_integer, labels_of
from .rows import collect_rows, comes_sorted, conflicting_share
from .tasks import Task

LONG_ENOUGH = 8
"""Rows with fewer numbers or tokens than this repeat by chance."""


@dataclass
class DataAudit:
    """Counts and shares over the batches that were read.

    Every list names what was found; a share is of rows. duplicates: those that repeat one row.
    """

    rows: int = 0
    non_finite: int = 0
    constant: bool = False
    mean_abs: float | None = None
    largest: float | None = None
    target_rms: float | None = None
    labels_non_finite: int = 0
    out_of_range: list[float] = field(default_factory=list)
    label_kinds: int | None = None
    majority: float | None = None
    masked_rows: int = 0
    duplicates: float = 0.0
    conflicts: float = 0.0
    sorted_labels: bool | None = None
    leaking_feature: str | None = None
    mask_inverted: bool = False
    supervised_padding: int = 0
    masked_stops: bool = False


def audit_data(
    batches: list[Batch], task: Task | None, classes: int | None, config: Any, probabilities: bool
) -> DataAudit:
    """Audit the training batches.

    classes: the fewer of what model and caller know; config: the model's own; probabilities: the
    loss takes the labels for such, and has no least value where one lies below 0 or above 1.
    """
    found = DataAudit()
    inputs = [x for batch in batches if (x := input_of(batch)) is not None]
    labels = [y for batch in batches if (y := labels_of(batch)) is not None]
    rows = collect_rows(batches)
    found.rows = len(rows.digests)
    if not inputs:
        return found
    _audit_inputs(found, inputs)
    if labels:
        _audit_labels(found, labels, task, classes)
    if labels and probabilities:
        known = torch.cat([y.flatten() for y in labels]).tolist()
        found.out_of_range = sorted({label for label in known if not 0 <= label <= 1})
    numbers = inputs[0].is_floating_point()
    long = inputs[0][0].numel() >= LONG_ENOUGH
    if long and rows.digests:
        ((_, most),) = Counter(rows.digests).most_common(1)
        found.duplicates = (most - 1) / len(rows.digests)
        found.conflicts = conflicting_share(rows)
    if task in ("classification", "binary") and rows.labels and None not in rows.labels:
        found.sorted_labels = comes_sorted(rows)
    if numbers and task in ("classification", "binary", "regression"):
        found.leaking_feature = find_leak(inputs, labels)
    _audit_masks(found, batches, config)
    return found


def _audit_inputs(found: DataAudit, inputs: list[torch.Tensor]) -> None:
    if not inputs[0].is_floating_point():
        first = inputs[0].reshape(len(inputs[0]), -1)
        found.constant = found.rows > 1 and all(
            x.shape[1:] == inputs[0].shape[1:] and bool((x == first[0].reshape(x[0].shape)).all())
            for x in inputs
        )
        return
    found.non_finite = sum(int((~x.isfinite()).sum()) for x in inputs)
    flat = torch.cat([x.detach().float().flatten() for x in inputs])
    flat = flat[flat.isfinite()]
    if len(flat):
        found.mean_abs, found.largest = float(flat.abs().mean()), float(flat.abs().max())
    found.constant = found.rows > 1 and all(
        x.shape[1:] == inputs[0].shape[1:] and bool((x == inputs[0][:1]).all()) for x in inputs
    )


def _audit_labels(
    found: DataAudit, labels: list[torch.Tensor], task: Task | None, classes: int | None
) -> None:
    if labels[0].is_floating_point():
        found.labels_non_finite = sum(int((~y.isfinite()).sum()) for y in labels)
        if task == "regression":
            flat = torch.cat([y.float().flatten() for y in labels])
            found.target_rms = float(flat.square().mean().sqrt())
            found.label_kinds = len(torch.unique(flat))
        if task == "binary":
            _count_classes(found, torch.cat([y.flatten() for y in labels]))
        return
    flat = torch.cat([y.flatten() for y in labels])
    if labels[0].ndim > 1:
        found.masked_rows = sum(
            int((y == IGNORE_INDEX).reshape(len(y), -1).all(1).sum()) for y in labels
        )
    known = flat[flat != IGNORE_INDEX]
    if not len(known):
        found.label_kinds = 0
        return
    counts = _count_classes(found, known)
    if task in ("classification", "tagging", "lm") and classes is not None and classes > 1:
        found.out_of_range = sorted(c for c in counts if not 0 <= c < classes)


def _count_classes(found: DataAudit, labels: torch.Tensor) -> Counter[int]:
    counts = Counter(labels.tolist())
    found.label_kinds = len(counts)
    found.majority = max(counts.values()) / len(labels)
    return counts


def find_leak(inputs: list[torch.Tensor], labels: list[torch.Tensor]) -> str | None:
    """The feature that is the label itself, up to scale."""
    if not labels or inputs[0].ndim != 2 or inputs[0].shape[1] < 4:
        return None
    x = torch.cat([one.detach().double() for one in inputs])
    y = torch.cat([one.detach().double().reshape(len(one), -1)[:, 0] for one in labels])
    if len(x) != len(y) or len(x) < 50:
        return None
    x, y = x - x.mean(0), y - y.mean()
    sizes = x.norm(dim=0) * y.norm()
    correlation = (x * y[:, None]).sum(0).abs() / sizes.clamp_min(1e-12)
    worst = int(correlation.argmax())
    return f"feature {worst}" if float(correlation[worst]) > 0.9999 else None


def _audit_masks(found: DataAudit, batches: list[Batch], config: Any) -> None:
    stop = getattr(config, "eos_token_id", None)
    stop_seen = stop_supervised = others = False
    for batch in batches:
        if not isinstance(batch, Mapping) or "attention_mask" not in batch:
            continue
        mask, given, labels = batch["attention_mask"], input_of(batch), labels_of(batch)
        if given is None or mask.shape != given.shape or not is_integer(given):
            continue
        off = mask == 0
        if bool(off.any()) and bool((~off).any()):
            masked, kept = given[off], given[~off]
            found.mask_inverted |= len(torch.unique(kept)) == 1 < len(torch.unique(masked))
        if labels is not None and labels.shape == given.shape:
            found.supervised_padding += int((off & (labels != IGNORE_INDEX)).sum())
            if isinstance(stop, int):
                stops = (given == stop) & ~off
                last = stops & (torch.arange(given.shape[1]) == mask.sum(1, keepdim=True) - 1)
                stop_seen |= bool(last.any())
                stop_supervised |= bool((stops & (labels == stop)).any())
                others |= bool((labels != IGNORE_INDEX).any())
    found.masked_stops = stop_seen and others and not stop_supervised


def workers_repeat(loader: Any) -> bool | None:
    """Do two workers of a DataLoader begin with the same random numbers?

    Their seeds differ by the worker's number; what `worker_init_fn` does is tried here, in this
    process. The caller restores the generators. None without workers.
    """
    start = getattr(loader, "worker_init_fn", None)
    if not getattr(loader, "num_workers", 0) or start is None:
        return None
    drawn: list[tuple[bytes, float]] = []
    for worker in (0, 1):
        seed = 1234 + worker
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        with suppress(Exception):
            start(worker)
        drawn.append((np.random.random(4).tobytes(), random.random()))
    return drawn[0][0] == drawn[1][0] or drawn[0][1] == drawn[1][1]
