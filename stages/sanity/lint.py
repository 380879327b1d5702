"""Are the settings of optimizer and modules in their range?"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..probes.dropout import dropout_probabilities


@dataclass
class Lint:
    """Settings beyond what trains, each as "name = value"."""

    betas: list[str] = field(default_factory=list)
    eps: list[str] = field(default_factory=list)
    weight_decay: list[str] = field(default_factory=list)
    momentum: list[str] = field(default_factory=list)
    maximize: bool = False
    dropout: list[str] = field(default_factory=list)
    batch_norm: list[str] = field(default_factory=list)
    norm_eps: list[str] = field(default_factory=list)
    half_parameters: int = 0
    low_precision: int = 0


def lint(model: nn.Module, optimizer: Optimizer | None, limits: dict[str, float]) -> Lint:
    """Hold settings against limits (by the name in LIMITS)."""
    found = Lint()
    for number, group in enumerate(optimizer.param_groups if optimizer is not None else []):
        _lint_group(found, number, group, limits)
    found.dropout = [
        f"{name}: p = {p}"
        for name, p in dropout_probabilities(model)
        if p > limits["sanity.max_dropout"]
    ]
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            momentum = module.momentum
            if momentum is not None and not (
                limits["sanity.min_batch_norm_momentum"]
                <= momentum
                <= limits["sanity.max_batch_norm_momentum"]
            ):
                found.batch_norm.append(f"{name}: momentum = {momentum}")
        eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
        norm = "norm" in type(module).__name__.lower()
        if norm and isinstance(eps, float) and eps > limits["sanity.max_norm_eps"]:
            found.norm_eps.append(f"{name}: eps = {eps}")
    trained = [p for p in model.parameters() if p.requires_grad]
    found.half_parameters = sum(p.dtype == torch.float16 for p in trained)
    found.low_precision = sum(p.dtype in (torch.float16, torch.bfloat16) for p in trained)
    return found


def _lint_group(found: Lint, number: int, group: dict[str, Any], limits: dict[str, float]) -> None:
    at = f"group {number}"
    if "betas" in group:
        first, second = (float(beta) for beta in group["betas"][:2])
        if (
            first > second
            or second < limits["sanity.min_beta2"]
            or first > limits["sanity.max_beta1"]
        ):
            found.betas.append(f"{at}: betas = ({first}, {second})")
    eps = group.get("eps")
    if isinstance(eps, float) and (eps > limits["sanity.max_optimizer_eps"] or eps <= 0):
        found.eps.append(f"{at}: eps = {eps}")
    decay = float(group.get("weight_decay") or 0.0)
    if decay > limits["sanity.max_weight_decay"] or decay < 0:
        found.weight_decay.append(f"{at}: weight_decay = {decay}")
    momentum = float(group.get("momentum") or 0.0)
    if momentum > limits["sanity.max_momentum"]:
        found.momentum.append(f"{at}: momentum = {momentum}")
    found.maximize |= bool(group.get("maximize"))
