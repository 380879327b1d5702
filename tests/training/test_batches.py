"""The micro-batches of a step: which rows they hold, and which share one row of their tensors."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

from stages.training.batches import BatchPlan, Packs
from stages.training.order import BatchOrder

from ..settings import make_params

LENGTHS = np.random.default_rng(0).integers(4, 33, 41)
MODES: dict[str, dict[str, Any]] = {
    "rows": {},
    "grouped": {"group_by_length": True},
    "packed": {"packing": True},
    "packed and grouped": {"packing": True, "group_by_length": True},
}
BY_TOKENS: dict[str, dict[str, Any]] = {
    "by tokens": {"max_tokens_per_batch": 100},
    "by tokens, grouped": {"max_tokens_per_batch": 100, "group_by_length": True},
    "by tokens, packed": {"max_tokens_per_batch": 130, "packing": True},
}
EVERY = {**MODES, **BY_TOKENS}


def plan(seed: int = 3, **values: Any) -> BatchPlan:
    train = make_params(**{f"train__{key}": value for key, value in values.items()}).train
    return BatchPlan(LENGTHS, 64, train, seed)


def rows_of(micro_batches: list[Packs]) -> list[int]:
    return [row for packs in micro_batches for pack in packs for row in pack]


def test_by_default_each_row_is_alone_and_in_the_order_of_the_seed() -> None:
    order = BatchOrder(41, 4, 3)
    for step in range(12):
        expected = order.micro_batches(step, 2)
        found = plan().micro_batches(step)
        assert found == [[[row] for row in rows] for rows in expected]


@pytest.mark.parametrize("name", EVERY)
def test_every_row_is_seen_once_an_epoch(name: str) -> None:
    chosen = plan(**EVERY[name])
    seen = rows_of(list(chain.from_iterable(chosen.micro_batches(step) for step in range(40))))
    for epoch in range(3):
        assert sorted(seen[41 * epoch : 41 * (epoch + 1)]) == list(range(41))
    first = rows_of(list(chosen.first_epoch()))
    assert first == seen[: len(first)]
    assert set(first) == set(range(41))


@pytest.mark.parametrize("name", MODES)
def test_a_step_has_all_its_micro_batches_and_they_fit(name: str) -> None:
    chosen = plan(gradient_accumulation_steps=2, num_processes=2, **MODES[name])
    for step in range(20):
        micro_batches = chosen.micro_batches(step)
        assert [len(packs) for packs in micro_batches] == [2] * 4
        for pack in chain.from_iterable(micro_batches):
            assert LENGTHS[pack].sum() <= 64


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize(("size", "accumulation", "ranks"), [(8, 1, 1), (1, 8, 1), (2, 2, 2)])
def test_the_rows_of_a_step_do_not_depend_on_how_it_is_split(
    name: str, size: int, accumulation: int, ranks: int
) -> None:
    one = plan(per_device_train_batch_size=2, gradient_accumulation_steps=4, **MODES[name])
    other = plan(
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        num_processes=ranks,
        **MODES[name],
    )
    for step in range(9):
        assert rows_of(one.micro_batches(step)) == rows_of(other.micro_batches(step))


@pytest.mark.parametrize("name", EVERY)
def test_a_step_is_the_same_whatever_was_asked_before(name: str) -> None:
    fresh = [plan(**EVERY[name]).micro_batches(step) for step in reversed(range(15))]
    chosen = plan(**EVERY[name])
    assert [chosen.micro_batches(step) for step in range(15)] == fresh[::-1]
    assert plan(seed=4, **EVERY[name]).micro_batches(0) != fresh[-1]


@pytest.mark.parametrize("name", BY_TOKENS)
def test_micro_batches_that_are_filled_by_tokens_fit_and_are_dealt_whole_to_the_ranks(
    name: str,
) -> None:
    chosen = plan(gradient_accumulation_steps=3, num_processes=2, **BY_TOKENS[name])
    budget = BY_TOKENS[name]["max_tokens_per_batch"]
    sizes = set()
    for step in range(12):
        micro_batches = chosen.micro_batches(step)
        assert len(micro_batches) == 6
        for packs in micro_batches:
            lengths = [int(LENGTHS[pack].sum()) for pack in packs]
            assert len(lengths) * max(lengths) <= budget
            sizes.add(len(packs))
    assert len(sizes) > 1 or name == "by tokens, packed"


def test_grouped_rows_fill_micro_batches_better() -> None:
    def fill(**values: Any) -> float:
        batches = list(plan(max_tokens_per_batch=200, **values).first_epoch())
        lengths = [[int(LENGTHS[pack].sum()) for pack in packs] for packs in batches]
        return sum(map(sum, lengths)) / sum(len(one) * max(one) for one in lengths)

    assert fill(group_by_length=True) > 0.85 > 0.75 > fill()


def test_packs_hold_several_rows_and_come_in_another_order_every_epoch() -> None:
    chosen = plan(packing=True)
    packs = [tuple(pack) for packs in chosen.first_epoch() for pack in packs]
    assert Counter(map(len, packs)).most_common(1)[0][0] > 1
    steps = chosen.count_steps(1.0)
    later = [chosen.micro_batches(step) for step in range(steps, 2 * steps)]
    assert {tuple(pack) for packs in chain(*later) for pack in packs} <= set(packs)
    assert rows_of(later[0]) != rows_of(chosen.micro_batches(0))


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 11), (2.0, 21), (0.1, 2), (0.001, 1)])
def test_steps_are_counted_by_rows(epochs: float, steps: int) -> None:
    assert plan().count_steps(epochs) == steps


def test_packed_rows_need_fewer_steps() -> None:
    packs = len({tuple(p) for packs in plan(packing=True).first_epoch() for p in packs})
    assert packs < 41
    assert plan(packing=True).count_steps(4.0) == packs
