"""How do the weights begin: constant, zero, too small, too large, or not loaded?"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .matrices import MATRICES, last_matrix

NORMS = ("LayerNorm", "RMSNorm", "GroupNorm")


@dataclass
class Initial:
    """Names of weights that begin badly.

    constant: matrices of one number, not 0; zero: matrices of zeros, but for heads and adapters;
    zero_gains: normalisations whose gain is 0; small, large: matrices whose size, times the root
    of what they sum over, is out of range; adapters_dead: both LoRA matrices are 0;
    untouched: shares of parts that look as freshly initialised, of a model said to be pretrained.
    """

    constant: list[str] = field(default_factory=list)
    zero: list[str] = field(default_factory=list)
    zero_gains: list[str] = field(default_factory=list)
    small: list[str] = field(default_factory=list)
    large: list[str] = field(default_factory=list)
    adapters_dead: list[str] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)
    untouched_share: float | None = None


def inspect_initial(model: nn.Module, limits: dict[str, float], pretrained: bool) -> Initial:
    found = Initial()
    modules = [(n, m) for n, m in model.named_modules() if isinstance(m, MATRICES)]
    last = last_matrix(model)
    measured = 0
    for name, module in modules:
        weight = module.weight.detach().float()
        if "lora_" in name or weight.numel() < 2:
            continue
        low, high = float(weight.min()), float(weight.max())
        if low == high:
            if low != 0:
                found.constant.append(name)
            elif module is not last:
                found.zero.append(name)
            continue
        if pretrained or module is last:
            continue
        measured += 1
        gain = float(weight.std()) * math.sqrt(weight[0].numel())
        if gain < limits["sanity.min_init_gain"]:
            found.small.append(name)
        elif gain > limits["sanity.max_init_gain"]:
            found.large.append(name)
    for name, module in model.named_modules():
        gain_of = getattr(module, "weight", None)
        normalises = any(word in type(module).__name__ for word in NORMS)
        if normalises and gain_of is not None and not bool(gain_of.any()):
            found.zero_gains.append(name)
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        if "lora_A" in name and not bool(parameter.any()):
            other = named.get(name.replace("lora_A", "lora_B"))
            if other is not None and not bool(other.any()):
                found.adapters_dead.append(name)
    if pretrained:
        found.untouched, found.untouched_share = _untouched(model, last)
    return found


def _untouched(model: nn.Module, last: Any) -> tuple[list[str], float | None]:
    """Modules but the head that still look as their initialisation left them, and their share.

    Signs that no training leaves: a gain of exactly 1 with a shift of exactly 0, running
    statistics that never ran, a bias of exactly 0, numbers spread evenly up to the bound of
    torch's own initialisation.
    """
    fresh, judged = [], 0
    for name, module in model.named_modules():
        if "lora_" in name or module is last:
            continue
        looks = _looks_fresh(module)
        if looks is not None:
            judged += 1
            if looks:
                fresh.append(name)
    return fresh, len(fresh) / judged if judged else None


def _looks_fresh(module: nn.Module) -> bool | None:
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if (
        isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.num_batches_tracked is not None
    ):
        return int(module.num_batches_tracked) == 0
    if "norm" in type(module).__name__.lower() and isinstance(weight, torch.Tensor):
        return bool((weight == 1).all()) and (bias is None or not bool(bias.any()))
    if isinstance(module, nn.Linear | nn.Conv2d | nn.Conv1d):
        if isinstance(bias, torch.Tensor):
            if not bool(bias.any()):
                return True
            bound = 1 / math.sqrt(module.weight[0].numel())
        else:
            return None
        largest = float(module.weight.detach().abs().max())
        spread = float(module.weight.detach().std()) / (bound / math.sqrt(3))
        even = 0.9 < spread < 1.1
        return largest <= bound * (1 + 1e-6) and even and float(bias.detach().abs().max()) <= bound
    return None
