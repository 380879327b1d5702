"""The log of a run, damaged or made to break a reader, is read with a remark, or refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.config import UserError
from stages.curves.read_log import read_log
from stages.report.plots import Chart, draw

from .corpus import CURVE, LOGS, STEPS, curve_csv
from .damage import flips, truncations
from .outcome import assert_refused, holdshort

DAMAGED = {
    f"{name}, {done}": (name, content)
    for number, (name, make) in enumerate(LOGS.items())
    for done, content in (*truncations(make(), number, 3), *flips(make(), number, 6))
}
HEADER = b"step,loss,learning_rate,grad_norm\n"
LINES = curve_csv()[len(HEADER) :]

REFUSED: dict[str, tuple[str, bytes]] = {
    "nothing": ("a.csv", b""),
    "a quote that does not end": ("a.csv", HEADER + LINES[:400] + b'\n1,"2,3,4\n' + LINES),
    "a quote that does not end on the last line": ("a.csv", HEADER + LINES + b'41,"1.0,1,1'),
    "a cell of a megabyte": ("a.csv", HEADER + b"1," + b"1" * 1_000_000 + b",1,1\n"),
    "a short line": ("a.csv", HEADER + b"1,2\n" + LINES),
    "UTF-16": ("a.csv", curve_csv().decode().encode("utf-16")),
    "NUL bytes": ("a.csv", b"\0" * 64),
    "a word for a loss": ("a.csv", HEADER + b"1,fast,1,1\n"),
    "no names": ("a.csv", LINES),
    "a name twice": ("a.csv", b"loss,loss\n1,2\n"),
    "brackets without end": ("a.json", b"[" * 100_000 + b"]" * 100_000),
    "objects without end": ("a.json", b'{"a": ' * 100_000),
    "deep but closed": ("a.json", b'{"a": ' * 980 + b"1" + b"}" * 980),
    "a number of 5000 digits": ("a.json", b'{"loss": [' + b"9" * 5000 + b"]}"),
    "a list of numbers": ("a.json", b"[1, 2]"),
    "a number": ("a.json", b"5"),
    "a text": ("a.json", b'"x"'),
    "two values": ("a.json", b"1 2"),
    "lists of two lengths": ("a.json", b'{"loss": [1], "step": [1, 2]}'),
    "a history that is no list": ("trainer_state.json", b'{"log_history": {}}'),
    "a history of numbers": ("trainer_state.json", b'{"log_history": [1]}'),
    "a loss that is a list": ("a.json", b'[{"loss": [1, 2]}]'),
    "a loss that is half a surrogate pair": ("a.json", rb'[{"loss": "\ud800"}]'),
    "a loss that paints the terminal": ("a.jsonl", rb'{"loss": "\u001b]0;x\u0007"}' + b"\n"),
    "a line of brackets": ("a.jsonl", b'{"loss": 1}\n' + b"[" * 100_000 + b"\n{}\n"),
    "a line with 5000 digits": ("a.jsonl", b'{"loss": ' + b"9" * 5000 + b"}\n{}\n"),
    "events of nothing": ("events.out.tfevents.1", b""),
    "events of noise": ("events.out.tfevents.1", bytes(range(256)) * 8),
    "events of a length without end": (
        "events.out.tfevents.1",
        b"\xff" * 7 + b"\x7f" + b"\0" * 64,
    ),
    "a pickle": ("a.pkl", b"cos\nsystem\n(S'touch pwned'\ntR."),
    "a checkpoint": ("a.pt", b"PK\x03\x04"),
    "a run of W&B that is none": ("run-1.wandb", b"junk"),
}

READ: dict[str, tuple[str, bytes]] = {
    "losses that are 0": ("a.csv", b"step,loss\n" + b"".join(b"%d,0\n" % n for n in range(40))),
    "losses that are infinite": (
        "a.csv",
        b"step,loss\n" + b"".join(b"%d,inf\n" % n for n in range(40)),
    ),
    "losses at the end of float64": (
        "a.csv",
        b"step,loss\n" + b"".join(b"%d,1.7e308\n" % n for n in range(40)),
    ),
    "losses with alternating signs": (
        "a.csv",
        b"step,loss\n" + b"".join(b"%d,%de300\n" % (n, (-1) ** n) for n in range(40)),
    ),
    "steps at the end of float64": (
        "a.csv",
        b"step,loss\n" + b"".join(b"%de307,1\n" % n for n in range(17)),
    ),
    "whole numbers beyond float64": (
        "a.json",
        b'{"loss": [' + b", ".join([b"1"] * 20 + [b"9" * 400] * 20) + b"]}",
    ),
    "a plan beyond float64": (
        "trainer_state.json",
        json.dumps({"log_history": CURVE, "max_steps": 10**400}).encode(),
    ),
    "a plan that is NaN": (
        "trainer_state.json",
        json.dumps({"log_history": CURVE, "max_steps": float("nan")}).encode(),
    ),
    "a name with half a surrogate pair and mathematics": (
        "a.json",
        json.dumps(
            [{"step": n, "run\ud800 $\\frac{ - loss": 1 / (n + 1)} for n in range(40)]
        ).encode(),
    ),
    "a name that is a tag": (
        "a.json",
        json.dumps([{"step": n, "</script><img src=x> - loss": 1} for n in range(40)]).encode(),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_log_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    file, content = REFUSED[name]
    (tmp_path / file).write_bytes(content)
    done = holdshort("diagnose", tmp_path / file)
    assert_refused(done)
    assert file in done.sentence or "not enough evidence" in done.sentence
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", READ)
def test_any_number_and_any_name_is_read(tmp_path: Path, name: str) -> None:
    file, content = READ[name]
    (tmp_path / file).write_bytes(content)
    done = holdshort("diagnose", tmp_path / file)
    assert done.code in (0, 1, 2), str(done)
    if done.code == 2:
        assert_refused(done, "not enough evidence")


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_log_is_read_whole_or_refused_or_remarked_upon(tmp_path: Path, name: str) -> None:
    file, content = DAMAGED[name]
    (tmp_path / file).write_bytes(content)
    done = holdshort("diagnose", tmp_path / file)
    assert done.code in (0, 1, 2), str(done)
    if done.code == 2:
        assert_refused(done)
        return
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    steps = {"telemetry.csv": lines - 1, "log.jsonl": lines}.get(file, STEPS)
    read = int(done.output.partition("loss (")[2].partition(")")[0])
    remarked = any(word in done.output for word in ("left out", "logged again", "null"))
    assert abs(read - steps) <= 1 or remarked, str(done)  # a flip may make loss another name


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from torch.utils.tensorboard import SummaryWriter

    directory = tmp_path_factory.mktemp("events")
    writer = SummaryWriter(str(directory))
    for line in CURVE:
        writer.add_scalar("train/loss", line["loss"], int(line["step"]))
    writer.close()
    return next(directory.glob("*tfevents*")).read_bytes()


@pytest.mark.slow
def test_every_damage_to_events_is_remarked_upon(tmp_path: Path, events: bytes) -> None:
    """TensorBoard reads up to the damage, and says nothing."""
    file = tmp_path / "events.out.tfevents.1"
    file.write_bytes(events)
    assert len(read_log(file, {}).loss or ()) == STEPS
    for what, content in (*truncations(events, 5, 12), *flips(events, 5, 30)):
        file.write_bytes(content)
        try:
            log = read_log(file, {})
        except UserError as error:
            assert "events.out.tfevents.1" in str(error), what
        else:
            assert any("is damaged or broken off after" in one for one in log.remarks), what
            assert len(log.loss or ()) < STEPS, what


@pytest.mark.parametrize("name", READ)
@pytest.mark.slow
def test_any_number_and_any_name_is_drawn(tmp_path: Path, name: str) -> None:
    file, content = READ[name]
    (tmp_path / file).write_bytes(content)
    done = holdshort("diagnose", tmp_path / file, "--report", tmp_path / "report")
    assert done.code in (0, 1, 2), str(done)
    page = (tmp_path / "report/index.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert "Warning" not in done.errors


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("value", [0.0, -1.0, 1e308, -1e308, np.inf, np.nan, 5e-324])
def test_a_chart_of_any_number_is_drawn(value: float, log: bool) -> None:
    lines = {"a $x_{ <b>": [value, 1.0, value]}
    svg = draw(Chart("a", [0.0, 1.0, value], lines, log_y=log, log_x=log))
    assert svg.startswith("<svg") and "<b>" not in svg


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["csv", "tsv", "json", "jsonl"]))
def test_any_bytes_are_a_log_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    file = tmp_path_factory.getbasetemp() / f"any.{suffix}"
    file.write_bytes(content)
    try:
        read_log(file, {})
    except UserError as error:
        assert str(error).isprintable()
