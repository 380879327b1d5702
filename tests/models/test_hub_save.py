"""What is written is the model that was trained, by itself and merged."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stages.chat.tokenizer import ChatTokenizer
from stages.models.build import build_model
from stages.models.hub_save import (
    MERGED,
    compare_reloaded,
    logits_of,
    stop_tokens_agree,
    write_hub_model,
)

from ..chat.tokenizers import TODAY
from ..settings import ROOT
from .llama import hub_model, keep_llama

CPU = torch.device("cpu")
IDS = list(range(3, 40))


@pytest.fixture(scope="module")
def revision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    scratch = tmp_path_factory.mktemp("llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDSHORT_MODELS", str(scratch / "store"))
        yield keep_llama(scratch)


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(str(ROOT / "data/tokenizer"), TODAY)


def trained(revision: str, adapter: str) -> torch.nn.Module:
    """A model that three steps have changed."""
    torch.manual_seed(1)
    model = build_model(hub_model(revision, adapter=adapter), 740, CPU)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(3):
        model(input_ids=torch.tensor([IDS])).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["lora", "none"])
def test_the_model_is_found_again_in_a_fresh_process(
    revision: str, tokenizer: ChatTokenizer, tmp_path: Path, adapter: str
) -> None:
    params = hub_model(revision, adapter=adapter, save_merged=adapter == "lora")
    model = trained(revision, adapter)
    logits = logits_of(model, IDS)
    write_hub_model(tmp_path, model, params, tokenizer)
    found = compare_reloaded(tmp_path, params, IDS, logits, CPU)
    assert found.saved == 0.0
    assert found.base > 0.01
    assert (found.merged is None) == (adapter == "none")
    assert (found.merged or 0.0) < 1e-4


@pytest.mark.slow
def test_another_model_in_its_place_is_noticed(
    revision: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    params = hub_model(revision)
    logits = logits_of(trained(revision, "lora"), IDS)
    write_hub_model(tmp_path, build_model(params, 740, CPU), params, tokenizer)
    found = compare_reloaded(tmp_path, params, IDS, logits, CPU)
    assert found.saved > 0.01
    assert found.saved == found.base  # an adapter that was never trained adds nothing


def test_the_merged_model_is_one_that_plain_transformers_loads(
    revision: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    params = hub_model(revision, save_merged=True)
    model = trained(revision, "lora")
    logits = logits_of(model, IDS)
    write_hub_model(tmp_path, model, params, tokenizer)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / MERGED)
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]
    assert np.abs(logits_of(merged, IDS) - logits).max() < 1e-4
    assert merged.generation_config.eos_token_id == tokenizer.stop_token_id
    assert stop_tokens_agree(tmp_path / MERGED, tokenizer)
    assert len(AutoTokenizer.from_pretrained(tmp_path / MERGED)) == 740


def test_an_adapter_names_its_base_model_and_no_path(
    revision: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        write_hub_model(tmp_path / name, trained(revision, "lora"), hub_model(revision), tokenizer)
    text = (tmp_path / "one/adapter_config.json").read_text(encoding="utf-8")
    assert '"base_model_name_or_path": "llama"' in text
    assert str(tmp_path) not in text
    assert "store" not in text
    weights = [(tmp_path / n / "adapter_model.safetensors").read_bytes() for n in ("one", "other")]
    assert weights[0] == weights[1]


def test_a_stop_token_that_generation_does_not_know_is_noticed(
    tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"eos_token_id": [0, 9999]}', encoding="utf-8")
    assert not stop_tokens_agree(tmp_path, tokenizer)
    path.write_text(f'{{"eos_token_id": {tokenizer.stop_token_id}}}', encoding="utf-8")
    assert stop_tokens_agree(tmp_path, tokenizer)
