"""One bit more or less changes a digest, and the first difference of two runs is named."""

import hashlib
import math
import struct
from dataclasses import replace

import pytest
import torch
from torch import nn

from stages.probes.fingerprint import (
    RunTrace,
    begins_alike,
    changed_names,
    changed_shares,
    first_difference,
    frozen_digests,
    optimizer_sha256,
    state_sha256,
    tensors_sha256,
    trainable_state,
    weights_sha256,
)

from ..parts import Bigram, make_batch, make_trainer

TRACE = RunTrace([0.5, 0.25, 0.125], [1.0, 2.0, 3.0], "a" * 64, "b" * 64)


def flip_a_bit(tensor: torch.Tensor, place: int, bit: int) -> None:
    tensor.data.view(torch.int32).flatten()[place] ^= 1 << bit


def test_a_digest_is_of_names_dtypes_shapes_and_bytes() -> None:
    tensors = [("a", torch.tensor([1.0, 2.0])), ("b", torch.tensor([[3]]))]
    described = b"a torch.float32 (2,)\0" + struct.pack("<2f", 1.0, 2.0)
    described += b"b torch.int64 (1, 1)\0" + struct.pack("<q", 3)
    assert tensors_sha256(tensors) == hashlib.sha256(described).hexdigest()


def test_equal_models_have_equal_digests() -> None:
    torch.manual_seed(0)
    one = Bigram()
    other = Bigram()
    assert weights_sha256(one) != weights_sha256(other)
    other.load_state_dict(one.state_dict())
    assert weights_sha256(one) == weights_sha256(other)


@pytest.mark.parametrize("name", ["embedding.weight", "norm.bias", "head.bias"])
@pytest.mark.parametrize("bit", [0, 22, 31])
def test_one_bit_changes_the_digest(name: str, bit: int) -> None:
    model = Bigram()
    before = weights_sha256(model)
    flip_a_bit(model.get_parameter(name), 3, bit)
    changed = weights_sha256(model)
    flip_a_bit(model.get_parameter(name), 3, bit)
    assert changed != before
    assert weights_sha256(model) == before


def test_a_negative_zero_is_another_bit_pattern() -> None:
    assert tensors_sha256([("a", torch.zeros(1))]) != tensors_sha256([("a", -torch.zeros(1))])


def test_buffers_count() -> None:
    model = nn.BatchNorm1d(2)
    before = weights_sha256(model)
    model(torch.randn(4, 2))
    assert weights_sha256(model) != before


@pytest.mark.parametrize(
    "other",
    [
        ("b", torch.zeros(4)),
        ("a", torch.zeros(4, dtype=torch.int32)),
        ("a", torch.zeros(2, 2)),
        ("a", torch.zeros(4, dtype=torch.float64)),
    ],
    ids=["name", "dtype", "shape", "width"],
)
def test_name_dtype_and_shape_count(other: tuple[str, torch.Tensor]) -> None:
    assert tensors_sha256([other]) != tensors_sha256([("a", torch.zeros(4))])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.zeros(3).bfloat16(),
        torch.arange(6).reshape(2, 3).T,
    ],
    ids=["scalar", "empty", "bool", "bfloat16", "transposed"],
)
def test_tensors_of_every_kind_have_a_digest(tensor: torch.Tensor) -> None:
    assert tensors_sha256([("a", tensor)]) == tensors_sha256([("a", tensor.clone().contiguous())])


STATE = {"a": [torch.zeros(2), 1, None], "b": {0: 0.5, "c": ()}}


def test_a_state_is_the_same_in_another_order_and_as_a_tuple() -> None:
    other = {"b": {"c": [], 0: 0.5}, "a": (torch.zeros(2), 1, None)}
    assert state_sha256(STATE) == state_sha256(other)


@pytest.mark.parametrize(
    "change",
    [
        {"a": [torch.zeros(2), 1]},
        {"a": [torch.zeros(2), None, 1]},
        {"a": [-torch.zeros(2), 1, None]},
        {"a": [torch.zeros(2), 1.0, None]},
        {"b": {0: 0.5}},
        {"b": {0: math.nextafter(0.5, 1), "c": ()}},
        {"b": {1: 0.5, "c": ()}},
        {"b": {}},
        {"d": None},
    ],
    ids=["shorter", "order", "bit", "type", "lost", "value", "key", "empty", "more"],
)
def test_whatever_changes_in_a_state_changes_its_digest(change: dict[str, object]) -> None:
    assert state_sha256({**STATE, **change}) != state_sha256(STATE)


def test_the_state_of_the_optimizer_counts() -> None:
    torch.manual_seed(0)
    trainers = [make_trainer(Bigram()) for _ in range(2)]
    trainers[1].model.load_state_dict(trainers[0].model.state_dict())
    digests = {optimizer_sha256(trainer.optimizer) for trainer in trainers}
    assert len(digests) == 1
    for trainer in trainers:
        trainer.step([make_batch(2)])
    one, other = (optimizer_sha256(trainer.optimizer) for trainer in trainers)
    assert one == other
    assert one not in digests
    flip_a_bit(trainers[1].optimizer.state[trainers[1].model.head.bias]["exp_avg"], 0, 0)  # type: ignore[union-attr,index]
    assert optimizer_sha256(trainers[1].optimizer) != one


def test_equal_runs_do_not_differ() -> None:
    assert first_difference(TRACE, replace(TRACE, losses=[0.5, 0.25, 0.125])) is None
    broken = replace(TRACE, losses=[0.5, math.nan, math.nan])
    assert first_difference(broken, replace(broken, losses=[0.5, math.nan, math.nan])) is None


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            replace(TRACE, losses=[0.5, math.nextafter(0.25, 1), 9.0], grad_norms=[1.0, 9.0, 9.0]),
            "loss of step 1: 0.25 and 0.25000000000000006",
        ),
        (
            replace(TRACE, grad_norms=[1.0, 2.5, 3.0], losses=[0.5, 0.25, 9.0]),
            "gradient norm of step 1: 2.0 and 2.5",
        ),
        (replace(TRACE, losses=[math.nan, 0.25, 0.125]), "loss of step 0: 0.5 and nan"),
        (replace(TRACE, weights="c" * 64, optimizer="c" * 64), "weights after the last step"),
        (replace(TRACE, optimizer="c" * 64), "optimizer state after the last step"),
    ],
)
def test_the_first_difference_of_two_runs_is_named(other: RunTrace, difference: str) -> None:
    assert first_difference(TRACE, other) == difference


def test_runs_of_unequal_length_are_a_mistake_in_the_code() -> None:
    with pytest.raises(ValueError, match="shorter"):
        first_difference(TRACE, replace(TRACE, losses=[0.5]))


def test_the_share_of_changed_elements_is_told_by_name() -> None:
    model = Bigram()
    model.embedding.weight.requires_grad_(False)
    trainable, frozen = trainable_state(model), frozen_digests(model)
    model.head.bias.data[:8] += 1
    model.embedding.weight.data[0, 0] += 1
    assert changed_shares(trainable, model) == {
        "norm.weight": 0.0,
        "norm.bias": 0.0,
        "head.weight": 0.0,
        "head.bias": 0.25,
    }
    assert changed_names(frozen, model) == ["embedding.weight"]


def test_a_copy_does_not_follow_the_model() -> None:
    model = Bigram()
    trainable = trainable_state(model)
    model.head.bias.data += 1
    assert not trainable["head.bias"].equal(model.head.bias.detach())
    assert all(not tensor.requires_grad for tensor in trainable.values())


def test_statistics_of_a_frozen_module_that_move_are_seen() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    before = frozen_digests(model)
    model(torch.randn(8, 2))
    assert changed_names(before, model) == [
        *("0.running_mean", "0.running_var", "0.num_batches_tracked"),
    ]


def test_statistics_of_a_module_that_trains_may_move() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[1].requires_grad_(False)
    assert list(frozen_digests(model)) == ["1.weight", "1.bias"]
    assert list(trainable_state(model)) == ["0.weight", "0.bias"]


class Rotating(nn.Module):
    """A layer with a table that others may share."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2))
        self.register_buffer("table", table)


def test_frozen_modules_may_share_a_buffer() -> None:
    table = torch.ones(4)
    model = nn.Sequential(Rotating(table), Rotating(table)).requires_grad_(False)
    before = frozen_digests(model)
    assert changed_names(before, model) == []
    table[0] = 2
    assert {name.partition(".")[2] for name in changed_names(before, model)} == {"table"}


def test_an_empty_buffer_has_not_changed() -> None:
    model = Rotating(torch.zeros(0)).requires_grad_(False)
    before = frozen_digests(model)
    assert list(before) == ["gain", "table"]
    assert changed_names(before, model) == []


def test_a_shorter_run_may_begin_as_a_longer_one_does() -> None:
    shorter = replace(TRACE, losses=TRACE.losses[:2], grad_norms=TRACE.grad_norms[:2])
    assert begins_alike(TRACE, shorter)
    assert not begins_alike(TRACE, replace(shorter, grad_norms=[1.0, 2.5]))
    assert not begins_alike(TRACE, replace(shorter, losses=[0.5, 0.2500001]))


def test_a_shared_matrix_is_watched_once() -> None:
    model = Bigram()
    model.head.weight = model.embedding.weight
    assert list(changed_shares(trainable_state(model), model)) == [
        *("embedding.weight", "norm.weight", "norm.bias", "head.bias"),
    ]
