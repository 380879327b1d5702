"""Wiring that is broken in place, by hooks on whatever model the run builds.

It is broken at the output of a block (the longest list of like modules), at the logits of a model
that has none. So it is the same fault in the tiny models and in transformers'.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from ..models.tiny_gpt import Block
from ..probes.observe import RECTIFYING
from ..probes.outputs import with_logits
from ..probes.superposition import feed_forwards
from .fault import DoesNotApply

Operation = Callable[[torch.Tensor], torch.Tensor]
"""Of hidden states, float [B, T, D], or logits [B, T, V]."""
Breaks = Callable[[nn.Module], None]
"""Breaks a model in place."""


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a model, its longest list of modules of one type; empty where there is none."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
    alike = [list(one) for one in lists if len({type(module) for module in one}) == 1]
    return max(alike, key=len, default=[])


def change_hidden(operation: Operation, block: int = 0) -> Breaks:
    """The output of a block passes through `operation`."""

    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return operation(output)
        if hasattr(output, "logits"):
            return with_logits(output, operation(output.logits))
        return (operation(output[0]), *output[1:])

    def breaks(model: nn.Module) -> None:
        found = find_blocks(model)
        (found[block] if found else model).register_forward_hook(hook)

    return breaks


def other_positions(change: Operation) -> Breaks:
    """The model takes other position ids, int64 [B, T], than it is given."""

    def breaks(model: nn.Module) -> None:
        forward = model.forward

        @wraps(forward)
        def misled(*, input_ids: torch.Tensor, **inputs: Any) -> Any:
            counted = torch.arange(input_ids.shape[1], device=input_ids.device)
            places = change(counted.expand(input_ids.shape))
            return forward(input_ids=input_ids, **{**inputs, "position_ids": places})

        model.forward = misled

    return breaks


def see_next(x: torch.Tensor) -> torch.Tensor:
    return x + 0.1 * pad(x[:, 1:], (0, 0, 0, 1))


def view_heads(x: torch.Tensor) -> torch.Tensor:
    """Two heads taken apart by a view where a transpose belongs."""
    rows, length, features = x.shape
    heads = x.reshape(rows, 2, length, features // 2)
    return heads.transpose(1, 2).reshape(x.shape)


def without_grad(model: nn.Module) -> None:
    found = find_blocks(model)
    if not found:
        raise DoesNotApply("the model has no list of blocks")
    forward = found[-1].forward

    def detached(*arguments: Any, **named: Any) -> Any:
        with torch.no_grad():
            return forward(*arguments, **named)

    found[-1].forward = detached


def add_unused(model: nn.Module) -> None:
    device = next(model.parameters()).device
    model.add_module("never_called", nn.Linear(4, 4, device=device))


def squash(model: nn.Module) -> None:
    model.add_module("squash", nn.Sigmoid())
    change_hidden(lambda x: model.get_submodule("squash")(100 * (x + 1)))(model)


def kill_units(model: nn.Module) -> None:
    rectifying = [m for m in model.modules() if any(w in type(m).__name__ for w in RECTIFYING)]
    if not rectifying:
        raise DoesNotApply("no module of the model rectifies")
    for module in rectifying:
        module.register_forward_pre_hook(lambda _, inputs: (inputs[0] - 1000,))


def drop_activations(model: nn.Module) -> None:
    """Of feed-forward networks with two layers: with a gate they still multiply."""
    dropped = False
    for _, network in feed_forwards(model):
        if sum(isinstance(one, nn.Linear) for one in network.modules()) > 2:
            continue
        for name, module in list(network.named_children()):
            if any(word in type(module).__name__ for word in RECTIFYING):
                setattr(network, name, nn.Identity())
                dropped = True
    if not dropped:
        raise DoesNotApply("no feed-forward network without a gate has a module as activation")


def drop_norms(model: nn.Module) -> None:
    found = [
        (module, name)
        for module in model.modules()
        for name, child in module.named_children()
        if "Norm" in type(child).__name__
    ]
    if not found:
        raise DoesNotApply("the model has no norms")
    for module, name in found:
        setattr(module, name, nn.Identity())


def drop_residuals(model: nn.Module) -> None:
    """Of tiny_gpt's blocks: those of other models cannot be taken apart from outside."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise DoesNotApply("only the blocks of tiny_gpt can be taken apart")

    def without_residuals(block: Block) -> Any:
        def forward(x: torch.Tensor, *context: Any) -> torch.Tensor:
            x = block.attention(block.attention_norm(x), *context)
            changed: torch.Tensor = block.mlp(block.mlp_norm(x))
            return changed

        return forward

    for block in blocks:
        block.forward = without_residuals(block)  # type: ignore[method-assign]


def cut_input_gradients(model: nn.Module) -> None:
    """transformers lets the inputs of a checkpointed model require gradients; this one does not."""
    modules: list[Any] = [*model.modules()]
    for module in modules:
        if hasattr(module, "enable_input_require_grads"):
            module.enable_input_require_grads = lambda: None
