"""The report says what was found, draws it, and is the same bytes for the same log."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from stages.curves.charts import DRAWN, charts_of
from stages.curves.diagnosis import Diagnosis, diagnose
from stages.curves.report_files import diagnosis_section, write_report
from stages.curves.run_log import RunLog
from stages.curves.signature import Known

from .logs import log_of

KNOWN = Known(max_grad_norm=1.0)


def sound(steps: int) -> dict[str, list[float]]:
    falling = 1 + 2 * np.exp(-np.arange(steps) / (steps / 6))
    noise = np.exp(np.random.default_rng(0).normal(0, 0.05, steps))
    return {
        "step": [float(step) for step in range(steps)],
        "loss": (falling * noise).tolist(),
        "lr": [1e-3 * (1 - step / steps) for step in range(steps)],
        "grad_norm": noise.tolist(),
        "accuracy": (1 - falling / 4).tolist(),
    }


@pytest.fixture(scope="module")
def spiked() -> tuple[RunLog, Diagnosis]:
    columns = sound(200)
    columns["loss"][120] = 9.0
    columns["loss"][150] = math.nan
    log = log_of(columns)
    return log, diagnose(log, KNOWN)


def write(directory: Path, log: RunLog, diagnosis: Diagnosis) -> Path:
    page = write_report(directory, "A question?", log, diagnosis, ["<b>read</b>"], KNOWN)
    assert page == directory / "index.html"
    return directory


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, spiked: tuple[RunLog, Diagnosis]) -> Path:
    return write(tmp_path_factory.mktemp("report"), *spiked)


def test_all_files_are_written_and_are_the_same_bytes_again(
    tmp_path: Path, written: Path, spiked: tuple[RunLog, Diagnosis]
) -> None:
    one, two = sorted(written.iterdir()), sorted(write(tmp_path / "again", *spiked).iterdir())
    assert [file.name for file in one] == [
        *("accuracy.png", "accuracy.svg", "diagnosis.json", "grad_norm.png", "grad_norm.svg"),
        *("index.html", "learning_rate.png", "learning_rate.svg"),
        *("loss.png", "loss.svg", "loss_log_log.png", "loss_log_log.svg"),
    ]
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


def test_the_page_and_the_record_name_signatures_causes_and_remedies(written: Path) -> None:
    text = (written / "index.html").read_text(encoding="utf-8")
    for words in (
        "the loss spikes (spike)",
        "step 120: loss 9;",
        "bad batches: look at",
        "nan_late",
    ):
        assert words in text
    assert "&lt;b&gt;read" in text
    assert "src=" not in text and "<link" not in text  # opens offline
    record = json.loads((written / "diagnosis.json").read_text(encoding="utf-8"))
    assert record["exit_code"] == 1
    assert [one["id"] for one in record["signatures"]] == ["nan_late", "spike"]
    assert all(one["causes"] for one in record["signatures"])
    assert record["signatures"][1]["steps"] == [120.0]


def test_the_chart_of_the_loss_has_its_average_and_marks(
    spiked: tuple[RunLog, Diagnosis],
) -> None:
    charts = charts_of(*spiked, KNOWN)
    loss = charts["loss"]
    assert loss.log_y
    assert loss.marks == {120.0: "spike", 150.0: "nan_late"}
    assert list(loss.lines) == ["loss", "average (half-life 4)"]
    assert charts["loss_log_log"].x[0] == 1.0  # step 0 has no logarithm
    assert charts["grad_norm"].limits == {"limit of the clipping": 1.0}


def test_a_long_log_is_thinned_but_no_spike_is_lost() -> None:
    columns = sound(10 * DRAWN)
    columns["loss"][7777] = 50.0
    log = log_of(columns)
    loss = charts_of(log, diagnose(log, KNOWN), KNOWN)["loss"]
    assert len(loss.x) == DRAWN
    assert max(loss.lines["loss"]) == 50.0


def test_a_sound_run_says_so_and_a_short_one_what_is_missing() -> None:
    log = log_of(sound(200))
    assert diagnosis_section(diagnose(log, KNOWN)).text == "No signature of a failure was found."
    short = log_of(sound(6))
    assert "6 finite losses were logged" in diagnosis_section(diagnose(short, KNOWN)).text
