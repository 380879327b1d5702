"""AdamW over the trainable parameters, with weight decay on matrices only."""

from typing import Protocol

from torch import nn
from torch.optim import AdamW, Optimizer

from ..config.errors import UserError
from ..config.schema import Optimizer as OptimizerParams


class BuildOptimizer(Protocol):
    def __call__(
        self,
        model: nn.Module,
        params: OptimizerParams,
        *,
        learning_rate: float,
        weight_decay: float,
    ) -> Optimizer: ...


def build_optimizer(
    model: nn.Module, params: OptimizerParams, *, learning_rate: float, weight_decay: float
) -> Optimizer:
    """Biases and gains (fewer than two dimensions) are not decayed, as nanoGPT has it.

    Raises UserError when the model has no trainable parameter.
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
    return AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate,
        betas=(params.adam_beta1, params.adam_beta2),
        eps=params.adam_epsilon,
    )
