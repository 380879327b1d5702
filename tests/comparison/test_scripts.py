"""A script that cannot be checked and trained is refused in one sentence."""

from typing import Any

import pytest
import torch
from torch import nn

from stages.comparison.declared import Arm
from stages.comparison.scripts import arguments_of
from stages.config import UserError

ARM = Arm("mine", script="stages.plugins.mine.make")


def sound() -> dict[str, Any]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "loader": [], "train_step": print, "optimizer": optimizer}


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
        (needs_a_package, "(No module named 'sklearn'); install what it imports"),
    ],
    ids=["no dict", "unknown", "missing", "package"],
)
def test_another_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UserError) as refused:
        arguments_of(ARM, make)
    assert words in str(refused.value)
    assert str(refused.value).startswith("stages.plugins.mine.make ")
