"""Build the model that params.yaml describes, and freeze what it says is frozen."""

import inspect
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ..config.errors import UserError
from ..config.hooks import load_target
from ..config.schema import CustomModel, HubModel, Model, Train
from .hub import adapters_off, build_hub_model, checkpoint_activations, is_adapter_parameter
from .tiny_gpt import TinyGPT
from .tiny_lora import TinyLoRALanguageModel

NOT_ARGUMENTS = ("name", "tokenizer", "frozen")
BUILT_IN: dict[str, type[nn.Module]] = {"tiny_gpt": TinyGPT, "tiny_lora": TinyLoRALanguageModel}


def build_model(params: Model, vocab_size: int, device: torch.device) -> nn.Module:
    """A model in training mode on `device`; its random weights follow from torch's generator.

    A model of your own is built by `_target_(vocab_size=..., **arguments)`. Parameters whose names
    match a pattern of model.frozen are frozen. Raises UserError for impossible arguments or a
    pattern that matches nothing.
    """
    if isinstance(params, CustomModel):
        model = _build_custom(params, vocab_size)
    elif isinstance(params, HubModel):
        model = build_hub_model(params, vocab_size, device)
    else:
        arguments = {k: v for k, v in asdict(params).items() if k not in NOT_ARGUMENTS}
        model = BUILT_IN[params.name](vocab_size=vocab_size, **arguments)
    if not isinstance(model, nn.Module):
        raise UserError(f"model._target_ returned {type(model).__name__}, not a torch.nn.Module")
    _refuse_other_signature(model)
    if off := adapters_off(model):
        raise UserError(
            f"the adapters of the model are switched off or merged in {len(off)} layers, the first "
            f"is {off[0]}: nothing would train; call enable_adapter_layers() or unmerge_adapter()"
        )
    _freeze(model, params.frozen)
    return model.to(device).train()


def _build_custom(params: CustomModel, vocab_size: int) -> Any:
    target = load_target(params.target, "model._target_")
    arguments = {"vocab_size": vocab_size} | params.arguments
    try:
        inspect.signature(target).bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"params.yaml: model: {params.target} does not take this: {error}"
        ) from None
    if "vocab_size" in params.arguments:
        raise UserError(
            "params.yaml: 'model.vocab_size' is not yours to set: the tokenizer gives it"
        )
    return target(**arguments)


def _refuse_other_signature(model: nn.Module) -> None:
    """A model is called without position_ids by steps, with them where answers are generated here.

    One that brings its own `generate` is not called with them.
    """
    generating = [] if hasattr(model, "generate") else ["position_ids"]
    for more in ([], generating):
        names = ["input_ids", "attention_mask", *more]
        try:
            inspect.signature(model.forward).bind(**dict.fromkeys(names))
        except TypeError as error:
            kind = type(model).__name__
            raise UserError(
                f"{kind}.forward cannot be called with {', '.join(names)}: {error}; it must take "
                "input_ids, attention_mask and, with a default, position_ids"
            ) from None


def _freeze(model: nn.Module, patterns: list[str]) -> None:
    for pattern in patterns:
        matches = [p for name, p in model.named_parameters() if fnmatchcase(name, pattern)]
        if not matches:
            some = ", ".join(name for name, _ in list(model.named_parameters())[:3])
            raise UserError(
                f"params.yaml: model.frozen: {pattern!r} matches no parameter; "
                f"there are {some}, ..."
            )
        for parameter in matches:
            parameter.requires_grad_(False)


def prepare_for_training(model: nn.Module, train: Train) -> nn.Module:
    """Apply, in place, the settings of the training that change how a model computes.

    Raises UserError for a model that cannot go without what a packed batch does not have.
    """
    needed = inspect.signature(model.forward).parameters.get("attention_mask")
    if train.packing and needed is not None and needed.default is inspect.Parameter.empty:
        raise UserError(
            f"params.yaml: train.packing is true, but {type(model).__name__}.forward demands an "
            "attention_mask, which packed rows do not have; give it a default and tell documents "
            "by position_ids, or set train.packing to false"
        )
    if train.gradient_checkpointing:
        checkpoint_activations(model, train.gradient_checkpointing_kwargs.use_reentrant)
    return model


def is_pretrained(params: Model) -> bool:
    """Does the model begin with weights that were trained before?"""
    return isinstance(params, HubModel)


def undeclared_frozen(model: nn.Module, params: Model) -> list[str]:
    """Names of frozen parameters that nobody froze on purpose.

    On purpose are those that a pattern of model.frozen matches, and the base below an adapter.
    """
    adapted = isinstance(params, HubModel) and params.adapter != "none"
    return [
        name
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
        and not any(fnmatchcase(name, pattern) for pattern in params.frozen)
        and not (adapted and not is_adapter_parameter(name))
    ]


def without_dropout(model: nn.Module) -> nn.Module:
    """Set every dropout probability to 0, in place: what the overfit gate needs.

    A probability is the `p` of a dropout module, or a float of any module with dropout in its name
    (attention and recurrent modules keep theirs so). One inside user code is not seen.
    """
    for module in model.modules():
        for name, value in list(vars(module).items()):
            is_dropout = "dropout" in name or (isinstance(module, _DropoutNd) and name == "p")
            if is_dropout and isinstance(value, float):
                setattr(module, name, 0.0)
    return model


def count_parameters(model: nn.Module) -> dict[str, Any]:
    """Numbers of parameters, in all and trainable; a tied one counts once."""
    parameters = list(model.parameters())
    return {
        "parameters": sum(map(_unpacked, parameters)),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
    }


def _unpacked(parameter: nn.Parameter) -> int:
    """Its elements; bitsandbytes packs two 4-bit weights into a byte of what it stores."""
    storage = getattr(parameter, "quant_storage", None)
    return parameter.numel() * (2 * storage.itemsize if storage else 1)
