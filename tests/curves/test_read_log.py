"""Logs of real trainers are read as they were written; a damaged one is refused in a sentence."""

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stages.config.errors import UserError
from stages.curves.diagnosis import diagnose
from stages.curves.read_log import read_log
from stages.curves.run_log import RunLog
from stages.curves.signature import Known

LOSSES = [3.0, 2.5, math.nan, 1.5, math.inf]


def losses(log: RunLog) -> list[float]:
    assert log.loss is not None
    return list(log.loss.values)


class Line(nn.Module):
    """A model that transformers' Trainer takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Three classes that are easy to tell apart. spoil: a row from which on inputs are NaN."""

    def __init__(self, spoil: int = 10**6) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(3, (96,), generator=generator)
        self.x = torch.randn(96, 4, generator=generator)
        self.x[torch.arange(96), self.labels] += 3
        self.x[spoil:] = torch.nan

    def __len__(self) -> int:
        return 96

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[row], "labels": self.labels[row]}


def run_trainer(directory: Path, rows: Rows, **arguments: Any) -> Path:
    """A run of transformers' Trainer; returns its directory."""
    from transformers import Trainer, TrainingArguments

    settings = {
        "max_steps": 48,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.05,
        "warmup_steps": 3,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 12,
        "save_steps": 24,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        **arguments,
    }
    options = TrainingArguments(output_dir=str(directory), **settings)
    trainer = Trainer(model=Line(), args=options, train_dataset=rows, eval_dataset=Rows())
    trainer.train()
    trainer.save_state()
    return directory


@pytest.mark.slow
def test_a_run_of_transformers(tmp_path: Path) -> None:
    directory = run_trainer(tmp_path, Rows())
    log = read_log(directory, {})
    assert [(one.name, len(one)) for one in log.series] == [
        ("loss", 48),
        ("eval_loss", 4),
        ("learning_rate", 48),
        ("grad_norm", 48),
    ]
    assert log.max_steps == 48
    state = json.loads((directory / "trainer_state.json").read_text())
    assert losses(log)[0] == state["log_history"][0]["loss"]
    found = diagnose(log, Known(classes=3, max_grad_norm=1.0))
    assert (found.exit_code, found.faults) == (0, [])

    (directory / "trainer_state.json").unlink()  # as a run leaves it that was killed
    newest = read_log(directory, {})
    assert len(losses(newest)) == 48
    assert losses(read_log(directory / "checkpoint-24", {})) == losses(newest)[:24]


@pytest.mark.slow
def test_a_nan_that_transformers_hides_is_found(tmp_path: Path) -> None:
    directory = run_trainer(tmp_path, Rows(spoil=0), save_strategy="no")
    log = read_log(directory / "trainer_state.json", {})
    assert losses(log)[5:] == [0.0] * 43  # the trainer's filter
    assert "hidden_nan" in [one.id for one in diagnose(log, Known()).faults]


def test_event_files_of_tensorboard(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "run")) as writer:
        for i, loss in enumerate(LOSSES):
            writer.add_scalar("train/loss", loss, 10 * i)
            writer.add_scalar("train/learning_rate", 0.5, 10 * i)
        writer.add_scalar("eval/loss", 2.25, 40)
        writer.add_hparams({"lr": 0.5}, {"metric": 1.0})
    log = read_log(tmp_path / "run", {})
    np.testing.assert_array_equal(losses(log), LOSSES)
    assert [one.name for one in log.series] == ["train/loss", "eval/loss", "train/learning_rate"]
    (file,) = (tmp_path / "run").glob("events*")
    np.testing.assert_array_equal(losses(read_log(file, {})), LOSSES)


def test_a_resumed_run_of_tensorboard_counts_each_step_once(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for begin, value in ((0, 2.0), (3, 1.0)):
        with SummaryWriter(str(tmp_path), filename_suffix=str(begin)) as writer:
            for step in range(begin, begin + 5):
                writer.add_scalar("loss", value, step)
    log = read_log(tmp_path, {})
    assert losses(log) == [2.0] * 3 + [1.0] * 5
    assert log.remarks == ("2 losses were logged again for the same step; the last one counts",)


def test_several_runs_of_tensorboard_are_not_one(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for name in ("one", "two"):
        with SummaryWriter(str(tmp_path / name)) as writer:
            writer.add_scalar("loss", 1.0, 0)
    with pytest.raises(UserError, match=r"holds 2 runs \(one, two\); name one of them"):
        read_log(tmp_path, {})


def test_without_tensorboard_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing", None)
    with pytest.raises(UserError, match="`pip install tensorboard`"):
        read_log(tmp_path, {})


def test_an_offline_run_of_wandb(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    settings = wandb.Settings(console="off", x_disable_stats=True, silent=True)
    run = wandb.init(mode="offline", project="test", dir=str(tmp_path), settings=settings)
    for i, loss in enumerate(LOSSES):
        run.log({"train/loss": loss, "train/global_step": 10 * i, "note": "x" * 20_000})
    run.log({"eval": {"loss": 2.25}, "train/global_step": 40})
    run.finish()
    wandb.teardown()  # until then, the end of the file may not be written
    (directory,) = tmp_path.glob("wandb/offline-run-*")
    log = read_log(directory, {})
    np.testing.assert_array_equal(losses(log), LOSSES)
    assert log.loss is not None
    assert log.loss.steps.tolist() == [0, 10, 20, 30, 40]
    assert log.validation[0].values.tolist() == [2.25]
    assert log.remarks == ()

    (file,) = directory.glob("*.wandb")
    content = file.read_bytes()
    (tmp_path / "cut.wandb").write_bytes(content[: len(content) // 2])
    cut = read_log(tmp_path / "cut.wandb", {})
    assert 0 < len(losses(cut)) < 5
    np.testing.assert_array_equal(losses(cut), LOSSES[: len(losses(cut))])
    assert cut.remarks == ("the run did not end, or its file is broken off",)


def test_without_wandb_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run-1.wandb").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "wandb.proto", None)
    with pytest.raises(UserError, match=r"install wandb`, or export the history: `run\.history"):
        read_log(tmp_path, {})


def test_histories_that_wandb_exported(tmp_path: Path) -> None:
    table = tmp_path / "history.csv"
    table.write_text(
        '"Step","brisk-sun-3 - train/loss","brisk-sun-3 - train/loss__MIN",'
        '"brisk-sun-3 - train/loss__MAX"\n"0","3.0","3.0","3.0"\n"10","NaN","NaN","NaN"\n'
    )
    np.testing.assert_array_equal(losses(read_log(table, {})), [3.0, math.nan])
    lines = tmp_path / "history.jsonl"
    lines.write_text(
        '{"_step":0,"train/loss":3.0,"train/global_step":0,"eval/loss":null}\n'
        '{"_step":1,"train/loss":"NaN","train/global_step":5,"eval/loss":null}\n'
        '{"_step":2,"train/loss":null,"train/global_step":5,"eval/loss":2.5}\n'
    )
    log = read_log(lines, {})
    np.testing.assert_array_equal(losses(log), [3.0, math.nan])
    assert log.validation[0].values.tolist() == [2.5]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "log.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerows([("step", "loss"), *((i, loss) for i, loss in enumerate(LOSSES))])
    np.testing.assert_array_equal(losses(read_log(path, {})), LOSSES)


@pytest.mark.parametrize("name", ["log.jsonl", "log.json"])
def test_objects_a_line_with_nested_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    lines = [{"step": i, "train": {"loss": loss}} for i, loss in enumerate(LOSSES)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    np.testing.assert_array_equal(losses(read_log(path, {})), LOSSES)


@pytest.mark.parametrize(
    "content",
    [
        [{"step": i, "loss": loss} for i, loss in enumerate(LOSSES)],
        {"loss": LOSSES, "val_loss": LOSSES, "params": {"epochs": 5}},
    ],
    ids=["a list of objects", "as Keras has it"],
)
def test_one_json_value(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(content))
    np.testing.assert_array_equal(losses(read_log(path, {})), LOSSES)


def test_the_log_of_our_own_steps(tmp_path: Path) -> None:
    path = tmp_path / "full_train.csv"
    runs = [(step, 9.0) for step in range(4)] + [(step, 1.0 / (1 + step)) for step in range(3)]
    path.write_text("".join(f"2026-01-01T00:00:00+00:00,{s},{loss},0.1\n" for s, loss in runs))
    log = read_log(path, {})
    assert losses(log) == [1.0, 0.5, 1 / 3]
    assert "4 lines of earlier runs" in log.remarks[0]


def test_a_last_line_that_is_broken_off_is_left_out_and_told(tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    lines.write_text('{"step": 0, "loss": 2.0}\n{"step": 1, "lo')
    table = tmp_path / "log.csv"
    table.write_text("step,loss,lr\n0,2.0,0.1\n1,1.")
    for path in (lines, table):
        log = read_log(path, {})
        assert losses(log) == [2.0]
        assert log.remarks == ("the last line is broken off, and was left out",)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("log.csv", b"", "is empty"),
        ("log.csv", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("log.csv", b"0,3.0\n1,2.0\n", ":1: is no header line"),
        ("log.csv", b"step,loss,loss\n0,1,2\n", "has the column 'loss' twice"),
        ("log.csv", b"step,loss\n0,1\n1,2,3\n2,1\n", ":3: has 3 columns, the header has 2"),
        ("log.csv", b"step,loss\n0,low\n", ":2: 'loss' is 'low'; it must be a number"),
        ("log.jsonl", b'{"loss": 1}\n{"loss"\n{"loss": 2}\n', ":2: is not JSON"),
        ("log.jsonl", b'{"loss": 1}\n[1]\n', ":2: is list; it must be an object"),
        ("log.json", b'{"loss": [1, 2', ":1: is not JSON"),
        ("log.json", b"3", "holds int; a log is objects"),
        ("log.json", b'{"loss": [1, 2], "lr": [1]}', "are not of one length"),
        ("trainer_state.json", b'{"log_history": 3}', "log_history is int; it must be a list"),
        ("log.txt", b"loss 3", "a log is .csv, .tsv, .jsonl"),
        ("run-1.wandb", b"abc", "wandb"),
    ],
)
def test_a_damaged_log_is_refused_in_a_sentence(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as refusal:
        read_log(tmp_path / name, {})
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_directory_with_one_log_or_with_telemetry_is_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,loss\n0,2.0\n1,1.0\n", encoding="utf-8")
    assert losses(read_log(tmp_path, {})) == [2.0, 1.0]
    (tmp_path / "answers.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"it has answers\.csv, metrics\.csv"):
        read_log(tmp_path, {})
    (tmp_path / "telemetry.csv").write_text("step,loss\n0,3.0\n", encoding="utf-8")
    assert losses(read_log(tmp_path, {})) == [3.0]


def test_a_directory_without_a_log_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no trainer_state.json, no checkpoint"):
        read_log(tmp_path, {})
    with pytest.raises(UserError, match="does not exist"):
        read_log(tmp_path / "nothing.csv", {})
