"""Documents that share a row are blind to each other: packed training is unpacked training."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stages.chat.collator import Batch, collate
from stages.chat.packed import pack_batch
from stages.models.build import build_model
from stages.models.tiny_gpt import TinyGPT
from stages.models.tiny_lora import TinyLoRALanguageModel
from stages.training.loss import causal_lm_loss
from stages.training.packing import pack_by_length
from stages.training.step import forward

from ..parts import PAD, VOCABULARY, flat_gradient, make_rows
from .llama import hub_model, keep_llama

ROWS = make_rows(12)
LENGTHS = [len(row.input_ids) for row in ROWS]
PACKS = pack_by_length(np.array(LENGTHS), 32)


def tiny_gpt() -> nn.Module:
    return TinyGPT(VOCABULARY, d_model=16, n_layers=2, n_heads=2, max_length=32, local_window=4)


def tiny_lora() -> nn.Module:
    return TinyLoRALanguageModel(VOCABULARY, n_heads=2, max_length=32)


def with_window(attention: str) -> nn.Module:
    """Layers that see three tokens, set up as stages/models/hub.py does it."""
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = MistralConfig(**sizes, sliding_window=3, use_cache=False, initializer_range=0.2)
    model: nn.Module = MistralForCausalLM._from_config(config, attn_implementation=attention)
    return model


def llama(revision: str, **values: Any) -> nn.Module:
    return build_model(hub_model(revision, **values), VOCABULARY, torch.device("cpu"))


MODELS: dict[str, Callable[[str], nn.Module]] = {
    "tiny_gpt": lambda _: tiny_gpt(),
    "tiny_lora": lambda _: tiny_lora(),
    "llama, sdpa": partial(llama, adapter="none", attn_implementation="sdpa"),
    "llama, eager": partial(llama, adapter="none", attn_implementation="eager"),
    "llama with an adapter": partial(llama, adapter="lora"),
    "sliding window, sdpa": lambda _: with_window("sdpa"),
    "sliding window, eager": lambda _: with_window("eager"),
}


@pytest.fixture(scope="module")
def revision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    scratch = tmp_path_factory.mktemp("llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDSHORT_MODELS", str(scratch / "store"))
        yield keep_llama(scratch, vocab_size=VOCABULARY)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, revision: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[request.param](revision)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # an adapter that begins at 0 would change nothing
            nn.init.normal_(parameter, std=0.1)
    return model.train()


def padded_and_packed() -> tuple[Batch, Batch]:
    """The same documents one to a row, and packed; both in the order of the packs."""
    batch = collate([ROWS[number] for number in PACKS.members], PAD)
    counts = [len(PACKS[pack]) for pack in range(len(PACKS))]
    assert len(counts) > 2 and max(counts) > 3
    return batch, pack_batch(batch, counts, PAD)


def documents(batch: Batch, packed: Batch, values: torch.Tensor) -> list[torch.Tensor]:
    """[T of the document, ...] of every document of a padded batch, out of packed rows."""
    found, number = [], 0
    lengths = batch["attention_mask"].sum(1).tolist()
    for pack in range(len(PACKS)):
        start = 0
        for _ in PACKS[pack]:
            found.append(values[pack, start : start + lengths[number]])
            start += lengths[number]
            number += 1
    return found


def test_each_document_has_the_logits_and_the_loss_that_it_has_alone(model: nn.Module) -> None:
    batch, packed = padded_and_packed()
    with torch.no_grad():
        alone, together = forward(model, batch), forward(model, packed)
    largest = float(alone.abs().max())
    assert largest > 0.1
    for number, logits in enumerate(documents(batch, packed, together)):
        torch.testing.assert_close(
            logits, alone[number, : len(logits)], rtol=0, atol=2e-6 * largest
        )
        labels = batch["labels"][number : number + 1]
        loss = causal_lm_loss(logits[None], labels[:, : len(logits)], 1)
        expected = causal_lm_loss(alone[number : number + 1], labels, 1)
        assert float(loss) == pytest.approx(float(expected), abs=2e-5)


def test_the_loss_and_the_gradient_are_those_of_unpacked_training(model: nn.Module) -> None:
    found = []
    for batch in padded_and_packed():
        model.zero_grad()
        loss = causal_lm_loss(forward(model, batch), batch["labels"], 40)
        loss.backward()  # type: ignore[no-untyped-call]
        found.append((float(loss.detach()), flat_gradient(model).clone()))
    (loss_alone, alone), (loss_packed, packed_gradient) = found
    assert loss_packed == pytest.approx(loss_alone, rel=1e-6)
    assert float(alone.norm()) > 0.1
    torch.testing.assert_close(packed_gradient, alone, rtol=0, atol=2e-6 * float(alone.norm()))


def test_no_document_sees_another(model: nn.Module) -> None:
    """A change of one document leaves the logits of all others as they were, to the bit."""
    batch, packed = padded_and_packed()
    before = documents(batch, packed, forward(model, packed))
    length = int(batch["attention_mask"][0].sum())
    changed = {name: tensor.clone() for name, tensor in packed.items()}
    changed["input_ids"][0, :length] = 3
    after = documents(batch, changed, forward(model, changed))
    assert not after[0].equal(before[0])
    assert all(one.equal(other) for one, other in zip(after[1:], before[1:], strict=True))


def test_no_gradient_flows_from_one_document_to_another(model: nn.Module) -> None:
    batch, packed = padded_and_packed()
    embedding = next(m for m in model.modules() if isinstance(m, nn.Embedding))
    embedded: list[torch.Tensor] = []
    hook = embedding.register_forward_hook(
        lambda *call: embedded.append(call[2].requires_grad_().retain_grad() or call[2])
    )
    logits = documents(batch, packed, forward(model, packed))
    hook.remove()
    logits[1].square().sum().backward()  # type: ignore[no-untyped-call]
    assert embedded[0].grad is not None
    reached = documents(batch, packed, embedded[0].grad.abs().sum(-1))
    assert bool((reached[1] > 0).all())
    assert all(not bool(other.any()) for n, other in enumerate(reached) if n != 1)


def test_with_an_attention_mask_they_would_see_each_other(model: nn.Module) -> None:
    """Why a packed batch has none, and that the tests above can fail."""
    batch, packed = padded_and_packed()
    packed["attention_mask"] = torch.ones_like(packed["input_ids"])
    alone = forward(model, batch)
    together = documents(batch, packed, forward(model, packed))
    assert not torch.allclose(together[1], alone[1, : len(together[1])], rtol=0, atol=1e-3)
