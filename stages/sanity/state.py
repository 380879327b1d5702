"""Everything that a run of somebody's training step may change: keep it, put it back, digest it.

The probes run the user's own functions on the user's own objects, because a copy of the model would
not be the one that those functions close over. So whatever they can reach is kept before each run
and put back in place after it: tensors keep their identity.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..probes.fingerprint import state_sha256
from .digest import digest
from .keeping import keep
from .reachable import Reachable


class World:
    """What can change: a model, an optimizer, generators, and what user functions refer to."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None, roots: list[Any]) -> None:
        self.model = model
        self.found = Reachable()
        self.found.visit(model, 0)
        if optimizer is not None:
            self.found.visit(optimizer, 0)
        for root in roots:
            self.found.visit(root, 0)

    def keep(self) -> Callable[[], None]:
        """Remember everything; the function returned puts it back, as often as it is called."""
        return keep(self.found)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Run a block; afterwards all is as it was before."""
        restore = self.keep()
        try:
            yield
        finally:
            restore()

    def digest(self) -> str:
        """sha256 of weights, buffers, gradients, modes, hooks, optimizers and generators."""
        return digest(self.found)

    def digest_of_model(self) -> str:
        """sha256 of the model's weights, buffers and gradients, whatever its mode."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return state_sha256(
            [[name, t.detach(), t.grad if t.is_leaf else None] for name, t in named]
        )

    def of_type(self, kind: type) -> list[Any]:
        """Reachable objects of a class: schedulers, gradient scalers."""
        return [one for one in self.found.objects if isinstance(one, kind)]
