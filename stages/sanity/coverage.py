"""Which parameters train, which does the optimizer hold, and is that what was meant?"""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .matrices import last_matrix


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
