"""`holdshort diagnose` prints what it saw and ends with 0, 1 or 2."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from stages.curves.signature import Known
from stages.diagnose import Options, run

from ..conftest import ROOT
from .test_healthy import OWN_RUN


def holdshort(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from stages.cli import main; main()", "diagnose", *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def write_log(path: Path, losses: list[float]) -> Path:
    lines = [{"t": i, "nats": loss} for i, loss in enumerate(losses)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_nothing_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Options(OWN_RUN, {}, Known(max_grad_norm=1.0))) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("own_run_telemetry.csv: a table with a header line; loss (400)")
    assert printed.endswith("no signature of a failure was found\n")


def test_a_signature_is_printed_with_its_causes_and_a_report(tmp_path: Path) -> None:
    losses = [2.0 / (1 + i) for i in range(30)] + [math.nan] * 3
    write_log(tmp_path / "log.jsonl", losses)
    mapped = ("--map", "loss=nats", "--map", "step=t", "--report", "report")
    done = holdshort("log.jsonl", *mapped, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "nan_late: the loss is NaN or infinite late in the run" in done.stdout
    assert "  step 30: the loss is nan; 3 of 33 losses are not finite" in done.stdout
    assert "  perhaps a bad batch" in done.stdout
    assert done.stdout.endswith("evidence: report/index.html\n")
    assert (tmp_path / "report/index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("log.jsonl",), "not enough evidence: the log has no training loss; say"),
        (
            ("log.jsonl", "--map", "loss=nats"),
            "5 finite losses were logged, 10 are needed",
        ),
        (("log.jsonl", "--map", "loss=bits"), "the log has no column 'bits'; it has t, nats"),
        (
            ("log.jsonl", "--map", "losses=nats"),
            "where ROLE is one of loss,",
        ),
        (("log.jsonl", "--classes", "1"), "--classes is 1; it must be above 1"),
        (("nothing.csv",), "nothing.csv does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_judged_ends_in_a_sentence_and_2(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    write_log(tmp_path / "log.jsonl", [1.0, 0.9, 0.8, 0.7, 0.6])
    done = holdshort(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_nan_is_evidence_enough_however_short_the_log(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl", [1.0, math.nan])
    assert run(Options(path, {"loss": "nats", "step": "t"}, Known())) == 1
