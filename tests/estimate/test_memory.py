"""The memory that is foretold is what autograd, the optimizer and the allocator really take."""

import math
from dataclasses import replace
from typing import Any

import pytest

from stages.config import Params
from stages.estimate.architecture import architecture_of
from stages.estimate.memory import NF4, Parameters, estimate_memory

from .measured import (
    CONFIG,
    LORA,
    estimated,
    hub,
    peak_bytes,
    saved_bytes,
    state_bytes,
    tiny,
)

QWEN3 = CONFIG | {"model_type": "qwen3"}
HALF: dict[str, Any] = {"run__precision": "bf16"}
SAVED = {
    "tiny": (tiny(), CONFIG),
    "tiny bf16": (tiny(**HALF), CONFIG),
    "llama": (hub(), CONFIG),
    "llama lora": (hub("lora"), CONFIG),
    "llama eager": (hub(attention="eager"), CONFIG),
    "llama autocast": (hub(**HALF), CONFIG),
    "llama eager bf16 lora": (hub("lora", "bfloat16", "eager", **HALF), CONFIG),
    "qwen3 autocast": (hub(**HALF), QWEN3),
    "qwen3 bf16": (hub(dtype="bfloat16", **HALF), QWEN3),
    "qwen3 bf16 lora": (hub("lora", "bfloat16", **HALF), QWEN3),
    "qwen3 autocast lora": (hub("lora", **HALF), QWEN3),
    "llama in bf16 without autocast": (hub(dtype="bfloat16"), CONFIG),
    "llama lora on bf16 without autocast": (hub("lora", "bfloat16"), CONFIG),
}
PEAK = SAVED | {
    "llama checkpointed": (hub(train__gradient_checkpointing=True), CONFIG),
    "llama checkpointed lora": (hub("lora", train__gradient_checkpointing=True), CONFIG),
    "llama checkpointed bf16 lora": (
        hub("lora", "bfloat16", train__gradient_checkpointing=True, **HALF),
        CONFIG,
    ),
}


@pytest.mark.parametrize("name", SAVED)
def test_activations_are_what_autograd_saves_but_for_five_percent(name: str) -> None:
    params, config = SAVED[name]
    found = estimated(params, config)["activations"]
    assert found == pytest.approx(saved_bytes(params, config), rel=0.05)


@pytest.mark.parametrize("name", ["tiny", "llama", "llama lora", "qwen3 bf16", "qwen3 bf16 lora"])
def test_state_is_foretold_to_the_byte(name: str) -> None:
    params, config = SAVED[name]
    found, real = estimated(params, config), state_bytes(params, config)
    assert {kind: found[kind] for kind in real} == real


@pytest.mark.parametrize("name", ["tiny", "tiny bf16", "llama", "llama autocast"])
def test_the_peak_of_full_training_is_foretold_but_for_one_percent(name: str) -> None:
    params, config = PEAK[name]
    assert sum(estimated(params, config).values()) == pytest.approx(
        peak_bytes(params, config), rel=0.01
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PEAK)
def test_the_peak_is_foretold_but_for_five_percent(name: str) -> None:
    params, config = PEAK[name]
    assert sum(estimated(params, config).values()) == pytest.approx(
        peak_bytes(params, config), rel=0.05
    )


def test_a_model_of_4_bits_packs_its_layers_and_holds_the_rest_in_float32() -> None:
    params = hub("qlora", "bfloat16", **HALF)
    whole = estimated(hub("lora", "bfloat16", **HALF), CONFIG)["weights"] // 2
    layers = 3 * (64 * 96 + 2 * 64 * 48 + 96 * 64 + 3 * 64 * 160)
    found = estimated_with_adapter(params, whole)["weights"]
    assert found == round((whole - layers) * 4 + layers * NF4)
    assert math.isclose(NF4 * 8, 4.127)


def test_moments_in_8_bits_have_a_scale_for_each_block_and_whole_ones_for_the_embedding() -> None:
    small: dict[str, Any] = {"train__optim": "adamw_bnb_8bit", "run__device": "cuda"}
    architecture = architecture_of(CONFIG, "small")
    trained = Parameters(10**6, 2560)
    assert estimate_memory(hub("lora", **small), trained, architecture)["optimizer"] == 2 * 2600
    trained = Parameters(10**6, 10**6)
    embedding = architecture.vocabulary * architecture.hidden
    found = estimate_memory(hub(**small), trained, architecture)["optimizer"]
    assert found == round(2 * (4 * embedding + (10**6 - embedding) * 65 / 64))


def estimated_with_adapter(params: Params, base: int) -> dict[str, int]:
    adapters = 3 * LORA.r * (2 * 160 + 2 * 112 + 3 * 224)
    parameters = Parameters(base + adapters, adapters)
    return estimate_memory(params, parameters, architecture_of(CONFIG, "small"))


def test_without_an_architecture_only_what_parameters_decide_is_estimated() -> None:
    found = estimate_memory(tiny(), Parameters(100, 40), None)
    assert found == {"weights": 400, "adapters": 0, "gradients": 160, "optimizer": 320}


def test_fewer_target_modules_save_fewer_inputs() -> None:
    every = hub("lora", "bfloat16", **HALF)
    model: Any = every.model
    few = replace(every, model=replace(model, lora=replace(LORA, target_modules=["q_proj"])))
    assert estimated(few, CONFIG)["activations"] == pytest.approx(
        saved_bytes(few, CONFIG), rel=0.05
    )
