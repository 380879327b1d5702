"""A model is what params describe, drawn from the seed, with exactly the named parts frozen."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stages.plugins
from stages.compose import compose
from stages.config import UserError, parse_params, read_yaml
from stages.config.schema import CustomModel
from stages.models.build import (
    build_model,
    count_parameters,
    prepare_for_training,
    undeclared_frozen,
    without_dropout,
)
from stages.models.tiny_gpt import TinyGPT
from stages.models.tiny_lora import TinyLoRALanguageModel

from ..parts import VOCABULARY, Bigram, make_batch
from ..settings import ROOT, make_params

CPU = torch.device("cpu")
PLUGIN = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, vocab_size, width=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, input_ids, attention_mask, position_ids=None):
        return self.head(self.embedding(input_ids))

class WithoutPositions(Mine):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, attention_mask)

class WithoutMask(Mine):
    def forward(self, input_ids, position_ids=None):
        return super().forward(input_ids, None)

def no_model(vocab_size):
    return "a model"
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mine.py").write_text(PLUGIN)
    monkeypatch.setattr(stages.plugins, "__path__", [str(tmp_path)])
    yield
    sys.modules.pop("stages.plugins.mine", None)
    vars(stages.plugins).pop("mine", None)


def custom(target: str = "Mine", frozen: tuple[str, ...] = (), **arguments: Any) -> CustomModel:
    return CustomModel(
        "mine", "data/tokenizer", list(frozen), f"stages.plugins.mine.{target}", arguments
    )


def built(**values: Any) -> nn.Module:
    torch.manual_seed(0)
    return build_model(make_params(**values).model, VOCABULARY, CPU)


def test_the_arguments_of_the_small_model_arrive() -> None:
    model = built(model__d_model=32, model__n_layers=2, model__max_length=64, model__dropout=0.25)
    assert isinstance(model, TinyGPT)
    assert model.max_length == 64
    assert len(model.blocks) == 2
    assert model.embedding.weight.shape == (VOCABULARY, 32)
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.25}
    assert model.training


def test_the_labs_model_is_composed_and_built_with_nothing_frozen_undeclared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "params.yaml").write_text(compose(["model=tiny_lora"]), encoding="utf-8")
    params = parse_params(read_yaml(tmp_path / "params.yaml")).model
    model = build_model(params, VOCABULARY, CPU)
    assert isinstance(model, TinyLoRALanguageModel)
    assert model.embedding.weight.shape == (VOCABULARY, 32)
    assert undeclared_frozen(model, params) == []
    assert count_parameters(model)["trainable_parameters"] == 8192


def test_the_weights_follow_from_the_seed() -> None:
    one, same = built(), built()
    torch.manual_seed(1)
    other = build_model(make_params().model, VOCABULARY, CPU)
    for first, second in zip(one.parameters(), same.parameters(), strict=True):
        assert first.equal(second)
    assert not next(one.parameters()).equal(next(other.parameters()))


@pytest.mark.usefixtures("plugin")
def test_a_model_of_ones_own_is_given_the_vocabulary_and_its_arguments() -> None:
    model = build_model(custom(width=6), VOCABULARY, CPU)
    assert type(model).__name__ == "Mine"
    assert model.get_parameter("embedding.weight").shape == (VOCABULARY, 6)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("arguments", [{"depth": 3}, {"vocab_size": 3}])
def test_an_argument_that_a_model_of_ones_own_does_not_take_is_refused(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises(UserError, match="model"):
        build_model(custom(**arguments), VOCABULARY, CPU)


@pytest.mark.usefixtures("plugin")
def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        build_model(custom("no_model"), VOCABULARY, CPU)
    assert str(caught.value) == "model._target_ returned str, not a torch.nn.Module"


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("WithoutPositions", "input_ids, attention_mask, position_ids: got an unexpected"),
        ("WithoutMask", "input_ids, attention_mask: got an unexpected"),
    ],
)
def test_a_model_that_cannot_be_called_as_it_will_be_is_refused(target: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        build_model(custom(target), VOCABULARY, CPU)
    assert str(caught.value).startswith(f"{target}.forward cannot be called with {words}")


def test_impossible_arguments_are_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"^params\.yaml: .*model") as caught:
        built(model__d_model=6, model__n_heads=2)
    assert "\n" not in str(caught.value)


def test_the_named_parameters_are_frozen_and_no_others() -> None:
    everything = dict(built().named_parameters())
    name = next(iter(everything))
    frozen = {n for n, p in built(model__frozen=[name]).named_parameters() if not p.requires_grad}
    assert frozen == {name}


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        ((), set()),
        (("embedding.*",), {"embedding.weight"}),
        (("*.weight",), {"embedding.weight", "head.weight"}),
        (("head.bias", "head.weight"), {"head.bias", "head.weight"}),
        (("*",), {"embedding.weight", "head.bias", "head.weight"}),
    ],
)
def test_patterns_freeze_what_they_match(patterns: tuple[str, ...], frozen: set[str]) -> None:
    model = build_model(custom(frozen=patterns), VOCABULARY, CPU)
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == frozen
    assert undeclared_frozen(model, custom(frozen=patterns)) == []


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("pattern", ["Embedding.*", "embedding", "body.*"])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(UserError) as caught:
        build_model(custom(frozen=("head.*", pattern)), VOCABULARY, CPU)
    assert str(caught.value) == (
        f"params.yaml: model.frozen: {pattern!r} matches no parameter; there are "
        "embedding.weight, head.weight, head.bias, ..."
    )


def test_what_nobody_declared_frozen_is_named() -> None:
    model = Bigram()
    model.norm.requires_grad_(False)
    model.head.bias.requires_grad_(False)
    assert undeclared_frozen(model, custom(frozen=("norm.*",))) == ["head.bias"]
    assert undeclared_frozen(model, custom(frozen=())) == ["norm.weight", "norm.bias", "head.bias"]


@pytest.mark.parametrize(
    "module",
    [
        nn.Dropout(0.5),
        nn.AlphaDropout(0.5),
        nn.Dropout1d(0.5),
        nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Dropout(0.5))),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5),
        nn.LSTM(8, 8, num_layers=2, dropout=0.5),
    ],
    ids=lambda module: type(module).__name__,
)
def test_without_dropout_two_passes_are_equal(module: nn.Module) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(3, 4, 8)
    without_dropout(module.train())
    one, other = module(inputs), module(inputs)
    if isinstance(one, tuple):
        one, other = one[0], other[0]
    assert module.training
    assert one.equal(other)


def test_a_small_model_without_dropout_repeats_itself() -> None:
    model = without_dropout(built(model__dropout=0.5))
    batch = {k: v for k, v in make_batch(2).items() if k != "labels"}
    assert model(**batch).logits.equal(model(**batch).logits)


def test_parameters_are_counted_and_a_tied_one_once() -> None:
    model = Bigram()
    assert count_parameters(model) == {
        "parameters": 32 * 8 + 8 + 8 + 32 * 8 + 32,
        "trainable_parameters": 32 * 8 + 8 + 8 + 32 * 8 + 32,
    }
    model.head.weight = model.embedding.weight
    model.norm.requires_grad_(False)
    assert count_parameters(model) == {
        "parameters": 32 * 8 + 8 + 8 + 32,
        "trainable_parameters": 32 * 8 + 32,
    }


def test_a_model_that_demands_a_mask_cannot_be_packed() -> None:
    class Masked(nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return input_ids * attention_mask

    prepare_for_training(Masked(), make_params().train)
    with pytest.raises(UserError, match=r"Masked.forward demands an attention_mask"):
        prepare_for_training(Masked(), make_params(train__packing=True).train)
