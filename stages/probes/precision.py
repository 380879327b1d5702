"""Is the precision that was asked for the one in which the model computes?"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

HALF = (torch.bfloat16, torch.float16)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def watching_dtypes(model: nn.Module) -> Iterator[Counter[torch.dtype]]:
    """How many Linear modules gave an output of each dtype within the block."""
    seen: Counter[torch.dtype] = Counter()

    def saw(module: nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            seen[output.dtype] += 1

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                stack.callback(module.register_forward_hook(saw).remove)
        yield seen


def smallest_half_change(changed: Mapping[str, float], model: nn.Module) -> tuple[float, str]:
    """(smallest share of changed elements, name) over vectors that are kept in half precision.

    Vectors only: every element of a norm's gain or a bias gets a gradient at each step, those of a
    matrix need not. (1.0, "") where there is none.
    """
    shares = {
        name: changed[name]
        for name, parameter in model.named_parameters()
        if name in changed and parameter.ndim == 1 and parameter.dtype in HALF
    }
    name = min(shares, key=shares.__getitem__, default="")
    return shares.get(name, 1.0), name
