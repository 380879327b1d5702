"""A model that reads a packed row as one text is found by what it does."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from stages.chat.collator import collate
from stages.chat.packed import pack_batch
from stages.chat.token_store import TokenMeta, TokenStore
from stages.models.tiny_gpt import CausalLMOutput, TinyGPT
from stages.probes.documents import DocumentProbe, compare_documents, probe_documents
from stages.training.setup import TrainingBatches
from stages.training.step import Autocast

from ..parts import PAD, VOCABULARY, make_rows
from ..settings import make_params

HALF = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
SOURCES = [["a:1", "a:2", "a:3"], ["a:4", "a:5"], ["a:6"]]


class Deaf(TinyGPT):
    """Looks at no position ids."""

    def forward(self, input_ids: torch.Tensor, **_: torch.Tensor) -> CausalLMOutput:  # type: ignore[override]
        return super().forward(input_ids)


class Recurrent(nn.Module):
    """Its state runs through the row."""

    def __init__(self, vocab_size: int, max_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, vocab_size)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> CausalLMOutput:
        return CausalLMOutput(self.head(self.rnn(self.embedding(input_ids))[0]))


def compare(build: Callable[..., nn.Module], autocast: Autocast) -> DocumentProbe:
    torch.manual_seed(0)
    model = build(vocab_size=VOCABULARY, max_length=64)
    packed = pack_batch(collate(make_rows(6), PAD), [3, 2, 1], PAD)
    return compare_documents(model, packed, SOURCES, VOCABULARY, autocast)


@pytest.mark.parametrize("autocast", [nullcontext, HALF], ids=["fp32", "bf16"])
def test_a_model_that_keeps_documents_apart_passes(autocast: Autocast) -> None:
    assert compare(TinyGPT, autocast) == DocumentProbe(2, [])


@pytest.mark.parametrize("autocast", [nullcontext, HALF], ids=["fp32", "bf16"])
@pytest.mark.parametrize("build", [Deaf, Recurrent])
def test_a_model_that_does_not_is_found(
    build: Callable[..., nn.Module], autocast: Autocast
) -> None:
    found = compare(build, autocast)
    assert found.looked_at == 2
    assert [text[:16] for text in found.leaking] == [
        "a:2 behind a:1: ",
        "a:5 behind a:4: ",
    ]


@pytest.mark.parametrize("packing", [False, True])
def test_documents_of_the_training_s_own_batches_are_looked_at(
    tokens: TokenMeta, packing: bool
) -> None:
    train = make_params(train__packing=packing).train
    store = TokenStore("train")
    batches = TrainingBatches(store, tokens, collate, train, 42, torch.device("cpu"))
    model = TinyGPT(VOCABULARY, max_length=64, dropout=0.5).train()
    before = torch.random.get_rng_state()
    found = probe_documents(
        model, batches, store, steps=3, vocab_size=VOCABULARY, autocast=nullcontext
    )
    assert (found.looked_at > 0, list(found.leaking)) == (packing, [])
    assert model.training
    assert torch.random.get_rng_state().equal(before)
