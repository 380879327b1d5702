"""Where does a number that is not finite begin? In which module, and in which row of a batch."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Origin:
    """A module that got finite numbers and gave others.

    direction: "forward" or "backward"; batch: the forward pass of the model, counted from 0, that
    was the last to begin; row: the first row of that batch concerned, None where the first
    dimension of the tensor is not that of the batch.
    """

    module: str
    kind: str
    direction: str
    batch: int
    row: int | None

    def __str__(self) -> str:
        return f"{self.module or 'the model'} ({self.kind}), {self.direction}"


@contextmanager
def watching_origins(model: nn.Module) -> Iterator[list[Origin]]:
    """Modules at which non-finite numbers begin within the block, in their order."""
    origins: list[Origin] = []
    sizes: list[int] = []

    def counts(module: nn.Module, arguments: Any, inputs: Any) -> None:
        first: torch.Tensor = next(iter((*arguments, *inputs.values())))
        sizes.append(len(first))

    def add(name: str, module: nn.Module, direction: str, bad: torch.Tensor) -> None:
        row = _first_row(bad) if bad.ndim > 1 and len(bad) == sizes[-1] else None
        origins.append(Origin(name, type(module).__name__, direction, len(sizes) - 1, row))

    def saw_forward(name: str) -> Any:
        def hook(module: nn.Module, arguments: Any, inputs: Any, output: Any) -> None:
            given = [*_tensors(arguments), *_tensors(tuple(inputs.values()))]
            if all(map(_is_finite, given)):
                bad = next((t for t in _tensors(output) if not _is_finite(t)), None)
                if bad is not None:
                    add(name, module, "forward", bad)

        return hook

    def saw_backward(name: str) -> Any:
        def hook(module: nn.Module, given: Any, got: Any) -> None:
            finite = all(map(_is_finite, _tensors(got)))
            bad = next((t for t in _tensors(given) if not _is_finite(t)), None)
            if finite and bad is not None:
                add(name, module, "backward", bad)

        return hook

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(counts, with_kwargs=True).remove)
        for name, module in model.named_modules():
            forward = module.register_forward_hook(saw_forward(name), with_kwargs=True)
            stack.callback(forward.remove)
            stack.callback(module.register_full_backward_hook(saw_backward(name)).remove)
        yield origins


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _first_row(tensor: torch.Tensor) -> int:
    return int((~tensor.isfinite()).flatten(1).any(1).nonzero()[0])
