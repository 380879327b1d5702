"""A trained model of transformers on disk, and whether it is the one that was trained.

models/final/ holds the adapter (or all weights, without one); merged/ below it the model with the
adapter merged into its weights, which needs neither PEFT nor the base model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..chat.tokenizer import ChatTokenizer
from ..config.fresh_process import in_fresh_processes
from ..config.schema import HubModel
from .hub import load_base

MERGED = "merged"
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Reloaded:
    """Largest absolute differences of logits to the trained model's, each in a fresh process.

    base: of the base model without the adapter; merged: None where nothing was merged.
    """

    saved: float
    merged: float | None
    base: float


def write_hub_model(
    directory: Path, model: Any, params: HubModel, tokenizer: ChatTokenizer
) -> None:
    """Write adapter or weights, generation settings, and the merged model if params ask for it.

    Merging changes `model`: it is the last thing to be done with it.
    """
    base = model.get_base_model() if params.adapter != "none" else model
    base.generation_config = writable_settings(base.generation_config)
    base.generation_config.eos_token_id = tokenizer.ending_token_ids
    base.generation_config.pad_token_id = tokenizer.pad_token_id
    base.config.use_cache = True
    base.generation_config.save_pretrained(directory)
    if params.adapter == "none":
        model.save_pretrained(directory)
        return
    adapter = model.peft_config["default"]
    adapter.base_model_name_or_path = params.name_or_path
    adapter.revision = params.revision
    # no vocabulary is ever resized here, and PEFT would ask the hub whether one was
    model.save_pretrained(directory, save_embedding_layers=False)
    if params.save_merged:
        model.merge_and_unload().save_pretrained(directory / MERGED)
        tokenizer.save(directory / MERGED)


def writable_settings(settings: Any) -> Any:
    """Generation settings that transformers writes: it loads, but does not write, contradictions.

    A temperature without sampling is one, which some published models have.
    """
    try:
        settings.validate(strict=True)
    except ValueError as error:
        reason = str(error).strip().splitlines()[1:2]
        print(f"warning: generation settings of the base model are left out: {' '.join(reason)}")
        return type(settings)(bos_token_id=settings.bos_token_id)
    return settings


@torch.no_grad()
def logits_of(model: Any, ids: Sequence[int]) -> Logits:
    """float32 [T, V] of one sequence of tokens, without dropout."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    logits = model(input_ids=torch.tensor([list(ids)], device=device)).logits[0]
    model.train(was_training)
    found: Logits = logits.float().cpu().numpy()
    return found


def compare_reloaded(
    directory: Path, params: HubModel, ids: Sequence[int], trained: Logits, device: torch.device
) -> Reloaded:
    """Load what was written in fresh processes, and hold its logits against the trained model's."""
    kinds = ["base", "saved", *([MERGED] if params.save_merged else [])]
    reload = partial(_reload, directory=directory, params=params, ids=list(ids), device=device)
    found = dict(zip(kinds, in_fresh_processes(reload, kinds), strict=True))
    largest = {kind: float(np.abs(one - trained).max()) for kind, one in found.items()}
    return Reloaded(largest["saved"], largest.get(MERGED), largest["base"])


def _reload(
    kind: str, directory: Path, params: HubModel, ids: list[int], device: torch.device
) -> Logits:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    if kind == MERGED or (kind == "saved" and params.adapter == "none"):
        place = directory / MERGED if kind == MERGED else directory
        plain = AutoModelForCausalLM.from_pretrained(
            str(place), dtype=getattr(torch, params.dtype), local_files_only=True
        )
        return logits_of(plain.to(device), ids)
    base = load_base(params, device).to(device)
    if kind == "base":
        return logits_of(base, ids)
    return logits_of(PeftModel.from_pretrained(base, str(directory)), ids)


def stop_tokens_agree(directory: Path, tokenizer: ChatTokenizer) -> bool:
    """Do the saved generation settings stop at every token at which the tokenizer's text ends?"""
    path = directory / "generation_config.json"
    if not path.is_file():
        return False
    named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    return set(tokenizer.ending_token_ids) <= set(named if isinstance(named, list) else [named])
