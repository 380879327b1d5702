"""A model in another mode for a while, and every module of it in its own again afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def keeping_modes(model: nn.Module) -> Iterator[None]:
    """Whatever the block does to the modes of the model's modules, they are then as before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode (no dropout, no checkpointing); then every mode as before."""
    with keeping_modes(model):
        model.eval()
        yield
