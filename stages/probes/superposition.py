"""Does a feed-forward network compute more than one matrix could?

Without its activation it is affine: m(a) + m(b) = 2 m((a + b) / 2). Such a model still learns a few
rows by heart, for attention is not affine; it merely wastes its widest layers.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from ..chat.collator import Batch
from ..training.step import Autocast, forward
from .evaluating import evaluating

SIZES = (10.0, 1e4)
"""Root-mean-squares that inputs are brought to: near 0 a smooth activation is almost a line."""
ROUNDING = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.03}
"""Relative error of superposition up to which a network is affine, by the dtype of its weights.
Measured over eight model families: 4e-7 without an activation in float32, above 0.4 with it."""
TINY = 1e-30


def feed_forwards(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules of linear layers alone: one widens D features, and a later one narrows them to D.

    The other way round, low-rank adapters are affine on purpose.
    """
    for name, module in model.named_modules():
        layers = [one for one in module.modules() if next(one.parameters(False), None) is not None]
        sizes = [_sizes(layer) for layer in layers]
        inside = [size for size in sizes if size is not None]
        returns = [
            (out, d) in inside[place:] for place, (d, out) in enumerate(inside, 1) if out > d
        ]
        if len(inside) == len(sizes) and any(returns):
            yield name, module


def _sizes(module: nn.Module) -> tuple[int, int] | None:
    """(features in, features out) of a linear layer, transformers' Conv1D included."""
    into, out = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if type(module).__name__ == "Conv1D":
        into, out = getattr(module, "nx", None), getattr(module, "nf", None)
    return (into, out) if isinstance(into, int) and isinstance(out, int) else None


@torch.no_grad()
def find_affine(model: nn.Module, batch: Batch, autocast: Autocast) -> tuple[list[str], int]:
    """(names of the feed-forward networks that are affine, how many were tried).

    Tried are those that take one tensor, float [..., D], and return one of the same shape:
    attention that widens its heads takes more, or is not affine.
    """
    inputs: dict[str, torch.Tensor] = {}

    def saw(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if len(arguments) == 1 and not named and isinstance(arguments[0], torch.Tensor):
                inputs[name] = arguments[0]

        return hook

    found, tried = [], 0
    with evaluating(model):
        with ExitStack() as stack, autocast():
            for name, module in feed_forwards(model):
                handle = module.register_forward_pre_hook(saw(name), with_kwargs=True)
                stack.callback(handle.remove)
            forward(model, batch)
        for name, x in inputs.items():
            module = model.get_submodule(name)
            answers = [_is_affine(module, x, size) for size in SIZES]
            tried += None not in answers
            if all(answers):
                found.append(name)
    return found, tried


def _is_affine(module: nn.Module, x: torch.Tensor, size: float) -> bool | None:
    """None where the module returns something else than its input's shape, or nothing but zeros."""
    weights = next(module.parameters()).dtype
    scale = size / float(x.float().square().mean().sqrt().clamp(min=TINY))
    one = (x * scale).to(weights if weights in ROUNDING else x.dtype)
    other = one.flip(-1)
    outputs = [module(given) for given in (one, other, (one + other) / 2)]
    if any(not isinstance(y, torch.Tensor) or y.shape != x.shape for y in outputs):
        return None
    first, second, middle = (y.float() for y in outputs)
    distance = float((first - second).norm())
    if not distance:
        return None
    error = float((first + second - 2 * middle).norm()) / distance
    return error < ROUNDING.get(outputs[0].dtype, 0.0)
