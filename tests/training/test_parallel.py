"""Two ranks train as one process does: the same steps, from rows that they share between them."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.chat.token_store import TokenStore
from stages.config import UserError
from stages.training.parallel import ALONE, Team, check_replicas, join
from stages.training.ranks import gather, on_first_rank, rank, sum_over_ranks, world_size

from ..parts import Bigram, make_rows, pinned_process, write_store
from .ranked import RANKS, ROWS, STEPS, params_for, run_ranks, train_alone, train_together

pytestmark = pytest.mark.slow
Measured = list[dict[str, Any]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ranks")
    write_store(directory, "train", make_rows(ROWS))
    return directory


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, Any]:
    with pinned_process():
        return train_alone(directory)


@pytest.fixture(scope="module")
def together(directory: Path) -> Measured:
    return run_ranks(train_together, directory, "ddp")


@pytest.fixture(scope="module")
def packed(directory: Path) -> Measured:
    return run_ranks(train_together, directory, "packed", "packed")


@pytest.fixture(scope="module")
def sharded(directory: Path) -> Measured:
    return run_ranks(train_together, directory, "fsdp2", "fsdp2")


def assert_same_training(ranks: Measured, alone: dict[str, Any]) -> None:
    for one in ranks:
        for mine, reference in zip(one["gradients"], alone["gradients"], strict=True):
            torch.testing.assert_close(mine, reference, rtol=0, atol=2e-6)
        for mine, reference in zip(one["results"], alone["results"], strict=True):
            assert mine["loss"] == pytest.approx(reference["loss"], abs=1e-6)
            assert mine["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-5)
            assert mine["learning_rate"] == reference["learning_rate"]
            assert mine["supervised_tokens"] == reference["supervised_tokens"]


def assert_same_weights(one: dict[str, Any], alone: dict[str, Any]) -> None:
    assert one["weights"].keys() == alone["weights"].keys()
    for name, tensor in one["weights"].items():
        torch.testing.assert_close(tensor, alone["weights"][name], rtol=0, atol=1e-4)


def test_two_ranks_have_the_gradients_of_one_process_on_the_same_rows(
    together: Measured, alone: dict[str, Any]
) -> None:
    assert_same_training(together, alone)
    assert_same_weights(together[0], alone)
    assert min(float(gradient.norm()) for gradient in alone["gradients"]) > 0.1


def test_an_adapter_over_a_frozen_base_is_trained_as_by_one_process(directory: Path) -> None:
    with pinned_process():
        alone = train_alone(directory, "adapter")
    together = run_ranks(train_together, directory, "adapter", "adapter")
    assert_same_training(together, alone)
    assert_same_weights(together[0], alone)
    assert [one["replicas_equal"] for one in together] == [[True] * STEPS] * RANKS
    trained = [tensor for name, tensor in alone["weights"].items() if ".lora_B." in name]
    assert len(trained) == 14
    assert min(float(tensor.abs().max()) for tensor in trained) > 1e-3


def test_losses_and_norms_are_those_of_all_ranks(together: Measured) -> None:
    assert together[0]["results"] == together[1]["results"]


def test_rows_of_the_ranks_are_disjoint_and_complete(
    together: Measured, alone: dict[str, Any], directory: Path
) -> None:
    for step in range(STEPS):
        ours = [one["rows"][step] for one in together]
        assert [len(rows) for rows in ours] == [4, 4]
        both = Counter(map(tuple, chain(*ours)))
        assert both == Counter(map(tuple, alone["rows"][step]))
    every = {tuple(row.input_ids.tolist()) for row in TokenStore("train", directory)}
    assert len(every) == ROWS
    first_epoch = [tuple(row) for step in alone["rows"] for row in step][:ROWS]
    assert set(first_epoch) == every
    mine, yours = (
        {tuple(row) for rows in one["rows"][: ROWS // 8] for row in rows} for one in together
    )
    assert not mine & yours


def test_the_schedule_moves_once_a_step(together: Measured, alone: dict[str, Any]) -> None:
    assert [one["scheduler_steps"] for one in together] == [STEPS, STEPS]
    assert alone["scheduler_steps"] == STEPS


def test_replicas_are_equal_after_every_step(together: Measured) -> None:
    assert [one["replicas_equal"] for one in together] == [[True] * STEPS] * RANKS


def test_a_replica_that_goes_astray_is_refused_by_every_rank(together: Measured) -> None:
    for one in together:
        assert one["refusal"].startswith(
            "training stopped after 6 steps: the weights of rank 1 are not those of rank 0."
        )


def test_every_rank_draws_other_random_numbers(together: Measured) -> None:
    assert not together[0]["drawn"].equal(together[1]["drawn"])


def test_ranks_agree(together: Measured) -> None:
    for number, one in enumerate(together):
        size, total, largest, gathered, said, own = one["agreed"]
        assert (size, total, largest) == (2, 0.1 + 1.1, 0)
        assert [value["rank"] for value in gathered] == [0, 1]
        assert gathered[1]["keys"].dtype == torch.uint32
        assert (said, own) == ("said by 0", number)


def test_a_state_that_was_saved_goes_on_to_the_bit(together: Measured) -> None:
    assert [one["resumed"] for one in together] == [True, True]


def test_two_ranks_train_on_packed_rows_as_one_process_does(
    packed: Measured, directory: Path
) -> None:
    with pinned_process():
        alone = train_alone(directory, "packed")
    assert_same_training(packed, alone)
    assert_same_weights(packed[0], alone)
    assert max(len(row) for rows in alone["rows"] for row in rows) > 32  # several to a row
    assert [one["resumed"] for one in packed] == [True, True]


def test_two_ranks_fill_batches_by_tokens_as_one_process_does(directory: Path) -> None:
    ranks = run_ranks(train_together, directory, "budget", "budget")
    with pinned_process():
        alone = train_alone(directory, "budget")
    assert_same_training(ranks, alone)
    assert_same_weights(ranks[0], alone)
    sizes = {len(rows) for one in ranks for rows in one["rows"]}
    assert len(sizes) > 1  # ranks hold different numbers of rows
    assert [one["resumed"] for one in ranks] == [True, True]


def test_two_runs_with_two_ranks_have_the_same_bits(packed: Measured, directory: Path) -> None:
    again = run_ranks(train_together, directory, "again", "packed")
    for one, other in zip(packed, again, strict=True):
        assert one["results"] == other["results"]
        assert all(t.equal(other["weights"][name]) for name, t in one["weights"].items())


def test_shards_train_as_one_process_does(sharded: Measured, alone: dict[str, Any]) -> None:
    assert_same_training(sharded, alone)
    assert_same_weights(sharded[0], alone)
    assert sharded[0]["results"] == sharded[1]["results"]
    assert [one["scheduler_steps"] for one in sharded] == [STEPS, STEPS]


def test_shards_that_were_saved_go_on_to_the_bit(sharded: Measured) -> None:
    assert [one["resumed"] for one in sharded] == [True, True]


def test_a_process_without_others_is_rank_0_of_1() -> None:
    assert (rank(), world_size()) == (0, 1)
    assert sum_over_ranks(0.1) == 0.1
    assert gather("mine") == ["mine"]
    assert on_first_rank(lambda: 3) == 3
    check_replicas(Bigram(), 1)


def test_a_process_without_others_trains_the_bare_model() -> None:
    model = Bigram()
    assert ALONE.wrap(model) is model
    assert not ALONE.has_lost_launcher()
    assert Team(launcher=-1).has_lost_launcher()


def test_a_launcher_with_another_number_of_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    params = params_for(RANKS)
    with pytest.raises(UserError, match=r"'train\.num_processes' is 2, but the launcher started 4"):
        join(params.train, params.run)


def test_one_process_under_a_launcher_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    params = params_for(1)
    assert join(params.train, params.run) is ALONE
