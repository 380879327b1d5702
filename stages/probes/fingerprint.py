"""Digests of weights and runs: what must be equal to the bit, and where it first is not."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


def tensors_sha256(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Digest of names, dtypes, shapes and bytes."""
    return state_sha256(dict(tensors))


def state_sha256(state: Any) -> str:
    """Digest of what a state_dict() may hold: dicts and lists of tensors and plain values."""
    digest = hashlib.sha256()
    for path, leaf in _leaves(state):
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{path} {leaf.dtype} {tuple(leaf.shape)}\0".encode())
            flat = leaf.detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        else:
            digest.update(f"{path} {leaf!r}\0".encode())
    return digest.hexdigest()


def _leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of all that is no dict and no list; an empty one is a value itself."""
    items: list[tuple[Any, Any]] = []
    if isinstance(state, Mapping):
        items = sorted(state.items(), key=lambda item: str(item[0]))
    elif isinstance(state, list | tuple):
        state = list(state)  # a checkpoint may bring a tuple back as a list
        items = list(enumerate(state))
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else str(key))
    if not items:
        yield path, state


def digests_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Name -> digest of each tensor by itself."""
    return {name: tensors_sha256([(name, tensor)]) for name, tensor in tensors.items()}


def weights_sha256(model: nn.Module) -> str:
    """Digest of all parameters and buffers."""
    return tensors_sha256(sorted(model.state_dict().items()))


def optimizer_sha256(optimizer: Optimizer) -> str:
    """Digest of the optimizer's moments and counters, parameter by parameter."""
    state = optimizer.state_dict()["state"]
    leaves = _leaves(state) if state else ()
    return tensors_sha256((path, torch.as_tensor(value)) for path, value in leaves)


@dataclass(frozen=True)
class RunTrace:
    """What two runs are compared by."""

    losses: Sequence[float]
    grad_norms: Sequence[float]
    weights: str
    optimizer: str


def first_difference(one: RunTrace, other: RunTrace) -> str | None:
    """Where two runs first differ in their bits, or None."""
    steps = zip(one.losses, other.losses, one.grad_norms, other.grad_norms, strict=True)
    for step, (loss, other_loss, norm, other_norm) in enumerate(steps):
        if loss.hex() != other_loss.hex():
            return f"loss of step {step}: {loss!r} and {other_loss!r}"
        if norm.hex() != other_norm.hex():
            return f"gradient norm of step {step}: {norm!r} and {other_norm!r}"
    if one.weights != other.weights:
        return "weights after the last step"
    if one.optimizer != other.optimizer:
        return "optimizer state after the last step"
    return None


def begins_alike(run: RunTrace, other: RunTrace) -> bool:
    """Do the steps of `other`, which may be shorter, have the bits of the first ones of `run`?"""
    steps = zip(run.losses, other.losses, run.grad_norms, other.grad_norms, strict=False)
    return all(
        (loss.hex(), norm.hex()) == (other_loss.hex(), other_norm.hex())
        for loss, other_loss, norm, other_norm in steps
    )


def trainable_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the trainable parameters."""
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def frozen_digests(model: nn.Module) -> dict[str, str]:
    """Digests of what must not change: frozen parameters, and buffers of modules that are frozen.

    A module is frozen when it or, if it has no parameters, what holds it has frozen ones only.
    Digests, not copies: a base model may fill the device.
    """
    state: dict[str, torch.Tensor] = {
        name: parameter
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
    }
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, buffer in model.named_buffers(remove_duplicate=False):
        holders = (modules[holder] for holder in _holders(name))
        parameters = next((own for module in holders if (own := list(module.parameters()))), [])
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            state[name] = buffer
    return digests_of(state)


def changed_names(before: dict[str, str], model: nn.Module) -> list[str]:
    """Names of the tensors whose digest is another than `before`."""
    now = dict(model.named_parameters()) | dict(model.named_buffers(remove_duplicate=False))
    after = digests_of({name: now[name] for name in before})
    return [name for name, digest in before.items() if after[name] != digest]


def _holders(name: str) -> Iterator[str]:
    """Names of the modules around a tensor, from the innermost to the model itself."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def changed_shares(before: dict[str, torch.Tensor], model: nn.Module) -> dict[str, float]:
    """Share of elements that changed since `before`, by name."""
    now = dict(model.named_parameters()) | dict(model.named_buffers(remove_duplicate=False))
    return {name: _changed_share(tensor, now[name].detach()) for name, tensor in before.items()}


def _changed_share(before: torch.Tensor, now: torch.Tensor) -> float:
    if before.numel() == 0:
        return 0.0
    still_nan = before.isnan() & now.isnan()
    return float(((before != now) & ~still_nan).float().mean())
