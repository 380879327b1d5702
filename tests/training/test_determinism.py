"""The same seed gives the same numbers, from every generator, also after a break."""

import io
import random

import numpy as np
import pytest
import torch

from stages.training.determinism import (
    make_deterministic,
    restore_rng_state,
    rng_state,
    seed_everything,
)

from ..settings import make_params


def draw() -> list[float]:
    """Two numbers from each generator; the normal ones leave a second half behind."""
    return [
        *(random.random() for _ in range(2)),
        random.gauss(0, 1),
        *np.random.rand(2).tolist(),
        float(np.random.randn()),
        *torch.rand(2).tolist(),
        float(torch.randn(1)),
    ]


def test_a_seed_fixes_every_generator() -> None:
    seed_everything(42)
    first = draw()
    seed_everything(42)
    assert draw() == first
    seed_everything(43)
    other = draw()
    assert [one == two for one, two in zip(first, other, strict=True)] == [False] * 9


def test_the_numbers_of_a_seed_are_these() -> None:
    seed_everything(42)
    assert random.random() == 0.6394267984578837
    assert float(np.random.rand()) == 0.3745401188473625
    assert float(torch.rand(1)) == pytest.approx(0.8822692632675171, abs=0)


def test_generators_go_on_where_they_were() -> None:
    seed_everything(7)
    draw()
    state = rng_state()
    expected = draw()
    draw()
    restore_rng_state(state)
    assert draw() == expected


def test_the_state_goes_through_a_file_that_is_read_without_running_code() -> None:
    seed_everything(7)
    draw()
    file = io.BytesIO()
    torch.save(rng_state(), file)
    expected = draw()
    file.seek(0)
    restore_rng_state(torch.load(file, weights_only=True))
    assert draw() == expected


@pytest.mark.usefixtures("pinned")
def test_all_that_bits_depend_on_is_pinned() -> None:
    device = make_deterministic(make_params(run__seed=3, run__cpu_threads=1).run)
    assert device == torch.device("cpu")
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (False, True)
    drawn = draw()
    seed_everything(3)
    assert draw() == drawn


@pytest.mark.usefixtures("pinned")
@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG"])
def test_a_process_that_was_not_pinned_is_a_mistake_in_the_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(AssertionError, match=f"started without {name}$"):
        make_deterministic(make_params().run)


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_every_seed_that_params_allow_can_be_set(seed: int) -> None:
    seed_everything(make_params(run__seed=seed).run.seed)
    assert torch.initial_seed() == seed
