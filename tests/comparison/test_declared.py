"""A comparison says what its arms change, and a wrong one is refused in one sentence."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from stages.comparison.declared import (
    COMPARISONS,
    Arm,
    params_of,
    parse_comparison,
    read_comparison,
)
from stages.comparison.training import set_up
from stages.compose import composed_params
from stages.config import UserError
from stages.config.hooks import import_callable

from ..settings import ROOT, make_params

FILE = Path("mine.yaml")
TWO: dict[str, Any] = {"one": {}, "other": {"overrides": ["train.weight_decay=0"]}}
SHIPPED = sorted(file.stem for file in (ROOT / COMPARISONS).glob("*.yaml"))


def tree(**changes: Any) -> dict[str, Any]:
    return {"question": "What does it do?", "arms": TWO, **changes}


def test_an_arm_has_what_the_base_has_and_names_only_its_own() -> None:
    base = {"overrides": ["train.max_steps=9"], "plant": ["summed"]}
    arms = {"one": {}, "other": {"overrides": ["run.seed=3"], "plant": ["scaled_up"]}}
    comparison = parse_comparison("mine", tree(base=base, arms=arms, seeds=[2, 1]), FILE)
    one, other = comparison.arms
    assert (one.overrides, one.plant, one.changes) == (["train.max_steps=9"], ["summed"], [])
    assert other.overrides == ["train.max_steps=9", "run.seed=3"]
    assert other.plant == ["summed", "scaled_up"]
    assert other.changes == ["run.seed=3", "fault: scaled_up"]
    assert list(comparison.seeds) == [2, 1]
    assert not comparison.of_scripts


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"question": " "}, "'question' is ' '"),
        ({"arms": {"one": {}}}, "'arms' must name at least two arms"),
        ({"arms": [1, 2]}, "'arms' must name at least two arms"),
        ({"arm": TWO}, "unknown key 'arm'; known are question, base, arms, seeds; did you mean"),
        ({"base": {"override": []}}, "unknown key 'base.override'"),
        ({"base": ["train.max_steps=9"]}, "'base' is ['train.max_steps=9']"),
        ({"arms": {**TWO, "third": "x=1"}}, "'arms.third' is 'x=1'"),
        ({"arms": {**TWO, "third": {"overrides": "x=1"}}}, "'arms.third.overrides' is 'x=1'"),
        ({"arms": {**TWO, "third": {"plant": [1]}}}, "'arms.third.plant' is [1]"),
        ({"arms": {**TWO, "third": {}}}, "arms 'one' and 'third' are the same"),
        ({"arms": {**TWO, "third": {"script": "a.b"}}}, "compare like with like"),
        ({"arms": {"a": {"script": "a", "plant": ["b"]}, **TWO}}, "nothing beside it"),
        ({"seeds": [1]}, "one seed has no deviation"),
        ({"seeds": [1, 1]}, "says nothing new the second time"),
        ({"seeds": [1, -1]}, "'seeds' is [1, -1]"),
        ({"seeds": [1, True]}, "'seeds' is [1, True]"),
        (
            {"arms": {"a": {"script": "a"}, "b": {"script": "b"}}, "seeds": [1, 2]},
            "take no 'base' and no 'seeds'",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_a_wrong_comparison_is_refused_in_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_comparison("mine", tree(**changes), FILE)
    assert words in str(refused.value)
    assert str(refused.value).startswith("mine.yaml: ")


def test_a_name_that_is_none_gets_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match="did you mean 'loss_spike'"):
        read_comparison("los_spike")


@pytest.mark.parametrize("name", SHIPPED)
def test_what_comes_with_the_repository_can_be_set_up(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    comparison = read_comparison(name)
    assert len({arm.name for arm in comparison.arms}) == len(comparison.arms)
    for arm in comparison.arms:
        if arm.script:
            assert import_callable(arm.script, arm.name).__doc__
        else:
            set_up(arm, composed_params(arm.overrides))


@pytest.mark.parametrize("override", ["train.max_steps=abc", "train.nonsense=3"])
def test_overrides_that_cannot_be_composed_name_their_arm(
    override: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=rf"{FILE}: arm 'broken': .*{override.split('=')[0]}"):
        params_of(Arm("broken", [override]), FILE)


def test_the_one_that_the_readme_shows_can_be_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = (block for block in readme.split("```") if "compare/mine.yaml" in block)
    comparison = parse_comparison("mine", YAML().load(shown.removeprefix("yaml\n")), FILE)
    assert list(comparison.seeds) == [1, 2, 3]
    for arm in comparison.arms:
        set_up(arm, composed_params(arm.overrides))


@pytest.mark.parametrize(
    ("plant", "values", "words"),
    [
        (["summd"], {}, "arm 'other' plants 'summd', and stages/faults/ has no such fault"),
        (["loss_not_scaled"], {}, "arm 'other': 'loss_not_scaled' cannot be planted: "),
        (["summed"], {"train__on_anomaly": "skip"}, "under train.on_anomaly=skip"),
    ],
    ids=["unknown", "does not apply", "with a step of its own"],
)
def test_a_fault_that_cannot_be_planted_is_refused(
    plant: list[str], values: dict[str, Any], words: str
) -> None:
    arms = {"one": {}, "other": {"plant": plant}}
    arm = parse_comparison("mine", tree(arms=arms), FILE).arms[1]
    with pytest.raises(UserError) as refused:
        set_up(arm, make_params(**values))
    assert words in str(refused.value)
