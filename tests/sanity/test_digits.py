"""Five broken scripts on a real set of images are told apart by their cause; healthy ones pass."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stages.demo import digits
from stages.probes.fingerprint import state_sha256
from stages.sanity import SanityReport, sanity_check

Make = Callable[[], dict[str, Any]]


def check(script: dict[str, Any]) -> tuple[SanityReport, str, str]:
    """(report, digests of all that may change before and after), taken here without the harness."""
    model, optimizer = script["model"], script["optimizer"]
    script["train_step"](model, script["loader"][0], optimizer)  # so that there is state to be kept
    for module in model.modules():
        module.training = isinstance(module, nn.Linear)  # no mode that a call would leave

    def digest() -> str:
        return state_sha256(
            {
                "weights": model.state_dict(),
                "gradients": [p.grad for p in model.parameters()],
                "modes": [m.training for m in model.modules()],
                "hooks": [len(m._forward_hooks) for m in model.modules()],
                "optimizer": optimizer.state_dict(),
                "torch": torch.get_rng_state(),
                "numpy": np.random.get_state()[1].tolist(),  # type: ignore[index]
                "python": repr(random.getstate()),
            }
        )

    before = digest()
    report = sanity_check(**script)
    return report, before, digest()


@pytest.mark.parametrize(
    "make",
    [digits.healthy_classifier, digits.healthy_regressor],
    ids=["classifier", "regressor"],
)
def test_a_healthy_script_passes(make: Make) -> None:
    report, before, after = check(make())
    assert report.passed, report
    assert report.causes == []
    assert before == after
    assert report.state_before == report.state_after


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (digits.labels_shuffled, "labels have nothing to do with their inputs: shuffled"),
        (digits.zero_grad_missing, "zero_grad is missing"),
        (digits.softmax_twice, "softmax (or sigmoid) before cross-entropy"),
        (digits.head_times_50, "the initial loss is far above ln K: a hot last layer"),
        (digits.targets_broadcast, "outputs are compared with all targets: shapes broadcast"),
    ],
    ids=["labels shuffled", "zero_grad missing", "softmax twice", "head times 50", "broadcast"],
)
def test_a_broken_script_fails_with_its_cause_first(make: Make, cause: str) -> None:
    report, before, after = check(make())
    assert not report.passed
    assert report.causes[0].startswith(cause), report
    assert before == after
