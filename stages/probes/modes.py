"""Is the model in the right mode: dropout on while it trains, nothing random while it is judged?"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ..chat.collator import Batch
from ..training.step import Autocast, forward


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode (no dropout, no checkpointing); then every mode as before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def watching_dropout(model: nn.Module) -> Iterator[set[str]]:
    """Names of the dropout modules that were called in evaluation mode within the block."""
    switched_off: set[str] = set()

    def saw(name: str) -> Any:
        def hook(module: nn.Module, arguments: Any) -> None:
            if not module.training:
                switched_off.add(name)

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, _DropoutNd) and module.p > 0:
                stack.callback(module.register_forward_pre_hook(saw(name)).remove)
        yield switched_off


@torch.no_grad()
def evaluation_difference(model: nn.Module, batch: Batch, autocast: Autocast) -> float:
    """Largest difference between the logits of two passes over one batch in evaluation mode."""
    with evaluating(model), autocast():
        first, second = (forward(model, batch).float() for _ in range(2))
    return float((first - second).abs().max())
