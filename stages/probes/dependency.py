"""What does an output depend on? On its own input and the past, and on nothing else.

The gradient of one position's logits at the embedded inputs is exactly 0 wherever they cannot
matter (Karpathy, "A Recipe for Training Neural Networks": use backprop to chart dependencies). Such
wiring is learned by heart as well as any other, so a loss curve says nothing of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from ..chat.collator import Batch
from ..training.step import Autocast, forward
from .evaluating import evaluating


@dataclass
class Dependencies:
    """Lists of what is wrong, each named by its positions; asked: outputs that were charted.

    on_future: outputs that see a later token; on_others: outputs that see another row, or another
    document of a packed row; without_input: outputs that do not see their own token.
    """

    asked: int = 0
    on_future: list[str] = field(default_factory=list)
    on_others: list[str] = field(default_factory=list)
    without_input: list[str] = field(default_factory=list)


def chart_dependencies(model: nn.Module, batch: Batch, autocast: Autocast) -> Dependencies | None:
    """Chart the first, a middle and the last but one token of every row, or packed document.

    Gradients of parameters and the modes of modules are left as they were. None: no module embeds
    the tokens, so there is nothing to take a gradient at.
    """
    found = Dependencies()
    with evaluating(model), _embedding_inputs(model) as embedded:
        with autocast():
            logits = forward(model, batch)
        if not embedded:
            return None
        for row, position in _outputs(batch):
            output = logits[row, position].float()
            # weighted, lest contributions of classes cancel out
            weights = torch.linspace(-1.0, 1.0, len(output), device=output.device)
            gradient = None
            if output.requires_grad:  # a cut graph depends on nothing
                (gradient,) = torch.autograd.grad(
                    (output * weights).sum(), embedded[-1], retain_graph=True, allow_unused=True
                )
            seen = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
            if gradient is not None:
                seen = gradient.ne(0).any(-1)
            _compare(found, seen, batch, row, position)
    return found


def _outputs(batch: Batch) -> Iterator[tuple[int, int]]:
    for row in range(len(batch["input_ids"])):
        for real in _texts(batch, row):
            chosen = {real[0], real[len(real) // 2], real[max(len(real) - 2, 0)]}
            yield from ((row, position) for position in sorted(chosen))


def _texts(batch: Batch, row: int) -> Iterator[Sequence[int]]:
    """Positions of the tokens of a row; of a packed one, which has no mask, by its documents."""
    if "attention_mask" in batch:
        yield batch["attention_mask"][row].nonzero().flatten().tolist()
        return
    starts = batch["position_ids"][row].eq(0).nonzero().flatten().tolist()
    for start, end in pairwise([*starts, batch["input_ids"].shape[1]]):
        yield range(start, end)


def _compare(
    found: Dependencies, seen: torch.Tensor, batch: Batch, row: int, position: int
) -> None:
    """seen: bool [B, T], the inputs on which one output depends."""
    found.asked += 1
    name = f"row {row}, token {position}"
    if not seen[row, position]:
        found.without_input.append(name)
    later = seen[row, position + 1 :].nonzero().flatten().tolist()
    if later:
        found.on_future.append(f"{name} sees token {position + 1 + later[0]}")
    others = [other for other in range(len(seen)) if other != row and bool(seen[other].any())]
    if others:
        found.on_others.append(f"{name} sees row {others[0]}")
    earlier = seen[row, : _document_start(batch, row, position)].nonzero().flatten().tolist()
    if earlier:
        found.on_others.append(f"{name} sees token {earlier[0]} of another document")


def _document_start(batch: Batch, row: int, position: int) -> int:
    """Where the document of a position begins: positions restart at 0 with each in a packed row."""
    if "position_ids" not in batch:
        return 0
    starts = batch["position_ids"][row, : position + 1].eq(0).nonzero().flatten()
    return int(starts[-1]) if len(starts) else 0


@contextmanager
def _embedding_inputs(model: nn.Module) -> Iterator[list[torch.Tensor]]:
    """The embedded tokens of a forward pass, as leaves that gradients can be taken at."""
    embedded: list[torch.Tensor] = []

    def saw(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        leaf = output.detach().requires_grad_()
        embedded.append(leaf)
        return leaf

    embedding = _token_embedding(model)
    if embedding is None:
        yield embedded
        return
    handle = embedding.register_forward_hook(saw)
    try:
        yield embedded
    finally:
        handle.remove()


def _token_embedding(model: nn.Module) -> nn.Module | None:
    """The module that embeds token ids: the model's own word for it, else its first Embedding."""
    ask = getattr(model, "get_input_embeddings", None)
    if callable(ask):
        found: nn.Module = ask()
        return found
    return next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
