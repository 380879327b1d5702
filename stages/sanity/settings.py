"""What can be read off model and optimizer without running them?"""

import fnmatch
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = ("LayerNorm", "RMSNorm", "GroupNorm")
NEVER_LEARNED = ("pooler",)
"""Parts of Hugging Face models that a task may leave unused."""


@dataclass
class Coverage:
    """Names of parameters. foreign: how many the optimizer holds that are not the model's."""

    trainable: int = 0
    not_in_optimizer: list[str] = field(default_factory=list)
    foreign: int = 0
    twice: list[str] = field(default_factory=list)
    frozen_undeclared: list[str] = field(default_factory=list)
    trained_though_declared: list[str] = field(default_factory=list)
    frozen_share: float = 0.0
    base_trains: bool = False
    untied: list[str] = field(default_factory=list)
    unregistered: list[str] = field(default_factory=list)


def find_coverage(
    model: nn.Module, optimizer: Optimizer | None, intended_frozen: Iterable[Any], pretrained: bool
) -> Coverage:
    named = dict(model.named_parameters())
    declared = declared_names(model, intended_frozen)
    found = Coverage(trainable=sum(p.requires_grad for p in named.values()))
    if optimizer is not None:
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        own = {id(p): n for n, p in named.items()}
        found.not_in_optimizer = [
            n for n, p in named.items() if p.requires_grad and id(p) not in set(held)
        ]
        found.foreign = sum(one not in own for one in held)
        found.twice = sorted({own[one] for one in held if one in own and held.count(one) > 1})
    frozen = [n for n, p in named.items() if not p.requires_grad]
    total = sum(p.numel() for p in named.values())
    found.frozen_share = sum(named[n].numel() for n in frozen) / max(total, 1)
    adapters = [n for n in named if "lora_" in n]
    undeclared = [n for n in frozen if n not in declared]
    if not adapters:
        found.frozen_undeclared = _unexpected(model, undeclared, pretrained, bool(declared))
    else:
        base = [n for n in named if "lora_" not in n and named[n].ndim >= 2]
        found.base_trains = sum(named[n].requires_grad for n in base) > len(base) / 2
    meant = [n for n in declared if "lora_" not in n]
    trains = [n for n in meant if named[n].requires_grad]
    # a prefix may take in a head that trains: what is meant is its larger part
    found.trained_though_declared = trains if len(trains) > len(meant) / 2 else []
    found.untied = _untied(model)
    found.unregistered = _unregistered(model)
    return found


def declared_names(model: nn.Module, intended_frozen: Iterable[Any]) -> list[str]:
    """Names of parameters that `intended_frozen` means: names, prefixes, patterns, objects."""
    wanted = [intended_frozen] if isinstance(intended_frozen, str) else list(intended_frozen)
    objects = {
        id(p)
        for one in wanted
        for p in (one.parameters() if isinstance(one, nn.Module) else [one])
        if isinstance(one, nn.Module | nn.Parameter)
    }
    texts = [one for one in wanted if isinstance(one, str)]

    def means(text: str, name: str) -> bool:
        plain = text.rstrip(".*")
        return (
            fnmatch.fnmatchcase(name, text)
            or name == plain
            or name.startswith(plain)
            or f".{plain}." in f".{name}"
        )

    return [
        name
        for name, parameter in model.named_parameters()
        if id(parameter) in objects or any(means(text, name) for text in texts)
    ]


def _unexpected(
    model: nn.Module, undeclared: list[str], pretrained: bool, declared: bool
) -> list[str]:
    """Frozen parameters that nobody would freeze: an embedding, or a pretrained body, may be."""
    if not undeclared:
        return []
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    named = dict(model.named_parameters())
    counted = [n for n in undeclared if id(named[n]) not in tables and _computes(model, n)]
    if pretrained and not declared:
        last = last_matrix(model)
        head_frozen = last is not None and not last.weight.requires_grad
        return counted if head_frozen else []
    return counted


def _computes(model: nn.Module, name: str) -> bool:
    """Does the parameter belong to a module of torch's or another with weights, not a constant?"""
    return name.rpartition(".")[2].startswith(("weight", "bias", "in_proj"))


def last_matrix(model: nn.Module) -> Any:
    """The last module with a matrix, in the order of definition: usually the head."""
    found = [m for m in model.modules() if isinstance(m, MATRICES)]
    return found[-1] if found else None


def _unregistered(model: nn.Module) -> list[str]:
    """Layers that train and stand in plain lists or dicts of a module, where torch sees none."""
    registered = {id(p) for p in model.parameters()}
    found = []
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_"):
                continue
            held = value.values() if isinstance(value, dict) else value
            if not isinstance(value, list | tuple | dict):
                continue
            for one in held:
                parameters = one.parameters() if isinstance(one, nn.Module) else ()
                if any(p.requires_grad and id(p) not in registered for p in parameters):
                    found.append(f"{name}.{attribute}".lstrip("."))
                    break
    return found


def _untied(model: nn.Module) -> list[str]:
    """Pairs that hold the same numbers twice and were meant to be one, or are said to be."""
    matrices = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.ndim == 2}
    tables = {
        f"{n}.weight": m.weight for n, m in model.named_modules() if isinstance(m, nn.Embedding)
    }
    heads = {
        f"{n}.weight": m.weight
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear) and f"{n}.weight" in matrices
    }
    found = []
    for table_name, table in tables.items():
        for head_name, head in heads.items():
            apart = head.shape == table.shape and head.data_ptr() != table.data_ptr()
            if apart and bool(head.any()) and bool((head == table).all()):
                found.append(f"{table_name} and {head_name}")
    config = getattr(model, "config", None)
    if getattr(config, "tie_word_embeddings", False) and hasattr(model, "get_output_embeddings"):
        head, table = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
        if head is not None and head.weight is not table.weight and not found:
            found.append("input and output embeddings, which the configuration ties")
    return found


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
    for name, module in model.named_modules():
        p = getattr(module, "p", None) if "drop" in type(module).__name__.lower() else None
        if not isinstance(p, int | float) and isinstance(
            module, nn.MultiheadAttention | nn.RNNBase
        ):
            p = module.dropout
        if isinstance(p, int | float) and p > limits["sanity.max_dropout"]:
            found.dropout.append(f"{name}: p = {p}")
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
