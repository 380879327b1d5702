"""Are the numbers of the recipe such that a training can work with them? Read off what was built.

A run with a bad one goes on without an error, and the first steps hardly show it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from torch import nn
from torch.optim import Optimizer

from ..chat.token_store import TokenRow
from ..config.schema import Train
from ..training.evaluation import first_turns
from .dropout import dropout_probabilities
from .observe import StepRecord


@dataclass(frozen=True)
class Recipe:
    """decay_per_step: share of its size that a weight loses to decay in a step at the peak rate;
    decayed_vectors: names of the gains and biases that are decayed; dropout: the largest
    probability, and the module that has it; epsilon_share: the optimizer's epsilon over the
    root-mean-square of a matrix's gradient (median over matrices), None without an epsilon or a
    gradient; asked: how many answers an evaluation asks for; cut_off: the rows in whose stead it
    gets the beginning of one, for train.max_new_tokens is less than the answer takes.
    """

    decay_per_step: float
    decayed_vectors: list[str]
    dropout: tuple[float, str]
    epsilon_share: float | None
    asked: int
    cut_off: list[str]


def read_recipe(
    model: nn.Module,
    optimizer: Optimizer,
    records: Sequence[StepRecord],
    validation: Iterable[TokenRow],
    train: Train,
) -> Recipe:
    """records: of the first steps, which the optimizer has taken."""
    turns = first_turns(validation, train.eval_generations)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decays = [(group.get("weight_decay", 0.0), group) for group in optimizer.param_groups]
    return Recipe(
        decay_per_step=max(
            (decay * group.get("initial_lr", group["lr"]) for decay, group in decays), default=0.0
        ),
        decayed_vectors=[
            names.get(id(parameter), "(not of the model)")
            for decay, group in decays
            for parameter in group["params"]
            if decay and parameter.ndim < 2
        ],
        dropout=max(((p, name) for name, p in dropout_probabilities(model)), default=(0.0, "")),
        epsilon_share=_epsilon_share(model, optimizer, records),
        asked=len(turns),
        cut_off=[turn.source for turn in turns if len(turn.answer) > train.max_new_tokens],
    )


def _epsilon_share(
    model: nn.Module, optimizer: Optimizer, records: Sequence[StepRecord]
) -> float | None:
    epsilons = [group["eps"] for group in optimizer.param_groups if "eps" in group]
    sizes = []
    for name, parameter in model.named_parameters():
        norms = [record.grad_norms.get(name, 0.0) * _clipped(record) for record in records]
        size = median(norms) / math.sqrt(parameter.numel())
        if parameter.requires_grad and parameter.ndim >= 2 and size > 0:
            sizes.append(size)
    if not epsilons or not sizes:
        return None
    return float(max(epsilons)) / median(sizes)


def _clipped(record: StepRecord) -> float:
    """Share of its gradients that clipping left to the optimizer."""
    share = record.applied_norm / record.grad_norm if record.grad_norm else 0.0
    return min(share, 1.0) if math.isfinite(share) else 0.0
