"""A Llama small enough for a test, in transformers' own format, with the demo's tokenizer."""

import shutil
from pathlib import Path
from typing import Any

import torch

from stages.config.schema import HubModel, Params
from stages.provenance.base_model import keep

from ..settings import ROOT, make_params

LORA = {
    "r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "target_modules": "all-linear",
    "modules_to_save": [],
    "use_rslora": False,
    "use_dora": False,
}


def tiny_llama(vocab_size: int, seed: int = 0) -> Any:
    """Random weights under `seed`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def write_llama(directory: Path, vocab_size: int = 2048, seed: int = 0) -> Path:
    """`tiny_llama`, and the tokenizer of the demo data beside it."""
    tiny_llama(vocab_size, seed).save_pretrained(directory)
    for file in (ROOT / "data/tokenizer").iterdir():
        shutil.copy(file, directory)
    return directory


def keep_llama(scratch: Path, **values: Any) -> str:
    """The revision of a Llama in the store."""
    return keep(write_llama(scratch / "llama", **values), "llama")


def hub_tree(revision: str, **values: Any) -> dict[str, Any]:
    """A `model` group of params.yaml."""
    lora = {**LORA, **values.pop("lora", {})}
    return {
        "name": "hub",
        "name_or_path": "llama",
        "revision": revision,
        "tokenizer": f"llama@{revision}",
        "frozen": [],
        "gguf_file": None,
        "dtype": "float32",
        "attn_implementation": "sdpa",
        "trust_remote_code": False,
        "allow_pickle": False,
        "adapter": "lora",
        "lora": lora,
        "save_merged": False,
        **values,
    }


def hub_params(revision: str, **values: Any) -> Params:
    """Params whose model is the Llama of `revision`; keys with `model_` change its group."""
    model = {k.removeprefix("model_"): values.pop(k) for k in list(values) if k[:6] == "model_"}
    return make_params(model=hub_tree(revision, **model), **values)


def hub_model(revision: str, **values: Any) -> HubModel:
    model = hub_params(revision, **{f"model_{name}": value for name, value in values.items()}).model
    assert isinstance(model, HubModel)
    return model
