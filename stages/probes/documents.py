"""Does the model keep the documents of a packed row apart? Asked of the model, not of its code.

Every second document is replaced by other tokens; the logits of those between must stay. Attention
with a mask leaves them as they were, to the bit. A state that runs through the row (recurrent or
linear attention), a model that does not look at position ids, or one that keeps a cache, does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..chat.collator import Batch
from ..chat.token_store import TokenStore
from ..training.setup import TrainingBatches
from ..training.step import Autocast, forward
from .modes import evaluating

MAX_CHANGE = 1e-2
"""Of the largest logit: room for experts in half precision, which round by how many tokens come to
each. Small models that are not told of their documents change by 0.08 and more."""


@dataclass(frozen=True)
class DocumentProbe:
    """looked_at: documents behind another in their row; leaking: those that another one changed."""

    looked_at: int
    leaking: Sequence[str]


def probe_documents(
    model: nn.Module,
    batches: TrainingBatches,
    store: TokenStore,
    *,
    steps: int,
    vocab_size: int,
    autocast: Autocast,
) -> DocumentProbe:
    """The first micro-batch of the first `steps` in which documents share a row, if there is one.

    The model is left in the mode in which it was, and draws no random numbers.
    """
    for step in range(steps):
        dealt = batches.plan.micro_batches(step)
        for number, packs in enumerate(dealt):
            if max(map(len, packs)) > 1:
                sources = [[store[row].source for row in pack] for pack in packs]
                batch = batches.of_step(step)[number]
                return compare_documents(model, batch, sources, vocab_size, autocast)
    return DocumentProbe(0, [])


@torch.no_grad()
def compare_documents(
    model: nn.Module,
    batch: Batch,
    sources: Sequence[Sequence[str]],
    vocab_size: int,
    autocast: Autocast,
) -> DocumentProbe:
    """sources: of the documents of each row of a packed batch."""
    ids, positions = batch["input_ids"], batch["position_ids"]
    document = (positions == 0).cumsum(-1) - 1
    others = torch.where(document % 2 == 0, (ids + 1) % vocab_size, ids)
    with evaluating(model), autocast():
        before = forward(model, batch)
        after = forward(model, {**batch, "input_ids": others})
    change = (after - before).abs().amax(-1) / before.abs().max()
    looked_at, leaking = 0, []
    for row, names in enumerate(sources):
        for number in range(1, len(names), 2):
            largest = float(change[row][document[row] == number].max())
            looked_at += 1
            if not largest <= MAX_CHANGE:
                text = f"{names[number]} behind {names[number - 1]}: logits change by {largest:.2g}"
                leaking.append(f"{text} of the largest")
    return DocumentProbe(looked_at, leaking)
