"""The rule books: every rule has a limit that exists and a cause that explains it."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from stages.config import declared_values
from stages.verdict.clearance import RULES
from stages.verdict.judging import Measured, Rule, judge, rank_causes
from stages.verdict.record import GATES
from stages.verdict.rules import gradient_probe, hash_data, mask_report, overfit_gate

from ..settings import ROOT

CAUSES: dict[str, Sequence[tuple[set[str], str]]] = {
    "hash_data": hash_data.CAUSES,
    "mask_report": mask_report.CAUSES,
    "overfit_gate": overfit_gate.CAUSES,
    "gradient_probe": gradient_probe.CAUSES,
}
EVERY_RULE = [(gate, rule) for gate in GATES for rule in RULES[gate]]
BLOCKING = [(gate, rule) for gate, rule in EVERY_RULE if rule.severity == "fail"]


def named(pair: object) -> str:
    return pair.id if isinstance(pair, Rule) else str(pair)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)


def test_every_gate_has_rules() -> None:
    assert tuple(RULES) == GATES
    assert [gate for gate in GATES if not RULES[gate]] == []


@pytest.mark.parametrize("gate", GATES)
def test_no_two_rules_share_a_name(gate: str) -> None:
    names = [rule.id for rule in RULES[gate]]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(("gate", "rule"), EVERY_RULE, ids=named)
def test_a_rule_has_as_many_limits_as_it_compares_with(gate: str, rule: Rule) -> None:
    assert len(rule.limits) == {"zero": 0, "between": 2}.get(rule.comparison, 1)
    assert rule.remedy


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("gate", GATES)
def test_every_limit_is_a_key_that_the_gate_declares(gate: str) -> None:
    declared = declared_values(gate)
    assert [key for rule in RULES[gate] for key in rule.limits if key not in declared] == []


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("gate", GATES)
def test_every_limit_of_a_gate_is_used_by_a_rule(gate: str) -> None:
    used = {key for rule in RULES[gate] for key in rule.limits}
    limits = {
        key
        for key in declared_values(gate)
        if key.startswith("gates.") and key.rpartition(".")[2].startswith(("max_", "min_"))
    }
    assert limits - used - {"gates.overfit.max_steps"} == set()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("gate", "rule"), EVERY_RULE, ids=named)
def test_every_rule_can_fail(gate: str, rule: Rule) -> None:
    pinned = {**declared_values(gate), "data.sha256": "0" * 64}
    check = judge(rule, Measured(math.nan), pinned, None)
    assert check.status == rule.severity


@pytest.mark.parametrize(("gate", "rule"), BLOCKING, ids=named)
def test_every_rule_that_fails_alone_has_a_cause(gate: str, rule: Rule) -> None:
    check = judge(rule, Measured(math.nan), dict.fromkeys(rule.limits, 0.0), None)
    assert len(rank_causes([check], CAUSES[gate])) == 1


@pytest.mark.parametrize("gate", GATES)
def test_causes_speak_of_rules_that_exist_and_can_fail(gate: str) -> None:
    blocking = {rule.id for rule in RULES[gate] if rule.severity == "fail"}
    assert [ids - blocking for ids, _ in CAUSES[gate] if ids - blocking] == []


@pytest.mark.parametrize("gate", GATES)
def test_no_cause_is_hidden_by_an_earlier_one(gate: str) -> None:
    by_name = {rule.id: rule for rule in RULES[gate]}
    for ids, cause in CAUSES[gate]:
        checks = [
            judge(
                by_name[name],
                Measured(math.nan),
                dict.fromkeys(by_name[name].limits, 0.0),
                None,
            )
            for name in sorted(ids)
        ]
        assert rank_causes(checks, CAUSES[gate]) == [cause]
