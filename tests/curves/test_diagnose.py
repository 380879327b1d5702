"""`holdshort diagnose` prints what it saw and ends with 0, 1 or 2."""

import json
import math
from pathlib import Path

import pytest

from stages.cli import main
from stages.commands.diagnose import Options, run
from stages.curves.signature import Known

from .test_healthy import OWN_RUN


def holdshort(*arguments: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def write_log(path: Path, losses: list[float]) -> Path:
    lines = [{"t": i, "nats": loss} for i, loss in enumerate(losses)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_nothing_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Options(OWN_RUN, {}, Known(max_grad_norm=1.0))) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("own_run_telemetry.csv: a table with a header line; loss (400)")
    assert printed.endswith("no signature of a failure was found\n")


def test_a_signature_is_printed_with_its_causes_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    losses = [2.0 / (1 + i) for i in range(30)] + [math.nan] * 3
    write_log(tmp_path / "log.jsonl", losses)
    mapped = ("--map", "loss=nats", "--map", "step=t", "--report", "report")
    assert holdshort("log.jsonl", *mapped) == 1
    printed = capsys.readouterr().out
    assert "nan_late: the loss is NaN or infinite late in the run" in printed
    assert "  step 30: the loss is nan; 3 of 33 losses are not finite" in printed
    assert "  perhaps a bad batch" in printed
    assert printed.endswith("evidence: report/index.html\n")
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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.jsonl", [1.0, 0.9, 0.8, 0.7, 0.6])
    assert holdshort(*arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert words in told
    assert told.count("\n") == 1


def test_a_nan_is_evidence_enough_however_short_the_log(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl", [1.0, math.nan])
    assert run(Options(path, {"loss": "nats", "step": "t"}, Known())) == 1
