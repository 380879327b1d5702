"""Everything that a run of somebody's training step may change: keep it, put it back, digest it.

The probes run the user's own functions on the user's own objects, because a copy of the model would
not be the one that those functions close over. So whatever they can reach is kept before each run
and put back in place after it: tensors keep their identity.
"""

import copy
import random
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ..probes.fingerprint import state_sha256

REACH = 6
"""How many references away from a user's function its state is looked for."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
LIBRARIES = ("torch", "numpy", "transformers", "accelerate", "peft", "sklearn")
"""Functions of these keep nothing that a training step changes."""
LARGE = 10_000
"""Lists and dicts with more items hold data, not state."""


class World:
    """What can change: a model, an optimizer, generators, and what user functions refer to."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None, roots: list[Any]) -> None:
        self.model = model
        self.found = _Reachable()
        self.found.visit(model, 0)
        if optimizer is not None:
            self.found.visit(optimizer, 0)
        for root in roots:
            self.found.visit(root, 0)

    def keep(self) -> Callable[[], None]:
        """Remember everything; the function returned puts it back, as often as it is called."""
        restorers = [
            *(_keep_module(one) for one in self.found.modules),
            *(_keep_tensor(one) for one in self.found.tensors),
            *(_keep_optimizer(one) for one in self.found.optimizers),
            *(_keep_generator(one) for one in self.found.generators),
            *(_keep_numpy(one) for one in self.found.numpy_generators),
            *(_keep_attributes(one) for one in self.found.objects),
            *(_keep_array(one) for one in self.found.arrays),
            *(_keep_container(one) for one in self.found.containers),
            *(_keep_cell(one) for one in self.found.cells),
            *(_keep_globals(*one) for one in self.found.globals),
            _keep_random_state(),
        ]

        def restore() -> None:
            for restorer in restorers:
                restorer()

        return restore

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
        modules = {
            f"{number}.{name}": [
                module.training,
                [len(getattr(module, hooks)) for hooks in _HOOKS],
                {n: [p.detach(), p.requires_grad, p.grad] for n, p in _own(module._parameters)},
                dict(_own(module._buffers)),
            ]
            for number, one in enumerate(self.found.modules)
            for name, module in one.named_modules()
        }
        optimizers = [
            [
                [{k: v for k, v in group.items() if k != "params"} for group in one.param_groups],
                [
                    one.state[p]
                    for group in one.param_groups
                    for p in group["params"]
                    if p in one.state
                ],
            ]
            for one in self.found.optimizers
        ]
        state = {
            "modules": modules,
            "optimizers": optimizers,
            "generators": [one.get_state() for one in self.found.generators],
            "tensors": [
                [one.detach(), one.grad if one.is_leaf else None] for one in self.found.tensors
            ],
            "torch": torch.get_rng_state(),
            "numpy": _numpy_state(),
            "python": repr(random.getstate()),
            "schedulers": [
                {k: v for k, v in one.__dict__.items() if isinstance(v, PLAIN)}
                for one in self.found.objects
            ],
        }
        return state_sha256(state)

    def digest_of_model(self) -> str:
        """sha256 of the model's weights, buffers and gradients, whatever its mode."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return state_sha256(
            [[name, t.detach(), t.grad if t.is_leaf else None] for name, t in named]
        )

    def of_type(self, kind: type) -> list[Any]:
        """Reachable objects of a class: schedulers, gradient scalers."""
        return [one for one in self.found.objects if isinstance(one, kind)]


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def _numpy_state() -> list[Any]:
    _, keys, *rest = np.random.get_state(legacy=True)
    return [np.asarray(keys).tolist(), *rest]


def _own(named: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, tensor) for name, tensor in named.items() if tensor is not None]


class _Reachable:
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


def _keep_tensor(tensor: torch.Tensor) -> Callable[[], None]:
    content, gradient = tensor.detach().clone(), tensor.grad if tensor.is_leaf else None
    requires_grad, data = tensor.requires_grad, tensor.data
    gradient_content = None if gradient is None else gradient.detach().clone()

    def restore() -> None:
        with torch.no_grad():
            if tensor.data_ptr() != data.data_ptr() or tensor.dtype != data.dtype:
                tensor.data = data
            tensor.detach().copy_(content)
        if not tensor.is_leaf:
            return
        if tensor.requires_grad != requires_grad:
            tensor.requires_grad_(requires_grad)
        if gradient is not None and gradient_content is not None:
            gradient.detach().copy_(gradient_content)
        tensor.grad = gradient

    return restore


def _keep_module(model: nn.Module) -> Callable[[], None]:
    kept: list[tuple[nn.Module, dict[str, Any], dict[str, dict[Any, Any]]]] = []
    for module in model.modules():
        plain = dict(vars(module))
        tables = {name: type(v)(v) for name, v in plain.items() if isinstance(v, dict)}
        kept.append((module, plain, tables))
    tensors = [_keep_tensor(one) for one in {id(t): t for t in _tensors_of(model)}.values()]

    def restore() -> None:
        for module, plain, tables in kept:
            own = vars(module)
            for name in set(own) - set(plain):
                del own[name]
            own.update(plain)
            for name, table in tables.items():
                own[name].clear()
                own[name].update(table)
        for tensor in tensors:
            tensor()

    return restore


def _tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from (v for v in vars(module).values() if isinstance(v, torch.Tensor))


def _keep_optimizer(optimizer: Optimizer) -> Callable[[], None]:
    groups = [
        (group, _copied(group, but="params"), list(group["params"]))
        for group in optimizer.param_groups
    ]
    listed = list(optimizer.param_groups)
    state = {
        parameter: (moments, {k: _copied_value(v) for k, v in moments.items()})
        for parameter, moments in optimizer.state.items()
    }
    plain = dict(vars(optimizer))

    def restore() -> None:
        own = vars(optimizer)
        for name in set(own) - set(plain):
            del own[name]
        own.update(plain)
        optimizer.param_groups[:] = listed
        for group, values, parameters in groups:
            held = group["params"]
            held[:] = parameters
            group.clear()
            group["params"] = held
            group.update({k: _copied_value(v) for k, v in values.items()})
        optimizer.state.clear()
        for parameter, (moments, values) in state.items():
            moments.clear()
            moments.update({k: _copied_value(v) for k, v in values.items()})
            optimizer.state[parameter] = moments

    return restore


def _copied(group: dict[str, Any], but: str) -> dict[str, Any]:
    return {k: _copied_value(v) for k, v in group.items() if k != but}


def _copied_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, list | dict) else value


def _keep_generator(generator: torch.Generator) -> Callable[[], None]:
    state = generator.get_state()
    return lambda: void(generator.set_state(state))


def _keep_numpy(generator: Any) -> Callable[[], None]:
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    if isinstance(generator, np.random.RandomState):
        legacy = generator.get_state()
        return lambda: generator.set_state(legacy)
    kept = copy.deepcopy(generator.bit_generator.state)

    def restore() -> None:
        generator.bit_generator.state = copy.deepcopy(kept)

    return restore


def void(_: object) -> None:
    """For a lambda that must return nothing."""


def _keep_attributes(one: Any) -> Callable[[], None]:
    plain = dict(vars(one))

    def restore() -> None:
        own = vars(one)
        for name in set(own) - set(plain):
            del own[name]
        own.update(plain)

    return restore


def _keep_container(one: Any) -> Callable[[], None]:
    content = one.copy()

    def restore() -> None:
        one.clear()
        (one.update if isinstance(one, dict | set) else one.extend)(content)

    return restore


def _keep_array(one: Any) -> Callable[[], None]:
    content = one.copy()

    def restore() -> None:
        one[...] = content

    return restore


def _keep_cell(cell: Any) -> Callable[[], None]:
    content = cell.cell_contents

    def restore() -> None:
        cell.cell_contents = content

    return restore


def _keep_globals(table: dict[str, Any], name: str) -> Callable[[], None]:
    content = table[name]

    def restore() -> None:
        table[name] = content

    return restore


def _keep_random_state() -> Callable[[], None]:
    python, legacy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(torch_state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return restore
