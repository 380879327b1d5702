"""Causal language models that transformers loads, with PEFT's adapters.

Files come from a pinned directory (see provenance/base_model.py). What could run code or change
unseen is refused unless it is switched on by name: pickled weights, remote code.
"""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config.errors import UserError, reading
from ..config.schema import HubModel, Lora, Model
from ..provenance.base_model import find_base_model, is_reference
from ..provenance.hashing import inside
from ..provenance.records import read_json

WEIGHTS = (".safetensors", ".gguf")
PICKLES = (".bin", ".pt", ".pth")


def build_hub_model(params: HubModel, vocab_size: int, device: torch.device) -> nn.Module:
    """The pretrained model, frozen below its adapter if it has one.

    Raises UserError for weights that are missing, unsafe or do not fit the tokenizer, and for an
    adapter whose target modules match nothing.
    """
    _refuse_other_tokenizer(params)
    base = load_base(params, device)
    _refuse_small_vocabulary(base, vocab_size, params)
    return base if params.adapter == "none" else add_adapter(base, params)


def load_base(params: HubModel, device: torch.device) -> Any:
    """The base model as its publisher trained it, every weight from its files."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    directory = find_base_model(params.reference, "model.name_or_path").directory
    _refuse_unsafe(directory, params)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # PEFT asks transformers for it by its old name
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
    quantised = _quantisation(params, device)
    where = f"params.yaml: model.name_or_path: {params.name_or_path}"
    with reading(where, "a model of transformers", "use a whole copy of it"):
        model, found = AutoModelForCausalLM.from_pretrained(
            str(directory),
            gguf_file=params.gguf_file,
            dtype=getattr(torch, params.dtype),
            attn_implementation=params.attn_implementation,
            trust_remote_code=params.trust_remote_code,
            use_safetensors=None if params.allow_pickle or params.gguf_file else True,
            local_files_only=True,
            output_loading_info=True,
            **quantised,
        )
    if missing := sorted(found["missing_keys"]):
        raise UserError(
            f"params.yaml: model.name_or_path: {params.name_or_path} has no weights for "
            f"{missing[0]} ({len(missing)} tensors in all), which would be random; use a complete "
            "checkpoint of this architecture"
        )
    model.config.use_cache = False
    return model


def _refuse_unsafe(directory: Path, params: HubModel) -> None:
    """Refuse what could run code, and what names files beyond those that were hashed."""
    config = directory / "config.json"
    if params.gguf_file is None and not config.is_file():
        raise UserError(
            f"params.yaml: model.name_or_path: {params.name_or_path} has no config.json; set "
            "model.gguf_file for a GGUF file"
        )
    suffixes = {path.suffix for path in directory.iterdir()}
    if not suffixes & set(WEIGHTS) and suffixes & set(PICKLES) and not params.allow_pickle:
        raise UserError(
            f"params.yaml: {params.name_or_path} has pickled weights only, which can run code when "
            "they are loaded; use safetensors, or set model.allow_pickle: true"
        )
    if (directory / "adapter_config.json").exists():
        raise UserError(
            f"params.yaml: model.name_or_path: {params.name_or_path} is an adapter "
            "(adapter_config.json), whose base model lies elsewhere; keep the merged model"
        )
    shards = _shards(directory)
    if not params.allow_pickle and (pickled := [one for one in shards if one.endswith(PICKLES)]):
        raise UserError(
            f"params.yaml: {params.name_or_path} has its weights in {pickled[0]}, a pickle, which "
            "can run code when it is loaded; use safetensors, or set model.allow_pickle: true"
        )
    for named in (params.gguf_file, *shards):
        if named and not inside(directory, named).is_file():
            raise UserError(
                f"params.yaml: model.name_or_path: {params.name_or_path} lacks its file {named}"
            )
    if config.is_file() and not params.trust_remote_code and "auto_map" in _read_json(config):
        raise UserError(
            f"params.yaml: {params.name_or_path} brings code of its own (auto_map in its "
            "config.json); read it, then set model.trust_remote_code: true"
        )


def _shards(directory: Path) -> list[str]:
    """The files that the indices of a model in several files name."""
    shards: set[str] = set()
    for index in sorted(directory.glob("*.index.json")):
        table = _read_json(index).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(one, str) for one in table.values()):
            raise UserError(f"{index} has no weight_map from tensors to files; bring it again")
        shards |= set(table.values())
    return sorted(shards)


def _read_json(path: Path) -> dict[str, Any]:
    content = read_json(path, "bring the files of the model again")
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no object; bring the files of the model again")
    return content


def _quantisation(params: HubModel, device: torch.device) -> dict[str, Any]:
    """4-bit weights with double quantisation, as QLoRA has them (Dettmers et al., 2023)."""
    if params.adapter != "qlora":
        return {}
    if device.type != "cuda" or importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            "params.yaml: model.adapter is qlora, which needs a GPU (run=cuda) and the package "
            "bitsandbytes; use lora"
        )
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": settings, "device_map": {"": device}}


def _refuse_small_vocabulary(model: Any, vocab_size: int, params: HubModel) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if vocab_size > rows:
        raise UserError(
            f"params.yaml: model.tokenizer has {vocab_size} ids, but the embedding of "
            f"{params.name_or_path} has {rows} rows; use the tokenizer that belongs to the model"
        )


def _refuse_other_tokenizer(params: HubModel) -> None:
    """Tokens may be added, and reserved ones renamed, but none may have another id.

    Where the base model brings no tokenizer.json, nothing is known.
    """
    if params.tokenizer == params.reference:
        return
    directories = [find_base_model(params.reference, "model.name_or_path").directory]
    if is_reference(params.tokenizer):
        directories.append(find_base_model(params.tokenizer, "model.tokenizer").directory)
    else:
        directories.append(Path(params.tokenizer))
    files = [directory / "tokenizer.json" for directory in directories]
    if not all(file.is_file() for file in files):
        return
    own, given = map(_vocabulary, files)
    moved = [token for token in own if given.get(token, own[token]) != own[token]]
    lost = own.keys() - given.keys()
    if moved or len(lost) > len(own) / 2:
        first = min(moved or lost, key=own.__getitem__)
        raise UserError(
            f"params.yaml: model.tokenizer is not that of {params.name_or_path}: of the {len(own)} "
            f"tokens that the model was trained with, {len(moved)} have another id and {len(lost)} "
            f"none; the first is {first!r}, with the id {own[first]} there and "
            f"{given.get(first, 'none')} here; use {params.reference}"
        )


def _vocabulary(path: Path) -> dict[str, int]:
    """Token -> id of a tokenizer.json, added tokens included."""
    from tokenizers import Tokenizer

    with reading(path, "a tokenizer", "bring the files of the tokenizer again"):
        vocabulary: dict[str, int] = Tokenizer.from_file(str(path)).get_vocab()
    return vocabulary


def add_adapter(base: Any, params: HubModel) -> nn.Module:
    """`base` frozen, with LoRA matrices as PEFT initialises them: A random, B zero."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    lora = params.lora
    if params.adapter == "qlora":
        base = prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=lora.target_modules,
        modules_to_save=lora.modules_to_save or None,
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
    )
    try:
        model: nn.Module = get_peft_model(base, config)
    except (ValueError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"params.yaml: model.lora: {reason}") from None
    _refuse_unmatched(model, lora)
    return model


def _refuse_unmatched(model: Any, lora: Lora) -> None:
    """PEFT is content when one of several names matches; the others would train nothing."""
    modules = [name for name, _ in model.get_base_model().named_modules()]
    targets = [] if isinstance(lora.target_modules, str) else lora.target_modules
    for key, wanted in (("target_modules", targets), ("modules_to_save", lora.modules_to_save)):
        for name in wanted:
            if not any(module == name or module.endswith(f".{name}") for module in modules):
                raise UserError(
                    f"params.yaml: model.lora.{key}: {name!r} matches no module of the model"
                )


def adapters_off(model: nn.Module) -> list[str]:
    """Names of PEFT's layers whose adapters take no part: switched off, or merged into the base."""
    return [name for name, module in model.named_modules() if is_adapter_off(module)]


def is_adapter_off(module: nn.Module) -> bool:
    """Is it a layer of PEFT whose adapters are switched off, or merged into its base?"""
    return getattr(module, "disable_adapters", False) is True or (
        hasattr(module, "base_layer") and getattr(module, "merged", False) is True
    )


def base_inputs(params: Model) -> dict[str, str]:
    """The files of the base model as inputs of a verdict; none for a model without one."""
    if not isinstance(params, HubModel):
        return {}
    return find_base_model(params.reference, "model.name_or_path").inputs()


def is_adapter_parameter(name: str) -> bool:
    """Is it one that PEFT adds to the base model, by its name?"""
    return ".lora_" in name or ".modules_to_save." in name


def checkpoint_activations(model: Any, use_reentrant: bool) -> None:
    """Compute activations again in the backward pass. Raises UserError where a model cannot."""
    if not hasattr(model, "activation_checkpointing_enable"):
        raise UserError(
            "params.yaml: train.gradient_checkpointing is true, but this model has no "
            "activation_checkpointing_enable(), as transformers' models have; set it to false"
        )
    model.activation_checkpointing_enable(
        activation_checkpointing_kwargs={"use_reentrant": use_reentrant}
    )


def reentrant_modules(model: nn.Module) -> list[str]:
    """Names of modules that checkpoint in the reentrant way, which needs inputs with gradients."""
    return [
        name
        for name, module in model.named_modules()
        if getattr(module, "gradient_checkpointing", False)
        and getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", {}).get(
            "use_reentrant"
        )
    ]
