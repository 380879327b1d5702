"""Known models have the parameters that their publishers state, counted without a weight."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.config import UserError
from stages.config.schema import HubModel
from stages.estimate.architecture import (
    architecture_of,
    find_architecture,
    hub_config,
    tiny_architecture,
)
from stages.estimate.parameters import count_on_meta
from stages.models.build import build_model, count_parameters
from stages.provenance.base_model import keep

from ..settings import ROOT, make_params
from .measured import CONFIG, LORA, hub

NEVER = "0" * 40
KNOWN = {
    "Qwen/Qwen3-8B": 8_190_735_360,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "smollm2-135m-instruct": 134_515_008,
}
MATRICES = {  # of all layers: what is left without embeddings, head and norms
    "Qwen/Qwen3-8B": 6_945_767_424,
    "meta-llama/Llama-3.1-8B-Instruct": 6_979_321_856,
    "smollm2-135m-instruct": 106_168_320,
}


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOLDSHORT_MODELS", str(tmp_path))


def of(name: str, adapter: str = "none") -> HubModel:
    model = hub(adapter, "bfloat16").model
    assert isinstance(model, HubModel)
    return replace(model, name_or_path=name, revision=NEVER, lora=replace(LORA, r=16))


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_model_has_the_parameters_that_are_stated(name: str) -> None:
    found = count_on_meta(of(name), 0)
    assert (found.total, found.trainable) == (KNOWN[name], KNOWN[name])
    architecture = architecture_of(hub_config(of(name)), name)
    assert architecture.layer_weights == MATRICES[name]


@pytest.mark.parametrize(
    ("name", "adapters"),
    [("Qwen/Qwen3-8B", 43_646_976), ("meta-llama/Llama-3.1-8B-Instruct", 41_943_040)],
)
def test_an_adapter_of_rank_16_on_all_matrices_has_these_parameters(
    name: str, adapters: int
) -> None:
    found = count_on_meta(of(name, "qlora"), 0)
    assert (found.total, found.trainable) == (KNOWN[name] + adapters, adapters)


def test_the_small_model_is_counted_as_it_is_built() -> None:
    params = make_params(model__d_model=32, model__n_layers=2).model
    real = count_parameters(build_model(params, 77, torch.device("cpu")))
    found = count_on_meta(params, 77)
    assert {"parameters": found.total, "trainable_parameters": found.trainable} == real
    assert tiny_architecture(params, 77).layer_weights == 2 * 12 * 32**2  # type: ignore[arg-type]


def test_a_frozen_parameter_is_not_trainable() -> None:
    params = make_params(model__frozen=["embedding.*"]).model
    found = count_on_meta(params, 50)
    assert found.total - found.trainable == 50 * 16


def test_two_packed_weights_count_as_two() -> None:
    layer = torch.nn.Linear(4, 2, bias=False)
    layer.weight.quant_storage = torch.uint8  # type: ignore[attr-defined]
    layer.weight.requires_grad_(False)
    assert count_parameters(layer) == {"parameters": 16, "trainable_parameters": 0}


def test_a_model_whose_sizes_are_not_known_says_where_to_write_them() -> None:
    with pytest.raises(UserError) as caught:
        hub_config(of("who/knows"))
    assert str(caught.value) == (
        "the sizes of who/knows are not known: this machine has no config.json of it at "
        f"{NEVER}, and there is no conf/architecture/who--knows.yaml; write its config.json there "
        "as YAML"
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CONFIG | {"num_local_experts": 8}, "it is a mixture of experts"),
        ({"n_embd": 768}, "its config has no hidden_size"),
    ],
)
def test_another_kind_of_model_is_refused_in_a_sentence(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        architecture_of(config, "another")


def test_the_config_of_a_kept_model_goes_before_the_facts_of_conf(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    (source / "model.safetensors").touch()
    kept = replace(of("small"), revision=keep(source, "small"))
    found = find_architecture(kept, 0)
    assert found is not None
    assert (found.hidden, found.query, found.key, found.vocabulary) == (64, 96, 48, 199)
