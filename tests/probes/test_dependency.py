"""A leak is seen whatever the loss says; sound models show none."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from stages.chat.collator import Batch
from stages.chat.packed import pack_batch
from stages.models.tiny_gpt import TinyGPT
from stages.models.tiny_lora import TinyLoRALanguageModel
from stages.probes.dependency import Dependencies, chart_dependencies
from stages.training.setup import make_autocast

from ..models.llama import tiny_llama
from ..parts import PAD, VOCABULARY, Bigram, Output, make_batch
from ..settings import make_params

HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "tiny_gpt": lambda: TinyGPT(VOCABULARY, 16, 2, 2, 64, dropout=0.5),
    "local_window": lambda: TinyGPT(VOCABULARY, 16, 2, 2, 64, local_window=2),
    "tied": lambda: TinyGPT(VOCABULARY, 16, 1, 2, 64, tie_word_embeddings=True),
    "tiny_lora": lambda: TinyLoRALanguageModel(VOCABULARY, 16, 1, 2, 64, 4, 8.0),
    "llama": lambda: tiny_llama(VOCABULARY),
    "bigram": Bigram,
}


def chart(model: nn.Module, batch: Batch | None = None, precision: str = "fp32") -> Dependencies:
    autocast = make_autocast(make_params(run__precision=precision).run)
    found = chart_dependencies(model, batch or make_batch(2), autocast)
    assert found is not None
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_sound_model_sees_its_input_and_the_past_only(name: str, precision: str) -> None:
    torch.manual_seed(0)
    model = HEALTHY[name]().train()
    found = chart(model, precision=precision)
    assert (found.asked, found.on_future, found.on_others, found.without_input) == (6, [], [], [])
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


class Wired(nn.Module):
    """Embedding, an operation [B, T, D] -> [B, T, D], head."""

    def __init__(self, operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, VOCABULARY)
        self.operation = operation

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> Output:
        return Output(self.head(self.operation(self.embedding(input_ids))))


FAULTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], set[str]]] = {
    "sees_all": (lambda x: x + x.mean(1, keepdim=True), {"on_future"}),
    "sees_one_ahead": (lambda x: x + x.roll(-1, 1), {"on_future"}),
    "mixes_the_batch": (lambda x: x + x.mean(0, keepdim=True), {"on_others"}),
    "view_for_transpose": (
        lambda x: x.reshape(x.shape[0], x.shape[2], x.shape[1]).transpose(1, 2),
        {"on_future"},
    ),
    "detached": (torch.Tensor.detach, {"without_input"}),
    "zeroed": (torch.zeros_like, {"without_input"}),
    "one_behind": (lambda x: x.roll(1, 1), {"without_input"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_wiring_shows(name: str) -> None:
    operation, expected = FAULTS[name]
    found = chart(Wired(operation))
    lists = ("on_future", "on_others", "without_input")
    assert expected <= {name for name in lists if getattr(found, name)}


def test_documents_of_a_packed_row_must_not_see_each_other() -> None:
    packed = {
        "input_ids": torch.arange(2, 12)[None],
        "attention_mask": torch.ones(1, 10, dtype=torch.int64),
        "labels": torch.arange(2, 12)[None],
        "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]]),
    }
    assert chart(Bigram(), packed).on_others == []
    leaking = chart(TinyLeaking(), packed).on_others
    assert leaking[0] == "row 0, token 5 sees token 0 of another document"


PACKED = pack_batch(make_batch(3), [2, 1], PAD)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", HEALTHY)
def test_sound_models_keep_the_documents_of_packed_rows_apart(name: str, precision: str) -> None:
    torch.manual_seed(0)
    model = HEALTHY[name]()
    if name == "llama":
        model.config.use_cache = False  # type: ignore[union-attr]
    found = chart(model, PACKED, precision)
    assert (found.on_future, found.on_others, found.without_input) == ([], [], [])
    assert found.asked >= 9


def test_a_llama_with_a_cache_and_a_state_that_runs_on_do_not() -> None:
    cached = tiny_llama(VOCABULARY)
    assert cached.config.use_cache
    for model in (cached, TinyLeaking()):
        assert "of another document" in chart(model, PACKED).on_others[0]


class TinyLeaking(Bigram):
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> Output:
        return Output(self.head(self.embedding(input_ids).cumsum(1)))


def test_a_model_that_embeds_nothing_cannot_be_charted() -> None:
    class Flat(nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Output:
            return Output(input_ids[..., None].float())

    autocast = make_autocast(make_params().run)
    assert chart_dependencies(Flat(), make_batch(2), autocast) is None
