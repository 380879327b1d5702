"""The range test finds where the loss falls and where it rises, and places a rate between them."""

import math
from dataclasses import replace

import pytest

from stages.chat.token_store import TokenMeta
from stages.probes.rate_range import (
    HIGHEST,
    LOWEST,
    Finding,
    Sweep,
    read_sweep,
    sweep_rates,
)

from ..settings import make_params


def valley(bottom: float, points: int = 80) -> Sweep:
    """A loss that falls to `bottom` on the log axis and rises steeply behind it."""
    rates = [10 ** (-7 + 8 * n / (points - 1)) for n in range(points)]
    losses = []
    for rate in rates:
        beyond = math.log10(rate / bottom)
        losses.append(
            5 - 3 / (1 + math.exp(-4 * (beyond + 1))) + (20 * beyond if beyond > 0 else 0)
        )
    return Sweep(rates, losses)


def test_the_suggestion_lies_a_tenth_below_the_lowest_loss_and_the_ceiling_above() -> None:
    found = read_sweep(valley(1e-2))
    assert found.suggestion is not None
    assert found.steepest is not None
    assert found.ceiling is not None
    assert 5e-4 < found.suggestion < 2e-3
    assert found.steepest < 1e-2 < found.ceiling < 1e-1


def test_a_rate_has_its_place() -> None:
    found = Finding(suggestion=1e-3, steepest=5e-3, ceiling=1e-1)
    assert found.place(3e-3) is None
    assert found.place(2e-5) is None
    assert found.place(1e-5) == "too low: the loss hardly moves at it"
    assert found.place(0.1) == "too high: the loss rises at it"


def test_a_loss_that_never_falls_suggests_nothing() -> None:
    rising = Sweep([1e-3, 1e-2, 1e-1], [1.0, 2.0, 3.0])
    assert read_sweep(rising).suggestion is None
    assert read_sweep(Sweep([], [])) == Finding(None, None, None)


def test_the_average_has_no_bias_of_its_start() -> None:
    assert Sweep([1e-3] * 4, [2.0] * 4).smoothed == pytest.approx([2.0] * 4)


def test_the_sweep_trains_this_run_at_growing_rates(tokens: TokenMeta) -> None:
    params = make_params(model__d_model=32)
    taken: list[None] = []
    sweep = sweep_rates(params, 60, lambda: taken.append(None))
    assert len(sweep.rates) <= len(taken) <= 60
    assert sweep.rates[0] == pytest.approx(LOWEST)
    growth = (HIGHEST / LOWEST) ** (1 / 59)
    assert sweep.rates[1:] == pytest.approx([rate * growth for rate in sweep.rates[:-1]])
    assert min(sweep.losses) < 0.7 * sweep.losses[0]
    found = read_sweep(sweep)
    rate = found.suggestion
    assert rate is not None
    assert found.place(rate) is None
    assert found.place(rate / 200) == "too low: the loss hardly moves at it"
    assert found.place(HIGHEST) == "too high: the loss rises at it"


def test_the_sweep_repeats_to_the_bit_and_does_not_follow_the_rate_of_the_run(
    tokens: TokenMeta,
) -> None:
    params = make_params(model__d_model=32)
    other = replace(params, train=replace(params.train, learning_rate=0.5))
    assert sweep_rates(params, 20) == sweep_rates(other, 20)
