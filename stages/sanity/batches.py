"""Batches of any form: which part of them are inputs and labels, and the same with others.

They are (x, ..., y), or dicts as Hugging Face models take them. Labels stand last, or below
`labels`; everything else is input.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

IGNORE_INDEX = -100
LABEL_KEYS = ("labels", "label", "targets", "target", "y")
NOT_INPUT = ("attention_mask", "token_type_ids", "position_ids")

Batch = Any


def read_batches(loader: Iterable[Batch], most: int, most_rows: int) -> list[Batch]:
    """The first batches of a loader."""
    batches, rows = [], 0
    for batch in loader:
        batches.append(batch)
        rows += size_of(batch)
        if len(batches) >= most or rows >= most_rows:
            break
    return batches


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
