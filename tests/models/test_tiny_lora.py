"""TinyLoRALanguageModel: only its adapters train, and at first they change nothing."""

from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn

from stages.config.load import read_yaml
from stages.models.tiny_gpt import TinyGPT
from stages.models.tiny_lora import LoRALinear, TinyLoRALanguageModel, is_adapter

from ..settings import ROOT

LINEAR_LAYERS = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")


def lora(**arguments: int) -> TinyLoRALanguageModel:
    torch.manual_seed(0)
    return TinyLoRALanguageModel(**arguments)


def tokens(rows: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(0, 64, (rows, length), generator=torch.Generator().manual_seed(1))


def test_its_sizes_are_those_of_the_protocol() -> None:
    model = lora()
    assert model.embedding.weight.shape == (64, 32)
    assert model.lm_head.weight.shape == (64, 32)
    qkv = model.get_submodule("blocks.0.attention.qkv")
    assert isinstance(qkv, LoRALinear)
    assert (qkv.lora_A.shape, qkv.lora_B.shape, qkv.scaling) == ((16, 32), (96, 16), 2.0)
    assert model(tokens(3, 7)).logits.shape == (3, 7, 64)


def test_exactly_the_adapters_of_every_linear_layer_train() -> None:
    model = lora(n_layers=2)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {
        f"blocks.{block}.{layer}.{matrix}"
        for block in (0, 1)
        for layer in LINEAR_LAYERS
        for matrix in ("lora_A", "lora_B")
    }
    assert trainable == {name for name, _ in model.named_parameters() if is_adapter(name)}


def test_conf_declares_exactly_what_is_frozen() -> None:
    patterns = read_yaml(ROOT / "conf/model/tiny_lora.yaml")["frozen"]
    for name, parameter in lora(n_layers=2).named_parameters():
        declared = any(fnmatchcase(name, pattern) for pattern in patterns)
        assert declared != parameter.requires_grad, name


def test_one_matrix_is_gaussian_and_the_other_zero() -> None:
    layer = LoRALinear(nn.Linear(4096, 8, bias=False), 16, 32)
    assert float(layer.lora_A.detach().std()) == pytest.approx(0.25, rel=0.02)
    assert float(layer.lora_A.detach().mean()) == pytest.approx(0, abs=0.01)
    assert not layer.lora_B.any()


def test_untrained_adapters_change_nothing() -> None:
    model, ids = lora(), tokens()
    before = model(ids).logits
    for name, parameter in model.named_parameters():
        if name.endswith("lora_A"):
            parameter.data.zero_()
    assert model(ids).logits.equal(before)


def test_an_adapter_adds_its_scaled_product_to_the_frozen_weight() -> None:
    torch.manual_seed(0)
    base = nn.Linear(6, 4)
    layer = LoRALinear(base, r=3, lora_alpha=12)
    layer.lora_B.data.normal_()
    x = torch.randn(2, 5, 6)
    merged = base.weight + 4 * layer.lora_B @ layer.lora_A
    torch.testing.assert_close(layer(x), nn.functional.linear(x, merged, base.bias))


def test_gradients_reach_the_adapters_only() -> None:
    model, ids = lora(), tokens()
    model(ids).logits.square().mean().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        name for name, _ in model.named_parameters() if is_adapter(name)
    }


def test_a_later_token_does_not_change_an_earlier_score() -> None:
    model, ids = lora(), tokens()
    changed = ids.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 64
    before, after = model(ids).logits, model(changed).logits
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8], after[:, 8])


def test_all_earlier_tokens_are_seen() -> None:
    model, ids = lora(), tokens()
    changed = ids.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 64
    assert (model(ids).logits != model(changed).logits).any(-1).all()


def test_it_is_called_as_the_other_small_model_is() -> None:
    assert issubclass(TinyLoRALanguageModel, TinyGPT)
    with pytest.raises(ValueError, match=r"65 tokens exceed the model's max_length of 64"):
        lora()(tokens(1, 65))
    with pytest.raises(ValueError, match=r"multiple of 2 \* n_heads"):
        lora(d_model=6)
