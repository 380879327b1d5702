"""What can a user's functions reach that a run of them may change?"""

import random
import types
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

REACH = 6
"""How many references away from a user's function its state is looked for."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
LIBRARIES = ("torch", "numpy", "transformers", "accelerate", "peft", "sklearn")
"""Functions of these keep nothing that a training step changes."""
LARGE = 10_000
"""Lists and dicts with more items hold data, not state."""


class Reachable:
    """Walks references from user functions to what may change; data sets are left alone."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.tensors: list[torch.Tensor] = []
        self.optimizers: list[Optimizer] = []
        self.generators: list[torch.Generator] = []
        self.numpy_generators: list[Any] = []
        self.objects: list[Any] = []
        self.containers: list[Any] = []
        self.arrays: list[Any] = []
        self.cells: list[Any] = []
        self.globals: list[tuple[dict[str, Any], str]] = []
        self._seen: set[int] = set()

    def visit(self, one: Any, depth: int) -> None:
        if depth > REACH or isinstance(one, PLAIN) or id(one) in self._seen:
            return
        self._seen.add(id(one))
        deeper = depth + 1
        match one:
            case nn.Module():
                self._visit_module(one)
            case torch.Tensor():
                self.tensors.append(one)
            case Optimizer():
                self.optimizers.append(one)
                for group in one.param_groups:
                    for parameter in group["params"]:
                        self.visit(parameter, deeper)
            case torch.Generator():
                self.generators.append(one)
            case np.random.Generator() | np.random.RandomState() | random.Random():
                self.numpy_generators.append(one)
            case types.FunctionType():
                if (one.__module__ or "").split(".")[0] not in LIBRARIES:
                    self._visit_function(one, deeper)
            case types.MethodType():
                self.visit(one.__self__, deeper)
                self.visit(one.__func__, deeper)
            case torch.utils.data.DataLoader():
                self.visit(one.generator, deeper)
                for sampler in (one.sampler, one.batch_sampler):
                    if sampler is not None:
                        self._visit_object(sampler, deeper)
            case torch.utils.data.Dataset():
                pass
            case dict() | list() | set() | deque():
                if len(one) < LARGE:
                    self.containers.append(one)
                    for item in list(one.values() if isinstance(one, dict) else one):
                        self.visit(item, deeper)
            case np.ndarray():
                if one.size < LARGE and one.flags.writeable:
                    self.arrays.append(one)
            case tuple():
                for item in one[:LARGE]:
                    self.visit(item, deeper)
            case type() | types.ModuleType() | types.BuiltinFunctionType():
                pass
            case _:
                self._visit_object(one, deeper)

    def _visit_object(self, one: Any, depth: int) -> None:
        if callable(getattr(one, "func", None)):  # functools.partial
            for part in (one.func, getattr(one, "args", ()), getattr(one, "keywords", {})):
                self.visit(part, depth)
        if not hasattr(one, "__dict__"):
            return
        self.objects.append(one)
        for item in list(vars(one).values()):
            self.visit(item, depth)
        if callable(one):
            self.visit(type(one).__call__, depth)

    def _visit_module(self, one: nn.Module) -> None:
        if any(one is known or one in set(known.modules()) for known in self.modules):
            return
        self.modules.append(one)
        for tensor in (*one.parameters(), *one.buffers()):
            self._seen.add(id(tensor))

    def _visit_function(self, one: types.FunctionType, depth: int) -> None:
        for cell in one.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                continue  # not filled yet
            self.cells.append(cell)
            self.visit(content, depth)
        for item in (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()):
            self.visit(item, depth)
        for name in _global_names(one.__code__):
            if name in one.__globals__:
                content = one.__globals__[name]
                if not isinstance(content, types.ModuleType | type):
                    self.globals.append((one.__globals__, name))
                    self.visit(content, depth)


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
