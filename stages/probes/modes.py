"""Is the model in the right mode: dropout and adapters on while it trains, nothing random while it
is judged?
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ..chat.collator import Batch
from ..models.hub import is_adapter_off
from ..training.step import Autocast, forward
from .evaluating import evaluating


@contextmanager
def watching_dropout(model: nn.Module) -> Iterator[set[str]]:
    """Names of the dropout modules that were called in evaluation mode within the block."""
    dropping = [
        name for name, one in model.named_modules() if isinstance(one, _DropoutNd) and one.p > 0
    ]
    with _watching_calls(model, dropping, lambda module: not module.training) as switched_off:
        yield switched_off


@contextmanager
def watching_adapters(model: nn.Module) -> Iterator[set[str]]:
    """Names of PEFT's layers that were called without their adapters within the block."""
    adapted = [name for name, one in model.named_modules() if hasattr(one, "disable_adapters")]
    with _watching_calls(model, adapted, is_adapter_off) as switched_off:
        yield switched_off


@contextmanager
def _watching_calls(
    model: nn.Module, names: Sequence[str], holds: Callable[[nn.Module], bool]
) -> Iterator[set[str]]:
    """Those of the named modules of which `holds` was true when they were called in the block."""
    found: set[str] = set()

    def saw(name: str) -> Any:
        def hook(module: nn.Module, arguments: Any) -> None:
            if holds(module):
                found.add(name)

        return hook

    with ExitStack() as stack:
        for name in names:
            hook = model.get_submodule(name).register_forward_pre_hook(saw(name))
            stack.callback(hook.remove)
        yield found


@torch.no_grad()
def evaluation_difference(model: nn.Module, batch: Batch, autocast: Autocast) -> float:
    """Largest difference between the logits of two passes over one batch in evaluation mode."""
    with evaluating(model), autocast():
        first, second = (forward(model, batch).float() for _ in range(2))
    return float((first - second).abs().max())
