"""Models of transformers: loaded whole, from safe files, frozen below their adapter."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.chat.token_store import TokenMeta
from stages.config import UserError
from stages.config.schema import CustomModel
from stages.models.build import build_model, undeclared_frozen
from stages.models.hub import (
    add_adapter,
    checkpoint_activations,
    is_adapter_parameter,
    load_base,
    reentrant_modules,
)
from stages.provenance.base_model import keep
from stages.training.evaluation import generate_greedily

from ..settings import ROOT
from .llama import hub_model, keep_llama, write_llama

CPU = torch.device("cpu")
VOCABULARY = 2048


@pytest.fixture
def revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOLDSHORT_MODELS", str(tmp_path / "store"))
    return keep_llama(tmp_path)


def kept_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a Llama, to be spoilt before it is kept."""
    monkeypatch.setenv("HOLDSHORT_MODELS", str(tmp_path / "store"))
    return write_llama(tmp_path / "spoilt")


def test_an_adapter_alone_trains_and_begins_as_the_base_model(revision: str) -> None:
    adapted = build_model(hub_model(revision), VOCABULARY, CPU)
    plain = build_model(hub_model(revision, adapter="none"), VOCABULARY, CPU)
    trainable = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert trainable == {
        name for name, _ in adapted.named_parameters() if is_adapter_parameter(name)
    }
    assert len(trainable) == 2 * 2 * 7  # A and B of 7 linear layers in 2 blocks
    assert undeclared_frozen(adapted, hub_model(revision)) == []
    ids = torch.arange(8)[None]
    assert adapted(input_ids=ids).logits.equal(plain(input_ids=ids).logits)


def test_without_an_adapter_all_weights_train(revision: str) -> None:
    params = hub_model(revision, adapter="none")
    model = build_model(params, VOCABULARY, CPU)
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.get_parameter("model.norm.weight").requires_grad_(False)
    assert undeclared_frozen(model, params) == ["model.norm.weight"]


def test_an_adapter_that_is_switched_off_is_named(revision: str) -> None:
    params = hub_model(revision)
    model = build_model(params, VOCABULARY, CPU)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter_parameter(name) and "layers.0" in name)
    assert len(undeclared_frozen(model, params)) == 14


def test_target_modules_that_match_nothing_are_refused(revision: str) -> None:
    with pytest.raises(UserError, match=r"model\.lora: Target modules .+ not found"):
        build_model(hub_model(revision, lora={"target_modules": ["qkv"]}), VOCABULARY, CPU)


@pytest.mark.parametrize(
    ("key", "names"), [("target_modules", ["q_proj", "qkv"]), ("modules_to_save", ["lm_heat"])]
)
def test_one_name_of_several_that_matches_nothing_is_refused(
    revision: str, key: str, names: list[str]
) -> None:
    with pytest.raises(UserError, match=rf"model\.lora\.{key}: '{names[-1]}' matches no module"):
        build_model(hub_model(revision, lora={key: names}), VOCABULARY, CPU)


@pytest.mark.parametrize("off", ["disable_adapter_layers", "merge_adapter"])
def test_adapters_that_are_off_from_the_start_are_refused(
    revision: str, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    def build(vocab_size: int) -> Any:
        model: Any = add_adapter(load_base(hub_model(revision), CPU), hub_model(revision))
        getattr(model, off)()
        return model

    monkeypatch.setattr("stages.models.build.load_target", lambda target, key: build)
    model = CustomModel("mine", "data/tokenizer", [], "stages.plugins.mine.build", {})
    with pytest.raises(UserError, match=r"adapters .+ are switched off or merged in \d+ layers"):
        build_model(model, VOCABULARY, CPU)


def tokenizer_directory(tmp_path: Path, change: Callable[[dict[str, int]], None]) -> str:
    """The demo's tokenizer with a changed vocabulary."""
    directory = tmp_path / "tokenizer"
    shutil.copytree(ROOT / "data/tokenizer", directory)
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content["model"]["vocab"])
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(directory)


def swap_two(vocabulary: dict[str, int]) -> None:
    first, second = list(vocabulary)[40:42]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def test_a_tokenizer_that_numbers_tokens_otherwise_is_refused(
    revision: str, tmp_path: Path
) -> None:
    tokenizer = tokenizer_directory(tmp_path, swap_two)
    with pytest.raises(UserError, match=r"not that of llama: of the \d+ tokens .+, 2 have another"):
        build_model(hub_model(revision, tokenizer=tokenizer), VOCABULARY, CPU)


@pytest.mark.parametrize("name", ["the_same", "one_more"])
def test_the_models_own_tokens_may_lie_elsewhere_and_be_more(
    revision: str, tmp_path: Path, name: str
) -> None:
    def add(vocabulary: dict[str, int]) -> None:
        if name == "one_more":
            vocabulary["unheard"] = VOCABULARY - 1

    tokenizer = tokenizer_directory(tmp_path, add)
    build_model(hub_model(revision, tokenizer=tokenizer), VOCABULARY, CPU)


def test_a_tokenizer_with_more_ids_than_the_embedding_has_rows_is_refused(revision: str) -> None:
    with pytest.raises(UserError, match="has 2049 ids, but the embedding of llama has 2048 rows"):
        build_model(hub_model(revision), VOCABULARY + 1, CPU)


def test_qlora_without_a_gpu_is_refused(revision: str) -> None:
    with pytest.raises(UserError, match="qlora, which needs a GPU"):
        build_model(hub_model(revision, adapter="qlora"), VOCABULARY, CPU)


def test_weights_that_are_missing_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = kept_anew(tmp_path, monkeypatch)
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"no weights for model\.layers\.1\.mlp\.up_proj\.weight"):
        build_model(hub_model(keep(directory, "llama")), VOCABULARY, CPU)


def test_pickled_weights_are_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = kept_anew(tmp_path, monkeypatch)
    weights = load_file(directory / "model.safetensors")
    torch.save(weights, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    revision = keep(directory, "llama")
    with pytest.raises(UserError, match=r"pickled weights only.+ set model\.allow_pickle: true"):
        build_model(hub_model(revision), VOCABULARY, CPU)
    build_model(hub_model(revision, allow_pickle=True), VOCABULARY, CPU)


def test_code_of_the_model_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = kept_anew(tmp_path, monkeypatch)
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), "auto_map": {"AutoModelForCausalLM": "m.M"}}
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match="brings code of its own"):
        build_model(hub_model(keep(directory, "llama")), VOCABULARY, CPU)


def test_a_directory_without_a_config_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = kept_anew(tmp_path, monkeypatch)
    (directory / "config.json").unlink()
    with pytest.raises(UserError, match=r"spoilt has no config\.json, as a model of transformers"):
        keep(directory, "llama")


def gradients(model: Any) -> list[bool]:
    """Whether each matrix B of the adapter gets a gradient."""
    loss = model(input_ids=torch.arange(8)[None]).logits.square().mean()
    if loss.requires_grad:
        loss.backward()
    return [p.grad is not None for name, p in model.named_parameters() if ".lora_B." in name]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_lets_gradients_through_a_frozen_base(
    revision: str, use_reentrant: bool
) -> None:
    model = build_model(hub_model(revision), VOCABULARY, CPU)
    assert gradients(model) == [True] * 14
    model.zero_grad()
    checkpoint_activations(model, use_reentrant)
    assert bool(reentrant_modules(model)) == use_reentrant
    assert gradients(model) == [True] * 14


def test_reentrant_checkpointing_over_a_frozen_base_cuts_the_graph(revision: str) -> None:
    model: Any = build_model(hub_model(revision), VOCABULARY, CPU)
    checkpoint_activations(model, True)
    model.disable_input_require_grads()
    assert not any(gradients(model))
    assert len(reentrant_modules(model)) > 0


def test_a_model_that_cannot_checkpoint_is_refused() -> None:
    with pytest.raises(UserError, match="has no activation_checkpointing_enable"):
        checkpoint_activations(torch.nn.Linear(2, 2), False)


class Uncached(torch.nn.Module):
    """A model without `generate`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, **inputs: torch.Tensor) -> Any:
        return self.inner(**inputs)


def test_answers_with_a_cache_are_those_without_one(revision: str) -> None:
    model = build_model(hub_model(revision), VOCABULARY, CPU)
    meta = TokenMeta(VOCABULARY, 0, 2, 256, "all", {})
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12], [13]]
    cached = generate_greedily(model, prompts, meta, 12, CPU)
    plain = Uncached(model)
    assert cached == generate_greedily(plain, prompts, meta, 12, CPU)
    assert {len(answer) for answer in cached} == {12}
