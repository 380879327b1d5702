"""The weights of models/final/, back in the model that the run builds."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ..config.errors import UserError
from ..config.schema import HubModel, Model

ADAPTER = "adapter_model.safetensors"


def load_trained(model: nn.Module, directory: Path, params: Model) -> None:
    """Put what `directory` holds in the place of the weights, all of them, or of the adapter.

    Raises UserError when a file is damaged, or holds the tensors of another model.
    """
    adapter = isinstance(params, HubModel) and params.adapter != "none"
    files = [directory / ADAPTER] if adapter else sorted(directory.glob("model*.safetensors"))
    state: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            state |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{file}: not readable ({error}); `dvc checkout` brings it back"
            ) from None
    try:
        strangers, unset = _load_adapter(model, state) if adapter else _load_whole(model, state)
    except RuntimeError as error:  # of torch, over a shape
        raise UserError(
            f"{directory} holds another model: {str(error).splitlines()[-1].strip()}"
        ) from None
    if strangers or unset:
        name = [*strangers, *unset][0]
        raise UserError(
            f"{directory} holds another model than params.yaml describes: {name} is "
            f"{'unknown' if strangers else 'missing'}"
        )


def _load_adapter(model: nn.Module, state: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    from peft import set_peft_model_state_dict

    result = set_peft_model_state_dict(model, state)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return list(result.unexpected_keys), [key for key in result.missing_keys if key in trained]


def _load_whole(model: nn.Module, state: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """A tensor that several names share was written under one of them."""
    result = model.load_state_dict(state, strict=False)
    tensors = model.state_dict()
    there = {tensors[name].data_ptr() for name in state if name in tensors}
    unset = [name for name in result.missing_keys if tensors[name].data_ptr() not in there]
    return list(result.unexpected_keys), unset
