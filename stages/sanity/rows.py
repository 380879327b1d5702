"""Which rows are there: repeated, contradictory, in which order, and in which of two loaders?"""

import hashlib
import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch

from .batches import Batch, input_of, labels_of


@dataclass(frozen=True)
class Rows:
    """The rows of some batches: digests of inputs, and labels as plain values (None: many)."""

    digests: list[str]
    labels: list[Any]


def collect_rows(batches: list[Batch]) -> Rows:
    """Digest every row; a whole batch that comes again (a loader that cycles) is left out."""
    digests: list[str] = []
    labels: list[Any] = []
    known: set[str] = set()
    for batch in batches:
        given, targets = input_of(batch), labels_of(batch)
        if given is None or given.ndim == 0:
            continue
        own = [_digest(row) for row in given.detach().cpu()]
        whole = "".join(own)
        if whole in known:
            continue
        known.add(whole)
        digests += own
        if targets is not None and targets.ndim == 1 and len(targets) == len(own):
            labels += targets.detach().cpu().tolist()
        else:
            rows = [None] * len(own) if targets is None else targets.detach().cpu()
            labels += [None if row is None else _digest(row) for row in rows]
    return Rows(digests, labels)


def _digest(row: torch.Tensor) -> str:
    return hashlib.sha256(row.contiguous().numpy().tobytes()).hexdigest()[:16]


def conflicting_share(rows: Rows) -> float:
    """Share of rows whose input stands elsewhere with another label."""
    by_input: dict[str, set[Any]] = defaultdict(set)
    for digest, label in zip(rows.digests, rows.labels, strict=True):
        by_input[digest].add(label)
    return sum(len(by_input[digest]) > 1 for digest in rows.digests) / len(rows.digests)


def comes_sorted(rows: Rows) -> bool | None:
    """Do labels come in one run a class? None where too few rows or classes can tell."""
    labels = rows.labels
    if len(labels) < 32 or len(set(labels)) < 2:
        return None
    runs = 1 + sum(a != b for a, b in itertools.pairwise(labels))
    return bool(runs <= 2 * len(set(labels)) and runs < len(labels) / 8)


def overlap(train: Rows, held_out: Rows) -> tuple[float, float]:
    """(share of held-out rows that are training rows, share of repeats within training)."""
    known = set(train.digests)
    within = 1 - len(known) / max(len(train.digests), 1)
    shared = sum(digest in known for digest in held_out.digests)
    return shared / max(len(held_out.digests), 1), within
