"""AdamW over the trainable parameters, with weight decay on matrices only."""

from importlib.util import find_spec
from typing import Any, Protocol

from torch import nn
from torch.optim import AdamW, Optimizer

from ..config.errors import UserError
from ..config.schema import Optim
from ..config.schema import Optimizer as OptimizerParams

OF_BITSANDBYTES = {"adamw_bnb_8bit": "AdamW8bit", "paged_adamw_8bit": "PagedAdamW8bit"}


class BuildOptimizer(Protocol):
    def __call__(
        self,
        model: nn.Module,
        params: OptimizerParams,
        *,
        learning_rate: float,
        weight_decay: float,
        kind: Optim,
    ) -> Optimizer: ...


def build_optimizer(
    model: nn.Module,
    params: OptimizerParams,
    *,
    learning_rate: float,
    weight_decay: float,
    kind: Optim = "adamw_torch",
) -> Optimizer:
    """Biases and gains (fewer than two dimensions) are not decayed, as nanoGPT has it.

    kind: torch's AdamW, or one of bitsandbytes with its moments in 8 bits (Dettmers et al., "8-bit
    Optimizers via Block-wise Quantization", 2022). Raises UserError when the model has no trainable
    parameter, or when bitsandbytes is needed and not installed.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise UserError(
            "the model has no trainable parameter; loosen model.frozen, or see that the adapter's "
            "target modules match"
        )
    matrices = [parameter for parameter in trainable if parameter.ndim >= 2]
    others = [parameter for parameter in trainable if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    build = AdamW if kind == "adamw_torch" else _of_bitsandbytes(kind, model)
    optimizer: Optimizer = build(
        [group for group in groups if group["params"]],
        lr=learning_rate,
        betas=(params.adam_beta1, params.adam_beta2),
        eps=params.adam_epsilon,
    )
    return optimizer


def _of_bitsandbytes(kind: Optim, model: nn.Module) -> Any:
    """The class; embeddings keep their moments in 32 bits, as transformers' Trainer has it."""
    if find_spec("bitsandbytes") is None:
        raise UserError(
            f"params.yaml: 'train.optim' is {kind}, which needs the package bitsandbytes; install "
            "it, or use adamw_torch"
        )
    import bitsandbytes

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    return getattr(bitsandbytes.optim, OF_BITSANDBYTES[kind])
