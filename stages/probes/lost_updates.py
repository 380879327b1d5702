"""How much of an update gets lost? Gradients that are 0, and weights that an update leaves alone.

In float16 a small gradient becomes 0 before any optimizer sees it; in weights of half precision a
small update is rounded away after it. Both leave the loss curve looking sound.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer


@dataclass
class UpdateCount:
    """Elements of trainable parameters over all calls of an optimizer at a rate above 0.

    zero_gradient: of `elements`, those whose gradient is exactly 0; unmoved: those with another
    gradient that the update leaves as they were, to the bit.
    """

    elements: int = 0
    zero_gradient: int = 0
    unmoved: int = 0

    @property
    def zero_share(self) -> float | None:
        return self.zero_gradient / self.elements if self.elements else None

    @property
    def unmoved_share(self) -> float | None:
        """Of the elements with a gradient."""
        pushed = self.elements - self.zero_gradient
        return self.unmoved / pushed if pushed else None


@contextmanager
def counting_updates(optimizer: Optimizer) -> Iterator[UpdateCount]:
    """Count in every call of `optimizer` within the block."""
    count = UpdateCount()
    before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def about_to_update(optimizer: Optimizer, *_: Any) -> None:
        before.clear()
        for group in optimizer.param_groups:
            if group["lr"] > 0:
                before.extend(
                    (p, p.detach().clone(), p.grad != 0)
                    for p in group["params"]
                    if p.grad is not None
                )

    def updated(*_: Any) -> None:
        for parameter, value, pushed in before:
            count.elements += parameter.numel()
            count.zero_gradient += parameter.numel() - int(pushed.sum())
            count.unmoved += int((pushed & (parameter.detach() == value)).sum())
        before.clear()

    hooks = (
        optimizer.register_step_pre_hook(about_to_update),
        optimizer.register_step_post_hook(updated),
    )
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()
