"""Can the model tell the stop token from all others, where its head does not train?

A token that the base model never saw (reserved, or added by whoever resized the vocabulary) has a
row in the head like that of other such tokens, near the mean of all rows or near zero. Tokens whose
rows are equal have equal logits whatever an adapter does below the head, and so have at most half
of the probability each: a stop token among them is said by chance.
"""

from dataclasses import dataclass
from typing import Any

import torch

ALIKE = 0.01
"""Of the median distance of a row from the mean row. Rows that transformers adds to a head are some
3e-5 of the standard deviation from the mean; trained rows are farther apart by orders."""
SHOWN = 5


@dataclass(frozen=True)
class StopRow:
    """compared: rows of the head, 0 where it trains; alike: what the stop token's row is like."""

    compared: int
    alike: list[str]


@torch.no_grad()
def examine_stop_row(model: Any, stop_token_id: int) -> StopRow:
    """The stop token's row in a frozen head, beside all others.

    A head is what get_output_embeddings() gives, as transformers' models have it.
    """
    find_head = getattr(model, "get_output_embeddings", None)
    head = find_head() if find_head else None
    weight = getattr(head, "weight", None)
    if head is None or weight is None or not weight.is_floating_point():
        return StopRow(0, [])
    if any(parameter.requires_grad for parameter in head.parameters()):
        return StopRow(0, [])
    rows = weight.float()
    row, center = rows[stop_token_id], rows.mean(0)
    near = ALIKE * (rows - center).norm(dim=-1).median()
    others = (rows - row).norm(dim=-1) <= near
    others[stop_token_id] = False
    found = others.nonzero().flatten().tolist()
    alike = [f"the row of token {token}" for token in found[:SHOWN]]
    if len(found) > SHOWN:
        alike.append(f"the rows of {len(found) - SHOWN} more tokens")
    if (row - center).norm() <= near:
        alike.append("the mean of all rows")
    if row.norm() <= near:
        alike.append("zero")
    return StopRow(len(rows), alike)
