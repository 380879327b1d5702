"""What is written is the model that was trained, by itself and merged."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

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


def trained(revision: str, adapter: str, **values: Any) -> torch.nn.Module:
    """A model that three steps have changed."""
    torch.manual_seed(1)
    model = build_model(hub_model(revision, adapter=adapter, **values), 740, CPU)
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
    assert merged.generation_config.eos_token_id == tokenizer.ending_token_ids
    assert merged.lm_head.weight is merged.get_input_embeddings().weight
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
    path.write_text(f'{{"eos_token_id": {tokenizer.ending_token_ids}}}', encoding="utf-8")
    assert stop_tokens_agree(tmp_path, tokenizer)
    path.unlink()
    assert not stop_tokens_agree(tmp_path, tokenizer)


@pytest.mark.parametrize("adapter", ["lora", "none"])
def test_generation_stops_where_answers_do_and_at_the_tokenizers_own_end(
    revision: str, tmp_path: Path, adapter: str
) -> None:
    ending = tmp_path / "tokenizer"
    shutil.copytree(ROOT / "data/tokenizer", ending)
    settings = json.loads((ending / "tokenizer_config.json").read_text(encoding="utf-8"))
    stop, settings["eos_token"] = settings["eos_token"], settings["pad_token"]
    (ending / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokenizer = ChatTokenizer(str(ending), TODAY)
    assert tokenizer.decode([tokenizer.stop_token_id]) == stop
    model = build_model(hub_model(revision, adapter=adapter), 740, CPU)
    write_hub_model(tmp_path / "final", model, hub_model(revision, adapter=adapter), tokenizer)
    saved = GenerationConfig.from_pretrained(tmp_path / "final")
    assert saved.eos_token_id == [tokenizer.stop_token_id, tokenizer.pad_token_id]
    assert stop_tokens_agree(tmp_path / "final", tokenizer)


def test_settings_that_contradict_each_other_are_left_out_and_named(
    revision: str,
    tokenizer: ChatTokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model: Any = build_model(hub_model(revision, adapter="none"), 740, CPU)
    model.generation_config.temperature = 0.6
    model.generation_config.do_sample = False
    write_hub_model(tmp_path, model, hub_model(revision, adapter="none"), tokenizer)
    assert "warning: generation settings of the base model are left out" in capsys.readouterr().out
    assert stop_tokens_agree(tmp_path, tokenizer)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).generation_config.temperature is None


def test_tied_weights_are_written_once_and_tied_again(
    revision: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    model = trained(revision, "none")
    logits = logits_of(model, IDS)
    write_hub_model(tmp_path, model, hub_model(revision, adapter="none"), tokenizer)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.get_input_embeddings().weight
    assert np.array_equal(logits_of(again, IDS), logits)


def test_a_head_that_an_adapter_unties_is_merged_as_it_was_trained(
    revision: str, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    head = {"modules_to_save": ["lm_head"]}
    model = trained(revision, "lora", lora=head)
    logits = logits_of(model, IDS)
    write_hub_model(tmp_path, model, hub_model(revision, lora=head, save_merged=True), tokenizer)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / MERGED)
    assert merged.lm_head.weight is not merged.get_input_embeddings().weight
    assert np.abs(logits_of(merged, IDS) - logits).max() < 1e-4
