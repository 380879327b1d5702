"""Models that are wired or initialised wrongly, by hooks on whatever model the run builds.

Wiring is broken at the output of a block (the longest list of like modules), at the logits of a
model that has none. So it is the same fault in the tiny models and in transformers'.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.functional import dropout, pad

from ..config.schema import Checkpointing, HubModel, Params, TinyLoRAModel
from ..models.build import is_pretrained
from ..probes.observe import RECTIFYING
from ..probes.outputs import with_logits
from ..training.setup import Parts
from .fault import (
    Applies,
    DoesNotApply,
    Fault,
    Gate,
    below_adapter,
    everywhere,
    only_in,
    swap,
    train_values,
)

Operation = Callable[[torch.Tensor], torch.Tensor]
"""Of hidden states, float [B, T, D], or logits [B, T, V]."""
Breaks = Callable[[nn.Module], None]
"""Breaks a model in place."""


def _fault(
    name: str,
    numbers: tuple[int, ...],
    checks: tuple[str, ...],
    cause: str,
    breaks: Breaks,
    applies: Applies = everywhere,
    gate: Gate = "gradient_probe",
    missed: str = "",
) -> Fault:
    def broken(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        def builds(*arguments: Any) -> nn.Module:
            model = build(*arguments)
            with torch.no_grad():
                breaks(model)
            return model

        return builds

    plant = swap(build_model=broken)
    return Fault(name, "model", numbers, gate, checks, cause, plant, applies, missed=missed)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a model, its longest list of modules of one type; empty where there is none."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
    alike = [list(one) for one in lists if len({type(module) for module in one}) == 1]
    return max(alike, key=len, default=[])


def _hidden(operation: Operation, block: int = 0) -> Breaks:
    """The output of a block passes through `operation`."""

    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return operation(output)
        if hasattr(output, "logits"):
            return with_logits(output, operation(output.logits))
        return (operation(output[0]), *output[1:])

    def breaks(model: nn.Module) -> None:
        found = find_blocks(model)
        (found[block] if found else model).register_forward_hook(hook)

    return breaks


def _positions(change: Operation) -> Breaks:
    """The model takes other position ids, int64 [B, T], than it is given."""

    def breaks(model: nn.Module) -> None:
        forward = model.forward

        @wraps(forward)
        def misled(*, input_ids: torch.Tensor, **inputs: Any) -> Any:
            counted = torch.arange(input_ids.shape[1], device=input_ids.device)
            places = change(counted.expand(input_ids.shape))
            return forward(input_ids=input_ids, **{**inputs, "position_ids": places})

        model.forward = misled

    return breaks


def _see_next(x: torch.Tensor) -> torch.Tensor:
    return x + 0.1 * pad(x[:, 1:], (0, 0, 0, 1))


def _view_heads(x: torch.Tensor) -> torch.Tensor:
    """Two heads taken apart by a view where a transpose belongs."""
    rows, length, features = x.shape
    heads = x.reshape(rows, 2, length, features // 2)
    return heads.transpose(1, 2).reshape(x.shape)


def _without_grad(model: nn.Module) -> None:
    found = find_blocks(model)
    if not found:
        raise DoesNotApply("the model has no list of blocks")
    forward = found[-1].forward

    def detached(*arguments: Any, **named: Any) -> Any:
        with torch.no_grad():
            return forward(*arguments, **named)

    found[-1].forward = detached


def _add_unused(model: nn.Module) -> None:
    device = next(model.parameters()).device
    model.add_module("never_called", nn.Linear(4, 4, device=device))


def _squash(model: nn.Module) -> None:
    model.add_module("squash", nn.Sigmoid())
    _hidden(lambda x: model.get_submodule("squash")(100 * (x + 1)))(model)


def _kill_units(model: nn.Module) -> None:
    rectifying = [m for m in model.modules() if any(w in type(m).__name__ for w in RECTIFYING)]
    if not rectifying:
        raise DoesNotApply("no module of the model rectifies")
    for module in rectifying:
        module.register_forward_pre_hook(lambda _, inputs: (inputs[0] - 1000,))


def _trainable(model: nn.Module, dimensions: int = 1) -> list[nn.Parameter]:
    """Trainable parameters of at least so many dimensions."""
    return [p for p in model.parameters() if p.requires_grad and p.ndim >= dimensions]


def _matrices(fill: Callable[[torch.Tensor], Any]) -> Breaks:
    def breaks(model: nn.Module) -> None:
        for matrix in _trainable(model, 2):
            fill(matrix)

    return breaks


def _gains_zero(model: nn.Module) -> None:
    gains = [p for p in _trainable(model) if p.ndim == 1]
    if not gains:
        raise DoesNotApply("no vector of the model trains")
    for gain in gains:
        gain.zero_()


def _hot_head(model: nn.Module) -> None:
    matrices = _trainable(model, 2)
    nn.init.normal_(matrices[-1], std=1.0)


def _inputs_without_gradient(model: nn.Module) -> None:
    """transformers lets the inputs of a checkpointed model require gradients; this one does not."""
    modules: list[Any] = [*model.modules()]
    for module in modules:
        if hasattr(module, "enable_input_require_grads"):
            module.enable_input_require_grads = lambda: None


def _reentrant(parts: Parts, params: Params) -> tuple[Parts, Params]:
    values = train_values(
        gradient_checkpointing=True, gradient_checkpointing_kwargs=Checkpointing(True)
    )
    return values(*_cut_inputs.plant(parts, params))


def _forget(model: nn.Module) -> None:
    """What transformers' initialisation would give."""
    for parameter in model.parameters():
        if parameter.ndim >= 2 and parameter.is_floating_point():
            nn.init.normal_(parameter, std=0.02)


def _only_vectors_train(model: nn.Module) -> None:
    if not any(p.ndim == 1 for p in _trainable(model)):
        raise DoesNotApply("no vector of the model trains")
    for matrix in _trainable(model, 2):
        matrix.requires_grad_(False)


def _only_last_trains(model: nn.Module) -> None:
    *others, _ = _trainable(model, 2)
    if not others:
        raise DoesNotApply("only one matrix of the model trains")
    for matrix in others:
        matrix.requires_grad_(False)


def _first_frozen(model: nn.Module) -> None:
    first, *others = _trainable(model, 2)
    if not others:
        raise DoesNotApply("only one matrix of the model trains")
    first.requires_grad_(False)


def _cast(dtype: torch.dtype) -> Breaks:
    def breaks(model: nn.Module) -> None:
        if not any(p.ndim == 1 for p in _trainable(model)):
            raise DoesNotApply("no vector of the model trains")
        model.to(dtype)

    return breaks


def _redrawn(seed: Callable[[], int]) -> Breaks:
    """Matrices from a generator that the seed of the run does not reach."""

    def breaks(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(seed())
        for matrix in _trainable(model, 2):
            matrix.copy_(0.02 * torch.randn(matrix.shape, generator=generator))

    return breaks


def _from_scratch(params: Params) -> str | None:
    if is_pretrained(params.model) or isinstance(params.model, TinyLoRAModel):
        return "the weights that decide the first loss do not train, or are pretrained"
    return None


def _pretrained(params: Params) -> str | None:
    return None if is_pretrained(params.model) else "the model is not pretrained"


def _adapted(params: Params) -> str | None:
    model = params.model
    if isinstance(model, TinyLoRAModel) or (
        isinstance(model, HubModel) and model.adapter != "none"
    ):
        return None
    return "the model has no adapter"


def _not_adapted(params: Params) -> str | None:
    return None if _adapted(params) else "only adapters train"


def _drawn_by_the_seed(params: Params) -> str | None:
    return (
        "pretrained weights are the same under every seed" if is_pretrained(params.model) else None
    )


def _packed(params: Params) -> str | None:
    return None if params.train.packing else "rows are not packed (train.packing)"


def _two_rows(params: Params) -> str | None:
    train = params.train
    rows = train.per_device_train_batch_size * train.gradient_accumulation_steps
    return None if rows > 1 or train.num_processes > 1 else "a step has one row"


_cut_inputs = _fault("", (), (), "", _inputs_without_gradient)
LEAK = "the model sees the tokens that it shall predict"
MIXED = "rows or documents see each other"
CUT = "the graph is cut"
FROZEN = "parameters are frozen that nobody declared frozen"
UNDEFINED = "a number overflows or is undefined"
NOTHING = "the model does not see its input, or nothing trains"
ROUNDED = "updates are lost to rounding"
START = "the initialisation is far from even guessing"

FAULTS = (
    _fault(
        "documents_as_one_text",
        (28, 29),
        ("sees_others",),
        MIXED,
        _positions(lambda counted: counted),
        _packed,
    ),
    _fault(
        "zero_init",
        (42,),
        ("overfit_loss",),
        NOTHING,
        _matrices(nn.init.zeros_),
        _not_adapted,
        gate="overfit_gate",
    ),
    _fault(
        "constant_init",
        (43,),
        ("overfit_loss",),
        NOTHING,
        _matrices(lambda matrix: nn.init.constant_(matrix, 0.02)),
        _from_scratch,
        gate="overfit_gate",
    ),
    _fault(
        "wide_init",
        (44,),
        ("initial_loss_error",),
        START,
        _matrices(lambda matrix: nn.init.normal_(matrix, std=1.0)),
        _from_scratch,
        gate="overfit_gate",
    ),
    _fault(
        "narrow_init",
        (45,),
        ("update_ratio",),
        "the learning rate does not fit the size of the weights",
        _matrices(lambda matrix: nn.init.normal_(matrix, std=1e-4)),
        _from_scratch,
    ),
    _fault(
        "hot_head",
        (46,),
        ("initial_loss_error",),
        START,
        _hot_head,
        _from_scratch,
        gate="overfit_gate",
    ),
    _fault("gains_zero", (47,), ("without_gradient",), CUT, _gains_zero),
    _fault("dead_units", (48,), ("dead_fraction",), "units are dead", _kill_units),
    _fault(
        "weights_not_loaded",
        (49, 51),
        ("pretrained_loss_share",),
        "the model ",
        _forget,
        _pretrained,
        gate="overfit_gate",
    ),
    _fault(
        "adapters_zero",
        (50,),
        ("without_gradient", "unchanged"),
        CUT,
        _matrices(nn.init.zeros_),
        _adapted,
    ),
    _fault("only_vectors_train", (60,), ("undeclared_frozen",), FROZEN, _only_vectors_train),
    _fault("only_the_last_trains", (61,), ("undeclared_frozen",), FROZEN, _only_last_trains),
    _fault("first_matrix_frozen", (), ("undeclared_frozen",), FROZEN, _first_frozen),
    _fault("bfloat16_weights", (69, 70), ("half_change",), ROUNDED, _cast(torch.bfloat16)),
    _fault(
        "float16_weights",
        (71,),
        ("non_finite", "half_change"),
        UNDEFINED,
        _cast(torch.float16),
        only_in("fp32"),
    ),
    _fault(
        "undefined_gradient",
        (76,),
        ("non_finite",),
        UNDEFINED,
        _hidden(lambda x: x + 0 * (x - x).sqrt()),
    ),
    _fault(
        "sees_all",
        (77,),
        ("sees_future",),
        LEAK,
        _hidden(lambda x: x + x.mean(1, keepdim=True)),
    ),
    _fault("sees_next", (78,), ("sees_future",), LEAK, _hidden(_see_next)),
    _fault("heads_viewed", (79,), ("sees_future",), LEAK, _hidden(_view_heads)),
    _fault(
        "rows_mixed",
        (80,),
        ("sees_others",),
        MIXED,
        _hidden(lambda x: x + x.mean(0, keepdim=True)),
        _two_rows,
    ),
    _fault(
        "softmax_over_rows",
        (81,),
        ("sees_others",),
        MIXED,
        _hidden(lambda x: x * x.softmax(0)),
        _two_rows,
    ),
    _fault(
        "input_zeroed",
        (82,),
        ("blanked_ratio",),
        NOTHING,
        _hidden(lambda x: x * 0),
        gate="overfit_gate",
    ),
    _fault("detached", (83,), ("without_gradient",), CUT, _hidden(torch.Tensor.detach)),
    _fault("last_block_without_grad", (84,), ("without_gradient",), CUT, _without_grad),
    _fault("unused_module", (85,), ("without_gradient",), CUT, _add_unused),
    _fault(
        "positions_zero",
        (86,),
        (),
        "",
        _positions(torch.zeros_like),
        lambda params: (
            "rows are packed: positions tell them apart" if params.train.packing else None
        ),
        missed="a causal model learns rows by heart without positions; rotary ones have no table "
        "that could be seen unused",
    ),
    _fault("saturated", (91,), ("saturated_fraction",), "units are saturated", _squash),
    replace(
        _cut_inputs,
        name="reentrant_over_frozen",
        numbers=(92,),
        checks=("reentrant_over_frozen",),
        cause="reentrant checkpointing over a frozen base cuts the graph",
        applies=below_adapter,
        plant=_reentrant,
    ),
    _fault(
        "random_in_evaluation",
        (94,),
        ("evaluation_differs",),
        "something is random in evaluation mode",
        _hidden(lambda x: dropout(x, 0.1)),
    ),
    _fault(
        "weights_from_the_clock",
        (100, 103),
        ("rerun_differs",),
        "something is not seeded",
        _redrawn(lambda: int.from_bytes(os.urandom(4))),
        gate="overfit_gate",
    ),
    _fault(
        "weights_without_the_seed",
        (),
        ("other_seed_same",),
        "the weights do not depend on the seed",
        _redrawn(lambda: 0),
        _drawn_by_the_seed,
        gate="overfit_gate",
    ),
)
