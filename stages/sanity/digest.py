"""One sha256 of everything that a run of somebody's functions may change."""

import random
from typing import Any

import numpy as np
import torch

from ..probes.fingerprint import state_sha256
from .reachable import PLAIN, Reachable

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def digest(found: Reachable) -> str:
    """sha256 of weights, buffers, gradients, modes, hooks, optimizers and generators."""
    modules = {
        f"{number}.{name}": [
            module.training,
            [len(getattr(module, hooks)) for hooks in HOOKS],
            {n: [p.detach(), p.requires_grad, p.grad] for n, p in _own(module._parameters)},
            dict(_own(module._buffers)),
        ]
        for number, one in enumerate(found.modules)
        for name, module in one.named_modules()
    }
    optimizers = [
        [
            [{k: v for k, v in group.items() if k != "params"} for group in one.param_groups],
            [one.state[p] for group in one.param_groups for p in group["params"] if p in one.state],
        ]
        for one in found.optimizers
    ]
    state = {
        "modules": modules,
        "optimizers": optimizers,
        "generators": [one.get_state() for one in found.generators],
        "tensors": [[one.detach(), one.grad if one.is_leaf else None] for one in found.tensors],
        "torch": torch.get_rng_state(),
        "numpy": _numpy_state(),
        "python": repr(random.getstate()),
        "schedulers": [
            {k: v for k, v in one.__dict__.items() if isinstance(v, PLAIN)} for one in found.objects
        ],
    }
    return state_sha256(state)


def _numpy_state() -> list[Any]:
    _, keys, *rest = np.random.get_state(legacy=True)
    return [np.asarray(keys).tolist(), *rest]


def _own(named: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, tensor) for name, tensor in named.items() if tensor is not None]
