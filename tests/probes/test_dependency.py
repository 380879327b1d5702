"""A leak is seen whatever the loss says; sound models show none."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from stages.chat.collator import Batch
from stages.models.tiny_gpt import TinyGPT
from stages.models.tiny_lora import TinyLoRALanguageModel
from stages.probes.dependency import Dependencies, chart_dependencies
from stages.training.setup import make_autocast

from ..models.llama import tiny_llama
from ..parts import VOCABULARY, Bigram, Output, make_batch
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


def test_a_model_that_embeds_nothing_cannot_be_charted() -> None:
    class Flat(nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Output:
            return Output(input_ids[..., None].float())

    autocast = make_autocast(make_params().run)
    assert chart_dependencies(Flat(), make_batch(2), autocast) is None
