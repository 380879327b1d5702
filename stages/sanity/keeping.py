"""Keep what can be reached and put it back in place: tensors and containers stay what they are."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from .reachable import Reachable

Restore = Callable[[], object]


def keep(found: Reachable) -> Callable[[], None]:
    """Remember everything; the function returned puts it back, as often as it is called."""
    restorers: list[Restore] = [
        *(_keep_module(one) for one in found.modules),
        *(_keep_tensor(one) for one in found.tensors),
        *(_keep_optimizer(one) for one in found.optimizers),
        *(_keep_generator(one) for one in found.generators),
        *(_keep_numpy(one) for one in found.numpy_generators),
        *(_keep_attributes(one) for one in found.objects),
        *(_keep_array(one) for one in found.arrays),
        *(_keep_container(one) for one in found.containers),
        *(_keep_cell(one) for one in found.cells),
        *(_keep_global(*one) for one in found.globals),
        _keep_random_state(),
    ]

    def restore() -> None:
        for restorer in restorers:
            restorer()

    return restore


def _keep_tensor(tensor: torch.Tensor) -> Restore:
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


def _keep_module(model: nn.Module) -> Restore:
    kept: list[tuple[nn.Module, dict[str, Any], dict[str, dict[Any, Any]]]] = []
    for module in model.modules():
        plain = dict(vars(module))
        tables = {name: type(v)(v) for name, v in plain.items() if isinstance(v, dict)}
        kept.append((module, plain, tables))
    tensors = [_keep_tensor(one) for one in {id(t): t for t in _tensors_of(model)}.values()]

    def restore() -> None:
        for module, plain, tables in kept:
            _put_back(vars(module), plain)
            for name, table in tables.items():
                vars(module)[name].clear()
                vars(module)[name].update(table)
        for tensor in tensors:
            tensor()

    return restore


def _tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from (v for v in vars(module).values() if isinstance(v, torch.Tensor))


def _keep_optimizer(optimizer: Optimizer) -> Restore:
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
        _put_back(vars(optimizer), plain)
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


def _keep_generator(generator: torch.Generator) -> Restore:
    state = generator.get_state()
    return lambda: generator.set_state(state)


def _keep_numpy(generator: Any) -> Restore:
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


def _keep_attributes(one: Any) -> Restore:
    plain = dict(vars(one))
    return lambda: _put_back(vars(one), plain)


def _put_back(attributes: dict[str, Any], kept: dict[str, Any]) -> None:
    for name in set(attributes) - set(kept):
        del attributes[name]
    attributes.update(kept)


def _keep_container(one: Any) -> Restore:
    content = one.copy()

    def restore() -> None:
        one.clear()
        (one.update if isinstance(one, dict | set) else one.extend)(content)

    return restore


def _keep_array(one: Any) -> Restore:
    content = one.copy()

    def restore() -> None:
        one[...] = content

    return restore


def _keep_cell(cell: Any) -> Restore:
    content = cell.cell_contents

    def restore() -> None:
        cell.cell_contents = content

    return restore


def _keep_global(table: dict[str, Any], name: str) -> Restore:
    content = table[name]

    def restore() -> None:
        table[name] = content

    return restore


def _keep_random_state() -> Restore:
    python, legacy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(torch_state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    return restore
