"""A gate ends with its page, its numbers and its verdict."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from stages.provenance.records import read_metrics
from stages.report.publish import publish, publish_blocked
from stages.verdict.record import bind, read_verdict

from ..settings import ROOT
from .test_page import make_check, make_verdict


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_page_numbers_and_verdict_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = make_verdict(make_check("loss"), status="pass", passed=True)
    publish(verdict, "Why?", numbers={"loss": 0.25})
    assert read_verdict("overfit_gate") == verdict
    assert read_metrics("overfit_gate") == {"passed": True, "loss": 0.25}
    assert "Why?" in Path("reports/overfit_gate/index.html").read_text(encoding="utf-8")
    assert "overfit_gate: PASS" in capsys.readouterr().out


def test_metrics_hold_no_digests() -> None:
    publish(make_verdict(make_check("loss")), "Why?", numbers={"loss": 0.25})
    written = json.loads(Path("metrics/overfit_gate.json").read_text())
    assert written == {"overfit_gate": {"passed": False, "loss": 0.25}}


def test_a_blocked_gate_is_recorded_as_not_passed() -> None:
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    Path("dvc.yaml").write_text("stages: {overfit_gate: {params: [run]}}\n")
    publish_blocked(bind("overfit_gate", {"python": "3.11"}), "Why?", "mask_report")
    verdict = read_verdict("overfit_gate")
    assert (verdict.status, verdict.passed, verdict.checks) == ("blocked", False, [])
    assert read_metrics("overfit_gate") == {"passed": False}
    page = Path("reports/overfit_gate/index.html").read_text(encoding="utf-8")
    assert "&#39;mask_report&#39; did not pass" in page


def test_publishing_twice_gives_the_same_bytes() -> None:
    verdict = make_verdict(make_check("loss", evidence=["b", "a"]))
    written = []
    for _ in range(2):
        publish(dataclasses.replace(verdict), "Why?", numbers={"loss": 1 / 3})
        written.append({p: p.read_bytes() for p in Path().rglob("*") if p.is_file()})
    assert written[0] == written[1]
    assert len(written[0]) == 3
