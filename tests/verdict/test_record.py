"""A verdict is bound to what it was made from, and is read back to the last bit or refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from stages.config import UserError, declared_values
from stages.provenance.code import code_sha256
from stages.verdict.judging import Check
from stages.verdict.record import (
    bind,
    blocked_verdict,
    digest_of,
    make_verdict,
    read_verdict,
    verdict_path,
    write_verdict,
)

from .conftest import ClearedProject

KEYS = {"gate", "schema", "status", "passed", "checks", "causes", "not_covered", "inputs"}
KEYS |= {"outputs", "params", "params_sha256", "code_sha256", "environment", "environment_sha256"}


def make_check(value: Any) -> Check:
    return Check("id", "rule", "fail", value, [0.1, 1e-05], -0.5, "nats", 8, 42, "m", "r", ["row"])


def test_a_digest_is_of_canonical_json() -> None:
    assert digest_of({"b": [1, None], "a": "ü"}) == digest_of({"a": "ü", "b": [1, None]})
    assert digest_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("other", [{"a": 2}, {"b": 1}, {"a": "1"}, {"a": [1]}, {"a": None}, {}])
def test_other_content_has_another_digest(other: Any) -> None:
    assert digest_of(other) != digest_of({"a": 1})


def test_a_verdict_is_bound_to_params_code_and_environment(cleared: ClearedProject) -> None:
    verdict = make_verdict(
        bind("overfit_gate", {"python": "3.11"}),
        "warn",
        [make_check(0.5)],
        inputs={"b": "2", "a": "1"},
    )
    assert verdict.gate == "overfit_gate"
    assert verdict.passed is True
    assert list(verdict.inputs) == ["a", "b"]
    assert verdict.params == declared_values("overfit_gate")
    assert verdict.params_sha256 == digest_of(verdict.params)
    assert verdict.code_sha256 == code_sha256("overfit_gate")
    assert verdict.environment == {"python": "3.11"}
    assert verdict.environment_sha256 == digest_of({"python": "3.11"})


def test_a_verdict_is_bound_to_what_was_there_before_the_gate_worked(
    cleared: ClearedProject,
) -> None:
    binding = bind("overfit_gate", {"python": "3.11"})
    params, code = declared_values("overfit_gate"), code_sha256("overfit_gate")
    cleared.set_params(data__path="data/rows", gates__overfit__max_loss=0.5)
    cleared.write("stages/probes/__init__.py", "VALUE = 2\n")
    verdict = make_verdict(binding, "pass")
    assert (verdict.params, verdict.code_sha256) == (params, code)
    assert declared_values("overfit_gate") != params
    assert code_sha256("overfit_gate") != code


@pytest.mark.parametrize("value", [0, -3, 0.1, 1e-300, "nan", "abc", None])
def test_a_verdict_is_read_back_as_it_was_written(cleared: ClearedProject, value: Any) -> None:
    verdict = make_verdict(
        bind("overfit_gate", {"gpu": None}), "fail", [make_check(value)], causes=["ü"]
    )
    write_verdict(verdict)
    assert read_verdict("overfit_gate") == verdict
    assert verdict.passed is False


def test_the_file_has_the_keys_of_the_design(cleared: ClearedProject) -> None:
    record = json.loads(verdict_path("mask_report").read_text())
    assert set(record) == KEYS
    assert set(record["checks"][0]) == {field.name for field in dataclasses.fields(Check)}


def test_the_same_verdict_gives_the_same_bytes(cleared: ClearedProject) -> None:
    before = {path: path.read_bytes() for path in Path("gates").iterdir()}
    cleared.judge()
    assert {path: path.read_bytes() for path in Path("gates").iterdir()} == before
    assert len(before) == 4


def test_a_blocked_gate_did_no_work_and_does_not_pass(cleared: ClearedProject) -> None:
    verdict = blocked_verdict(bind("overfit_gate", {"python": "3.11"}), "mask_report")
    assert (verdict.status, verdict.passed, verdict.checks) == ("blocked", False, [])
    assert verdict.causes == ["'mask_report' did not pass: see reports/mask_report/index.html"]
    assert verdict.not_covered == ["everything: the gate did no work"]


def test_a_missing_verdict_says_which_stage_writes_it(cleared: ClearedProject) -> None:
    verdict_path("mask_report").unlink()
    with pytest.raises(UserError) as caught:
        read_verdict("mask_report")
    assert str(caught.value) == "gates/mask_report.json is missing; run `dvc repro mask_report`"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"\xff", b'{"gate": "mask_report"}', b"null"],
)
def test_what_is_no_verdict_is_refused_in_one_line(cleared: ClearedProject, content: bytes) -> None:
    verdict_path("mask_report").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_verdict("mask_report")
    message = str(caught.value)
    assert message.startswith("gates/mask_report.json is not a verdict (")
    assert message.endswith("run `dvc repro -f -s mask_report` to measure it again")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("field", "value"),
    [("passed", "yes"), ("status", "skipped"), ("checks", {}), ("inputs", {"a": 1})],
)
def test_a_field_of_another_type_is_refused(
    cleared: ClearedProject, field: str, value: Any
) -> None:
    record = json.loads(verdict_path("mask_report").read_text())
    verdict_path("mask_report").write_text(json.dumps({**record, field: value}))
    with pytest.raises(UserError, match="is not a verdict"):
        read_verdict("mask_report")
