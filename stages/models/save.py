"""models/final/: weights or adapter as safetensors, config, tokenizer, a model card, its record."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from ..chat.tokenizer import ChatTokenizer
from ..config.errors import UserError
from ..provenance.hashing import files_below
from .record import ModelRecord


def distinct_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of the model with each shared tensor once, under its first name."""
    seen: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    distinct = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() == 0 or key not in seen:
            seen[key] = name
            distinct[name] = tensor.detach().cpu().contiguous()
    return distinct


def write_plain(directory: Path, model: nn.Module, config: dict[str, Any]) -> None:
    """Weights and arguments of a model that transformers does not know.

    Only one metadata key goes into the safetensors file: with more their order varies.
    """
    save_file(distinct_tensors(model), directory / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(config, indent=2, sort_keys=True)
    (directory / "config.json").write_text(f"{text}\n", encoding="utf-8")


def let_others_read(directory: Path) -> None:
    """Give every file the mode that files get here: safetensors writes for its owner alone."""
    mode = (directory / "README.md").stat().st_mode
    for path in files_below(directory):
        path.chmod(mode)


def save_model(
    directory: Path,
    write: Callable[[Path], None],
    tokenizer: ChatTokenizer,
    card: str,
    record: Callable[[Path], ModelRecord],
) -> None:
    """Write the directory anew, in one step: what `write` puts there, the tokenizer and the card.

    record: makes the record of what is in a directory, which then lies beside it.

    Raises UserError when the disk is full or refuses.
    """
    staged = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        staged.mkdir(parents=True)
        write(staged)
        (staged / "README.md").write_text(card, encoding="utf-8")
        tokenizer.save(staged)
        let_others_read(staged)
        record(staged).write(staged)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(staged, ignore_errors=True)
        raise UserError(
            f"{directory} could not be written ({error}); the checkpoints are kept: free space on "
            "the disk, then `dvc repro` goes on from the last one"
        ) from None
    shutil.rmtree(directory, ignore_errors=True)
    staged.rename(directory)
