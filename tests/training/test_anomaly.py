"""A step that goes wrong is seen, a noisy one is not; what is kept of it comes back whole."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from stages.config import UserError
from stages.training.anomaly import WINDOW, find_anomaly
from stages.training.incident import Incident, anomaly_root, keep_incident, latest_incident

from ..parts import make_rows

NOISY = [1.0 + random.Random(step).gauss(0.0, 0.1) for step in range(WINDOW)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_an_anomaly_at_any_step(value: float) -> None:
    assert find_anomaly(value, 1.0, []) == f"the loss is {value}"
    assert find_anomaly(1.0, value, []) == f"the gradient norm is {value}"


def test_a_leap_is_an_anomaly_and_is_put_in_numbers() -> None:
    assert find_anomaly(1.5, 1.0, NOISY) is None
    assert find_anomaly(0.0, 1.0, NOISY) is None
    found = find_anomaly(2.0, 1.0, NOISY)
    assert found is not None
    assert found.startswith("the loss is 2, 10.")
    assert "above the last 128 steps (mean 0.99" in found


def test_losses_before_the_window_and_those_that_are_no_numbers_do_not_count() -> None:
    assert find_anomaly(2.0, 1.0, [100.0] * 50 + NOISY) is not None
    assert find_anomaly(2.0, 1.0, [math.nan, *NOISY[1:]]) is not None


@pytest.mark.parametrize("steps", [0, 1, WINDOW // 2 - 1])
def test_too_few_steps_show_no_leap(steps: int) -> None:
    assert find_anomaly(1e9, 1.0, NOISY[:steps]) is None


def test_a_leap_from_a_constant_loss_is_seen() -> None:
    assert find_anomaly(0.5, 1.0, [0.5] * WINDOW) is None
    assert find_anomaly(0.6, 1.0, [0.5] * WINDOW) is not None


def test_decays_with_heavy_noise_alarm_in_less_than_one_of_ten_thousand_steps() -> None:
    alarms = 0
    for seed in range(20):
        noise = random.Random(seed)
        losses = [
            (0.3 + 3 * math.exp(-step / 80)) * noise.lognormvariate(0.0, 0.25)
            for step in range(1000)
        ]
        alarms += sum(find_anomaly(losses[n], 1.0, losses[:n]) is not None for n in range(1000))
    assert alarms <= 2


@pytest.fixture
def incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Incident:
    monkeypatch.chdir(tmp_path)
    return Incident("ab" * 32, 7, "the loss is nan", "nan", "inf", 0.1, ["rows.jsonl:1"])


def test_an_incident_comes_back_with_its_rows_and_checkpoint(incident: Incident) -> None:
    checkpoint = Path("step-6-0123456789abcdef.pt")
    checkpoint.write_bytes(b"weights")
    directory = keep_incident(incident, make_rows(3), checkpoint)
    checkpoint.unlink()  # as a finished run does
    assert directory == anomaly_root() / ("ab" * 8) / "step-7"
    assert Incident.read(directory) == replace(incident, checkpoint="0123456789abcdef")
    assert (directory / "checkpoint.pt").read_bytes() == b"weights"
    assert len((directory / "rows.jsonl").read_bytes().splitlines()) == 3
    assert latest_incident() == directory


def test_an_incident_that_is_met_again_replaces_the_first(incident: Incident) -> None:
    keep_incident(incident, make_rows(3), None)
    directory = keep_incident(incident, make_rows(2), None)
    assert sorted(path.name for path in directory.iterdir()) == ["incident.json", "rows.jsonl"]
    assert [path.name for path in directory.parent.iterdir()] == ["step-7"]


@pytest.mark.usefixtures("incident")
def test_where_nothing_went_wrong_there_is_nothing_to_replay() -> None:
    with pytest.raises(UserError, match="holds no incident"):
        latest_incident()
    with pytest.raises(UserError, match=r"elsewhere/incident.json is missing; give a directory"):
        Incident.read(Path("elsewhere"))


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\x00", b'{"run": 3}', b"[]"])
def test_a_damaged_record_is_refused(incident: Incident, damage: bytes) -> None:
    directory = keep_incident(incident, [], None)
    (directory / "incident.json").write_bytes(damage)
    with pytest.raises(UserError, match="cannot be read as the record"):
        Incident.read(directory)
