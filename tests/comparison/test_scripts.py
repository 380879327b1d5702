"""A script that cannot be checked and trained is refused in one sentence."""

from typing import Any

import pytest
import torch
from torch import nn

from stages.comparison.declared import Arm
from stages.comparison.scripts import arguments_of, try_script
from stages.config import UserError

ARM = Arm("mine", script="stages.plugins.mine.make")


def sound() -> dict[str, Any]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "loader": [], "train_step": print, "optimizer": optimizer}


def crashes() -> dict[str, Any]:
    raise RuntimeError("boom")


def needs_a_package() -> dict[str, Any]:
    raise ModuleNotFoundError("No module named 'sklearn'")


def test_a_sound_script_gives_what_the_check_takes() -> None:
    assert set(arguments_of(ARM, sound)) == {"model", "loader", "train_step", "optimizer"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: [1], "returns a list; return the arguments of sanity_check as a dict"),
        (lambda: {**sound(), "modle": 1}, "'modle', which sanity_check does not take; did you"),
        (lambda: {**sound(), "optimizer": None}, "gives no 'optimizer'"),
        (crashes, "raised RuntimeError: boom (test_scripts.py, line "),
        (needs_a_package, "(No module named 'sklearn'); install what it imports"),
    ],
    ids=["no dict", "unknown", "missing", "crash", "package"],
)
def test_another_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError) as refused:
        arguments_of(ARM, make)
    assert words in str(refused.value)
    assert str(refused.value).removeprefix("arm 'mine': ").startswith("stages.plugins.mine.make ")


def breaks_in_training() -> dict[str, Any]:
    def step(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        raise RuntimeError("boom")

    inputs, labels = torch.randn(8, 2), torch.randint(2, (8,))
    loss_fn = nn.CrossEntropyLoss()
    return {**sound(), "loader": [(inputs, labels)], "loss_fn": loss_fn, "train_step": step}


def test_a_script_that_breaks_while_it_trains_is_named_too() -> None:
    with pytest.raises(UserError, match=r"arm 'mine': .* raised RuntimeError: boom"):
        try_script(ARM, breaks_in_training)
