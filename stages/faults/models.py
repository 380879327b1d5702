"""Models that are wired or initialised wrongly: what breaks, and which check must see it."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import dropout

from ..config.schema import Checkpointing, Params
from ..training.setup import Parts
from .applies import (
    adapted,
    below_adapter,
    drawn_by_the_seed,
    from_scratch,
    not_adapted,
    only_in,
    packed,
    pretrained,
    two_rows,
)
from .fault import Applies, Fault, Gate, everywhere, swap, train_values
from .weights import (
    cast_to,
    fill_matrices,
    first_frozen,
    forget,
    gains_zero,
    hot_head,
    only_last_trains,
    only_vectors_train,
    redraw,
)
from .wiring import (
    Breaks,
    add_unused,
    change_hidden,
    cut_input_gradients,
    drop_activations,
    drop_norms,
    drop_residuals,
    kill_units,
    other_positions,
    see_next,
    squash,
    view_heads,
    without_grad,
)


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


def _reentrant(parts: Parts, params: Params) -> tuple[Parts, Params]:
    values = train_values(
        gradient_checkpointing=True, gradient_checkpointing_kwargs=Checkpointing(True)
    )
    return values(*_cut_inputs.plant(parts, params))


_cut_inputs = _fault("", (), (), "", cut_input_gradients)
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
        other_positions(lambda counted: counted),
        packed,
    ),
    _fault(
        "zero_init",
        (42,),
        ("overfit_loss",),
        NOTHING,
        fill_matrices(nn.init.zeros_),
        not_adapted,
        gate="overfit_gate",
    ),
    _fault(
        "constant_init",
        (43,),
        ("overfit_loss",),
        NOTHING,
        fill_matrices(lambda matrix: nn.init.constant_(matrix, 0.02)),
        from_scratch,
        gate="overfit_gate",
    ),
    _fault(
        "wide_init",
        (44,),
        ("initial_loss_error",),
        START,
        fill_matrices(lambda matrix: nn.init.normal_(matrix, std=1.0)),
        from_scratch,
        gate="overfit_gate",
    ),
    _fault(
        "narrow_init",
        (45,),
        ("update_ratio",),
        "the weights start too small",
        fill_matrices(lambda matrix: nn.init.normal_(matrix, std=1e-4)),
        from_scratch,
    ),
    _fault(
        "hot_head",
        (46,),
        ("initial_loss_error",),
        START,
        hot_head,
        from_scratch,
        gate="overfit_gate",
    ),
    _fault("gains_zero", (47,), ("without_gradient",), CUT, gains_zero),
    _fault("dead_units", (48,), ("dead_fraction",), "units are dead", kill_units),
    _fault(
        "weights_not_loaded",
        (49, 51),
        ("pretrained_loss_share",),
        "the model ",
        forget,
        pretrained,
        gate="overfit_gate",
    ),
    _fault(
        "adapters_zero",
        (50,),
        ("without_gradient", "unchanged"),
        CUT,
        fill_matrices(nn.init.zeros_),
        adapted,
    ),
    _fault("only_vectors_train", (60,), ("undeclared_frozen",), FROZEN, only_vectors_train),
    _fault("only_the_last_trains", (61,), ("undeclared_frozen",), FROZEN, only_last_trains),
    _fault("first_matrix_frozen", (), ("undeclared_frozen",), FROZEN, first_frozen),
    _fault("bfloat16_weights", (69, 70), ("half_change",), ROUNDED, cast_to(torch.bfloat16)),
    _fault(
        "float16_weights",
        (71,),
        ("non_finite", "half_change"),
        UNDEFINED,
        cast_to(torch.float16),
        only_in("fp32"),
    ),
    _fault(
        "undefined_gradient",
        (76,),
        ("non_finite",),
        UNDEFINED,
        change_hidden(lambda x: x + 0 * (x - x).sqrt()),
    ),
    _fault(
        "sees_all",
        (77,),
        ("sees_future",),
        LEAK,
        change_hidden(lambda x: x + x.mean(1, keepdim=True)),
    ),
    _fault("sees_next", (78,), ("sees_future",), LEAK, change_hidden(see_next)),
    _fault("heads_viewed", (79,), ("sees_future",), LEAK, change_hidden(view_heads)),
    _fault(
        "rows_mixed",
        (80,),
        ("sees_others",),
        MIXED,
        change_hidden(lambda x: x + x.mean(0, keepdim=True)),
        two_rows,
    ),
    _fault(
        "softmax_over_rows",
        (81,),
        ("sees_others",),
        MIXED,
        change_hidden(lambda x: x * x.softmax(0)),
        two_rows,
    ),
    _fault(
        "input_zeroed",
        (82,),
        ("blanked_ratio",),
        NOTHING,
        change_hidden(lambda x: x * 0),
        gate="overfit_gate",
    ),
    _fault("detached", (83,), ("without_gradient",), CUT, change_hidden(torch.Tensor.detach)),
    _fault("last_block_without_grad", (84,), ("without_gradient",), CUT, without_grad),
    _fault("unused_module", (85,), ("without_gradient",), CUT, add_unused),
    _fault(
        "residuals_missing",
        (87,),
        ("overfit_loss",),
        NOTHING,
        drop_residuals,
        from_scratch,
        gate="overfit_gate",
        missed="a shallow model learns a few rows by heart without them",
    ),
    _fault(
        "norms_missing",
        (88,),
        ("median_norm",),
        "an unhealthy initialisation",
        drop_norms,
        missed="where gradients happen to keep their size, a model learns by heart without norms",
    ),
    _fault(
        "positions_zero",
        (86,),
        (),
        "",
        other_positions(torch.zeros_like),
        lambda params: (
            "rows are packed: positions tell them apart" if params.train.packing else None
        ),
        missed="a causal model learns rows by heart without positions; rotary ones have no table "
        "that could be seen unused",
    ),
    _fault(
        "activations_missing",
        (90,),
        ("affine_feed_forwards",),
        "the activation is missing",
        drop_activations,
    ),
    _fault("saturated", (91,), ("saturated_fraction",), "units are saturated", squash),
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
        change_hidden(lambda x: dropout(x, 0.1)),
    ),
    _fault(
        "weights_from_the_clock",
        (100, 103),
        ("rerun_differs",),
        "something is not seeded",
        redraw(lambda: int.from_bytes(os.urandom(4))),
        gate="overfit_gate",
    ),
    _fault(
        "weights_without_the_seed",
        (),
        ("other_seed_same",),
        "the weights do not depend on the seed",
        redraw(lambda: 0),
        drawn_by_the_seed,
        gate="overfit_gate",
    ),
)
