"""How many parameters would be trained? Counted on torch's meta device: shapes without weights."""

import warnings

import torch
from torch import nn

from ..config.errors import reading
from ..config.schema import HubModel, Model
from ..models.build import build_model, count_parameters
from ..models.hub import add_adapter
from .architecture import hub_config
from .memory import Parameters

META = torch.device("meta")


def count_on_meta(params: Model, vocab_size: int) -> Parameters:
    """Count the model that params describe, adapter included, as transformers and PEFT build it.

    vocab_size: of the tokenizer; a model of the hub has its own. Raises UserError for a model that
    cannot be built from its config.
    """
    with META:
        if isinstance(params, HubModel):
            model = _hub_model(params)
        else:
            model = build_model(params, vocab_size, META)
    counted = count_parameters(model)
    return Parameters(counted["parameters"], counted["trainable_parameters"])


def _hub_model(params: HubModel) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {**hub_config(params)}
    with reading(f"the config of {params.name_or_path}", "that of a model", "bring it again"):
        described = AutoConfig.for_model(config.pop("model_type"), **config)
        base = AutoModelForCausalLM.from_config(described, dtype=getattr(torch, params.dtype))
    if params.adapter == "none":
        return base  # type: ignore[no-any-return]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about PEFT
        return add_adapter(base, params)
