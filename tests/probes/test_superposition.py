"""A feed-forward network without its activation is found, in whatever model; nothing else is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stages.chat.collator import Batch
from stages.models.tiny_gpt import TinyGPT
from stages.models.tiny_lora import TinyLoRALanguageModel
from stages.probes.superposition import feed_forwards, find_affine
from stages.training.setup import make_autocast

from ..parts import Output
from ..settings import make_params

VOCABULARY = 99


def build_tiny() -> nn.Module:
    return TinyGPT(VOCABULARY, d_model=32)


def of_transformers(name: str, **values: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, **values)
    model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return model


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
WITHOUT_A_GATE: dict[str, Callable[[], nn.Module]] = {
    "tiny_gpt": build_tiny,
    "neox": lambda: of_transformers("GPTNeoX", intermediate_size=64, **SIZES),
    "phi": lambda: of_transformers("Phi", intermediate_size=64, **SIZES),
}
WITH_A_GATE: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: of_transformers("Llama", intermediate_size=64, **SIZES),
    "qwen3, heads wider than the model": lambda: of_transformers(
        "Qwen3", intermediate_size=64, num_key_value_heads=2, head_dim=16, **SIZES
    ),
}


def make_ids() -> Batch:
    ids = torch.arange(34).view(2, 17) % VOCABULARY
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def affine_in(model: nn.Module, precision: str = "fp32") -> tuple[list[str], int]:
    return find_affine(model, make_ids(), make_autocast(make_params(run__precision=precision).run))


def drop(model: nn.Module, activation: str) -> None:
    for module in list(model.modules()):
        for name, child in module.named_children():
            if activation in type(child).__name__:
                setattr(module, name, nn.Identity())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", WITHOUT_A_GATE)
def test_a_missing_activation_is_named(family: str, precision: str) -> None:
    torch.manual_seed(0)
    model = WITHOUT_A_GATE[family]()
    assert affine_in(model, precision) == ([], 2)
    drop(model, "GELU")
    found, tried = affine_in(model, precision)
    assert (len(found), tried) == (2, 2)
    assert all(name.endswith("mlp") for name in found)


@pytest.mark.parametrize("family", WITH_A_GATE)
def test_with_a_gate_no_network_is_affine_even_without_its_activation(family: str) -> None:
    torch.manual_seed(0)
    model = WITH_A_GATE[family]()
    assert affine_in(model) == ([], 2)
    drop(model, "SiLU")
    assert affine_in(model) == ([], 2)


def test_weights_in_bfloat16_hide_nothing() -> None:
    torch.manual_seed(0)
    model = build_tiny().to(torch.bfloat16)
    assert affine_in(model) == ([], 2)
    drop(model, "GELU")
    assert len(affine_in(model)[0]) == 2


def test_small_weights_do_not_make_a_smooth_activation_a_line() -> None:
    torch.manual_seed(0)
    model = build_tiny()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=1e-4)
    assert affine_in(model) == ([], 2)


def test_weights_of_zero_tell_nothing() -> None:
    model = build_tiny()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert affine_in(model) == ([], 0)


def test_low_rank_adapters_are_affine_on_purpose() -> None:
    torch.manual_seed(0)
    model = TinyLoRALanguageModel(VOCABULARY, d_model=32)
    assert {name.rpartition(".")[2] for name, _ in feed_forwards(model)} <= {"mlp"}
    assert affine_in(model)[0] == []


class Residual(nn.Module):
    """A network whose small branch is added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.network = Branch()
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Output:
        return Output(self.head(self.network(self.embedding(input_ids))))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.activation, self.down = nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)
        nn.init.normal_(self.down.weight, std=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = self.down(self.activation(self.up(x)))
        return x + change


def test_a_small_branch_beside_its_input_is_still_no_line() -> None:
    torch.manual_seed(0)
    model = Residual()
    assert affine_in(model) == ([], 1)
    drop(model, "GELU")
    assert affine_in(model) == (["network"], 1)
