"""Healthy scripts pass, faulty ones fail with their cause named; nothing is changed."""

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from stages.config import UserError
from stages.sanity import sanity_check
from stages.sanity.limits import LIMITS
from stages.sanity.rules.book import RULES
from stages.sanity.rules.causes import CAUSES

from ..conftest import ROOT
from . import faults, healthy
from .scripts import of_points, run

QUICK_HEALTHY = ("mlp-smoothing", "binary-sigmoid", "cnn-sgd-plain")
QUICK_FAULTS = (
    "train rows in validation",
    "ignore_index is a class",
    "accumulation not divided",
    "head not in optimizer",
    "layers in a plain list",
    "mean of batch means, metric",
)


def rest_of(names: Iterable[str], quick: Sequence[str]) -> list[Any]:
    """All but the quick ones: every sixth for the longer proofs, the others for the full matrix."""
    left = [name for name in names if name not in quick]
    return [
        pytest.param(name, marks=pytest.mark.matrix if number % 6 else pytest.mark.slow)
        for number, name in enumerate(left)
    ]


def cause_of(check: str) -> str:
    return dict(CAUSES)[check]


def expect_cause(name: str) -> None:
    report = run(faults.build(name))
    wanted = [cause_of(check) for check in faults.FAULTS[name].checks]
    assert not report.passed
    assert any(cause.startswith(one) for cause in report.causes for one in wanted), report


@pytest.mark.parametrize("name", QUICK_HEALTHY)
def test_a_healthy_script_passes(name: str) -> None:
    report = healthy.run(healthy.build(name))
    assert report.passed, report


@pytest.mark.parametrize("name", QUICK_FAULTS)
def test_a_fault_is_named(name: str) -> None:
    expect_cause(name)


@pytest.mark.parametrize("name", rest_of(healthy.HEALTHY, QUICK_HEALTHY))
def test_every_healthy_script_passes(name: str) -> None:
    report = healthy.run(healthy.build(name))
    assert report.passed, report


@pytest.mark.parametrize("name", rest_of(faults.FAULTS, QUICK_FAULTS))
def test_every_fault_is_named(name: str) -> None:
    expect_cause(name)


def test_every_rule_has_one_cause_and_known_limits() -> None:
    assert sorted(name for name, _ in CAUSES) == sorted(rule.id for rule in RULES)
    assert {key for rule in RULES for key in rule.limits} <= set(LIMITS)


def test_the_report_is_readable_and_the_same_twice() -> None:
    first, second = (healthy.run(healthy.build("mlp-adam-dropout")) for _ in range(2))
    assert json.dumps(first.to_dict(), allow_nan=False) == json.dumps(second.to_dict())
    shown = str(first)
    for words in ("sanity check: PASS", "ln K 1.3863", "one batch", "zeroed inputs", "not judged:"):
        assert words in shown


def test_a_schedule_a_generator_and_counters_of_the_script_are_put_back() -> None:
    script = of_points()
    optimizer = torch.optim.Adam(script.model.parameters(), lr=1e-3)
    schedule = lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=250)
    generator = torch.Generator().manual_seed(3)
    calls = {"steps": 0}
    loss_fn = nn.CrossEntropyLoss()

    def train_step(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> Any:
        calls["steps"] += 1
        noise = torch.randn(batch[0].shape, generator=generator) * 0.01 * random.random()
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0] + noise * np.random.rand()), batch[1])
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.item()

    batches = [(script.train[0][:32], script.train[1][:32])]
    train_step(script.model, batches[0], optimizer)
    kept = [p.detach().clone() for p in script.model.parameters()]
    states = schedule.state_dict(), generator.get_state(), random.getstate()
    rate = optimizer.param_groups[0]["lr"]
    report = sanity_check(script.model, batches, optimizer=optimizer, train_step=train_step,
                          loss_fn=loss_fn)  # fmt: skip
    assert report.passed, report
    assert calls == {"steps": 1}
    assert schedule.state_dict() == states[0]
    assert torch.equal(generator.get_state(), states[1])
    assert random.getstate() == states[2]
    assert optimizer.param_groups[0]["lr"] == rate
    now = script.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))


def test_the_readme_shows_a_script_that_passes() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = (one for one in readme.split("```python\n")[1:] if "sanity_check(" in one)
    script = block.partition("```")[0].replace("from holdshort.", "from stages.")
    torch.manual_seed(0)
    shown: dict[str, Any] = {}
    exec(script, shown)
    assert shown["report"].passed
    assert shown["report"].restored


def test_an_iterator_is_refused_in_one_sentence() -> None:
    script = of_points()
    with pytest.raises(UserError, match="loader is an iterator, which can be read only once"):
        sanity_check(script.model, iter([script.train]), nn.CrossEntropyLoss())


def test_a_class_in_place_of_its_instance_is_refused() -> None:
    script = of_points()
    optimizer: Any = torch.optim.AdamW
    loss_fn: Any = nn.CrossEntropyLoss
    with pytest.raises(UserError, match="optimizer is the class AdamW: give one that was made"):
        sanity_check(script.model, [script.train], nn.CrossEntropyLoss(), optimizer=optimizer)
    with pytest.raises(UserError, match="loss_fn is the class CrossEntropyLoss: give one"):
        sanity_check(script.model, [script.train], loss_fn)


def test_a_step_that_raises_is_a_failed_check_not_a_traceback() -> None:
    script = of_points()
    batch = (script.train[0][:32, :5], script.train[1][:32])
    report = sanity_check(script.model, [batch], nn.CrossEntropyLoss())
    assert report.failed == ["step_runs"]
    assert "RuntimeError" in report.causes[0]
