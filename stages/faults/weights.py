"""Weights that are broken in place: how they begin, which of them train, and in which precision."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .fault import DoesNotApply
from .wiring import Breaks


def trainable(model: nn.Module, dimensions: int = 1) -> list[nn.Parameter]:
    """Trainable parameters of at least so many dimensions."""
    return [p for p in model.parameters() if p.requires_grad and p.ndim >= dimensions]


def fill_matrices(fill: Callable[[torch.Tensor], Any]) -> Breaks:
    def breaks(model: nn.Module) -> None:
        for matrix in trainable(model, 2):
            fill(matrix)

    return breaks


def gains_zero(model: nn.Module) -> None:
    gains = [p for p in trainable(model) if p.ndim == 1]
    if not gains:
        raise DoesNotApply("no vector of the model trains")
    for gain in gains:
        gain.zero_()


def hot_head(model: nn.Module) -> None:
    matrices = trainable(model, 2)
    nn.init.normal_(matrices[-1], std=1.0)


def forget(model: nn.Module) -> None:
    """What transformers' initialisation would give."""
    for parameter in model.parameters():
        if parameter.ndim >= 2 and parameter.is_floating_point():
            nn.init.normal_(parameter, std=0.02)


def only_vectors_train(model: nn.Module) -> None:
    if not any(p.ndim == 1 for p in trainable(model)):
        raise DoesNotApply("no vector of the model trains")
    for matrix in trainable(model, 2):
        matrix.requires_grad_(False)


def only_last_trains(model: nn.Module) -> None:
    *others, _ = trainable(model, 2)
    if not others:
        raise DoesNotApply("only one matrix of the model trains")
    for matrix in others:
        matrix.requires_grad_(False)


def first_frozen(model: nn.Module) -> None:
    first, *others = trainable(model, 2)
    if not others:
        raise DoesNotApply("only one matrix of the model trains")
    first.requires_grad_(False)


def cast_to(dtype: torch.dtype) -> Breaks:
    def breaks(model: nn.Module) -> None:
        if not any(p.ndim == 1 for p in trainable(model)):
            raise DoesNotApply("no vector of the model trains")
        model.to(dtype)

    return breaks


def redraw(seed: Callable[[], int]) -> Breaks:
    """Matrices from a generator that the seed of the run does not reach."""

    def breaks(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(seed())
        for matrix in trainable(model, 2):
            matrix.copy_(0.02 * torch.randn(matrix.shape, generator=generator))

    return breaks
