"""Runs that are as sound as the user's own and only differ from it: no gate may refuse them."""

from collections.abc import Callable
from dataclasses import replace

from ..config.schema import HubModel, Params, TinyGPTModel

Vary = Callable[[Params], Params | str]
"""Params that differ in one thing, or the reason why they cannot."""


def _with_dropout(params: Params) -> Params | str:
    model = params.model
    if isinstance(model, TinyGPTModel):
        model = replace(model, dropout=0.1)
    elif isinstance(model, HubModel) and model.adapter != "none":
        model = replace(model, lora=replace(model.lora, lora_dropout=0.1))
    else:
        return "params.yaml names no dropout of this model"
    return _unless_the_same(params, replace(params, model=model))


def _in_bfloat16(params: Params) -> Params | str:
    return _unless_the_same(params, replace(params, run=replace(params.run, precision="bf16")))


def _with_another_seed(params: Params) -> Params | str:
    seed = (params.run.seed + 1) % 2**32
    return replace(params, run=replace(params.run, seed=seed))


def _without_accumulation(params: Params) -> Params | str:
    train = replace(params.train, gradient_accumulation_steps=1)
    return _unless_the_same(params, replace(params, train=train))


def _with_a_linear_schedule(params: Params) -> Params | str:
    train = replace(params.train, lr_scheduler_type="linear")
    return _unless_the_same(params, replace(params, train=train))


def _unless_the_same(params: Params, varied: Params) -> Params | str:
    return "the run is already so" if varied == params else varied


VARIATIONS: dict[str, Vary] = {
    "dropout": _with_dropout,
    "bfloat16": _in_bfloat16,
    "another_seed": _with_another_seed,
    "one_micro_batch": _without_accumulation,
    "linear_schedule": _with_a_linear_schedule,
}
