"""A stop token that a frozen head cannot tell from others is named by what its row is like."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from stages.probes.stop_row import examine_stop_row

from ..parts import STOP, VOCABULARY, Bigram


class Headed(nn.Module):
    """A head as transformers' models give it, with frozen random rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(16, VOCABULARY, bias=False).requires_grad_(False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def as_another(rows: torch.Tensor) -> None:
    rows[STOP] = rows[7] * (1 + 1e-5)


def as_many(rows: torch.Tensor) -> None:
    rows[STOP : STOP + 8] = rows[STOP]


def as_the_mean(rows: torch.Tensor) -> None:
    rows[STOP] = torch.cat([rows[:STOP], rows[STOP + 1 :]]).mean(0)


def as_zero(rows: torch.Tensor) -> None:
    rows[STOP] = 1e-9


@pytest.mark.parametrize(
    ("spoil", "alike"),
    [
        (lambda rows: None, []),
        (as_another, ["the row of token 7"]),
        (
            as_many,
            [*(f"the row of token {token}" for token in range(2, 7)), "the rows of 2 more tokens"],
        ),
        (as_the_mean, ["the mean of all rows"]),
        (as_zero, ["zero"]),
    ],
)
def test_what_the_row_is_like_is_named(
    spoil: Callable[[torch.Tensor], None], alike: list[str]
) -> None:
    model = Headed()
    spoil(model.head.weight.data)
    found = examine_stop_row(model, STOP)
    assert (found.compared, found.alike) == (VOCABULARY, alike)


def test_a_head_that_trains_and_a_model_that_names_none_are_not_asked() -> None:
    model = Headed()
    as_another(model.head.weight.data)
    model.head.requires_grad_(True)
    assert examine_stop_row(model, STOP).compared == 0
    assert examine_stop_row(Bigram(), STOP).compared == 0
