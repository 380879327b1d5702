"""Columns are known by common names, and what stands in them becomes numbers or a sentence."""

import math
from typing import Any

import numpy as np
import pytest

from stages.config.errors import UserError
from stages.curves.columns import Role, Rows, to_run_log
from stages.curves.run_log import RunLog


def read(rows: list[dict[str, Any]], mapped: dict[Role, str] | None = None) -> RunLog:
    table = Rows("rows", [(f"log:{i + 1}", row) for i, row in enumerate(rows)])
    return to_run_log(table, mapped or {})


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (("loss", "eval_loss", "learning_rate", "grad_norm", "step"), "transformers"),
        (("train/loss", "eval/loss", "train/learning_rate", "train/grad_norm", "train/global_step"),
         "transformers in TensorBoard and W&B"),
        (("train_loss_step", "val_loss", "lr-AdamW", "grad_norm", "step"), "Lightning"),
        (("loss", "val_loss", "lr", "grad_norm", "epoch"), "Keras"),
        (("lm loss", "lm loss validation", "learning-rate", "grad-norm", "iteration"), "Megatron"),
        (("train/loss", "val/loss", "lr", "total_norm", "iter"), "nanoGPT"),
        (("loss", "eval_loss", "lr", "gradient_norm", "current_steps"), "LLaMA-Factory"),
        (("run 7 - train/loss", "run 7 - eval/loss", "run 7 - lr", "run 7 - gnorm", "Step"),
         "W&B's export"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_names_of_trainers(names: tuple[str, ...], roles: str) -> None:
    loss, validation, rate, norm, step = names
    rows = [
        {loss: 3.0 - i, validation: 4.0, rate: 0.1, norm: 2.0, step: 10 * i, "speed": 5}
        for i in range(3)
    ]
    log = read(rows)
    assert log.loss is not None
    assert log.loss.values.tolist() == [3.0, 2.0, 1.0]
    assert log.loss.steps.tolist() == [0.0, 10.0, 20.0]
    assert [one.name for one in log.series] == [loss, validation, rate, norm]


def test_each_validation_set_has_a_curve_of_its_own() -> None:
    rows = [{"loss": 1.0, "eval_web_loss": 2.0, "eval_code_loss": 3.0, "step": i} for i in range(3)]
    assert [one.name for one in read(rows).validation] == ["eval_web_loss", "eval_code_loss"]


def test_a_column_of_another_name_is_mapped() -> None:
    rows = [{"bpb": 1.5, "loss": 3.0, "t": i} for i in range(3)]
    log = read(rows, {"loss": "bpb", "step": "t"})
    assert log.loss is not None
    assert (log.loss.name, log.loss.values.tolist()) == ("bpb", [1.5] * 3)


def test_a_mapped_column_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="--map loss=bpb: the log has no column 'bpb'; it has nats"):
        read([{"nats": 1.0}], {"loss": "bpb"})


def test_two_columns_that_could_be_the_loss_are_named() -> None:
    with pytest.raises(UserError, match=r"2 columns for loss: a - loss, b - loss; say which"):
        read([{"a - loss": 1.0, "b - loss": 2.0}])


@pytest.mark.parametrize("text", ["NaN", "nan", "-nan", " NaN "])
def test_nan_in_words(text: str) -> None:
    log = read([{"loss": text, "step": 1}])
    assert log.loss is not None
    assert math.isnan(log.loss.values[0])


@pytest.mark.parametrize(
    ("text", "value"), [("Infinity", math.inf), ("-Infinity", -math.inf), ("inf", math.inf)]
)
def test_infinity_in_words(text: str, value: float) -> None:
    log = read([{"loss": text, "step": 1}])
    assert log.loss is not None
    assert log.loss.values[0] == value


@pytest.mark.parametrize("null", [None, "null", "None"])
def test_null_on_a_line_of_training_is_nan(null: str | None) -> None:
    log = read([{"loss": 2.0, "lr": 0.1, "step": 0}, {"loss": null, "lr": 0.1, "step": 1}])
    assert log.loss is not None
    assert np.isnan(log.loss.values).tolist() == [False, True]
    assert "1 losses are null, and were read as NaN" in log.remarks


def test_null_on_a_line_that_has_nothing_else_is_nan() -> None:
    log = read([{"loss": 2.0, "step": 0}, {"loss": None, "step": 1}])
    assert log.loss is not None
    assert np.isnan(log.loss.values).tolist() == [False, True]


@pytest.mark.parametrize("gap", [None, math.nan, "NaN", ""])
def test_a_gap_on_a_line_of_validation_is_no_nan(gap: Any) -> None:
    rows = [
        {"loss": 2.0, "val_loss": gap, "step": 0},
        {"loss": gap, "val_loss": 1.5, "step": 1},
        {"loss": 1.0, "val_loss": gap, "step": 2},
    ]
    log = read(rows)
    assert log.loss is not None
    assert log.loss.values.tolist() == [2.0, 1.0]


def test_nan_beside_a_validation_loss_is_nan_where_lines_have_both() -> None:
    second = {"loss": "nan", "val_loss": 2.0, "epoch": 1}
    log = read([{"loss": 2.0, "val_loss": 2.1, "epoch": 0}, second])
    assert log.loss is not None
    assert np.isnan(log.loss.values).tolist() == [False, True]


@pytest.mark.parametrize("cell", ["abc", "tensor(2.3)", [1.0], {}], ids=str)
def test_what_is_no_number_is_named_with_its_place(cell: Any) -> None:
    with pytest.raises(UserError, match=r"log:2: 'loss' is .*; it must be a number"):
        read([{"loss": 1.0}, {"loss": cell}])


def test_other_columns_may_hold_anything() -> None:
    assert read([{"loss": 1.0, "text": "abc"}]).loss is not None


def test_only_the_last_run_of_a_file_is_judged() -> None:
    rows = [{"loss": 9.0, "step": i} for i in range(4)] + [{"loss": 1.0, "step": i} for i in (0, 1)]
    log = read(rows)
    assert log.loss is not None
    assert log.loss.values.tolist() == [1.0, 1.0]
    assert log.remarks == ("4 lines of earlier runs stand above the last run, and were left out",)


def test_a_log_with_the_newest_line_first_is_turned_round() -> None:
    rows = [{"loss": 3.0 - step, "step": step} for step in (0, 1, 1, 2)]
    log = read(rows[::-1])
    assert log.loss is not None
    assert log.loss.steps.tolist() == [0, 1, 2]
    assert log.loss.values.tolist() == [3.0, 2.0, 1.0]
    assert "turned round" in log.remarks[0]


def test_two_runs_of_a_step_each_are_not_turned_round() -> None:
    log = read([{"loss": 9.0, "step": 1}, {"loss": 1.0, "step": 0}])
    assert log.loss is not None
    assert log.loss.values.tolist() == [1.0]


@pytest.mark.parametrize("cell", ["No log", "-", ""])
def test_what_was_not_logged_is_a_gap(cell: str) -> None:
    log = read([{"loss": cell, "eval_loss": 2.0, "step": 0}, {"loss": 1.0, "step": 1}])
    assert log.loss is not None
    assert log.loss.values.tolist() == [1.0]


def test_steps_that_a_resumed_run_logged_again_count_once() -> None:
    steps = [0, 1, 2, 3, 2, 3, 4]
    log = read([{"loss": float(i), "step": step} for i, step in enumerate(steps)])
    assert log.loss is not None and log.logged_loss is not None
    assert log.loss.values.tolist() == [0.0, 1.0, 4.0, 5.0, 6.0]
    assert len(log.logged_loss) == 7
    assert log.remarks == ("2 losses were logged again for the same step; the last one counts",)


def test_steps_that_begin_anew_in_each_epoch_are_counted_on() -> None:
    rows = [{"loss": 1.0, "batch": i, "epoch": epoch} for epoch in range(3) for i in range(4)]
    log = read(rows)
    assert log.loss is not None
    assert log.loss.steps.tolist() == list(range(12))


def test_without_steps_epochs_are_taken_and_without_epochs_lines() -> None:
    by_epoch = read([{"loss": 1.0, "epoch": epoch} for epoch in (0.5, 1.0)])
    assert by_epoch.x_label == "epoch"
    by_line = read([{"loss": 1.0}, {"loss": 0.5}])
    assert by_line.loss is not None
    assert (by_line.x_label, by_line.loss.steps.tolist()) == ("line", [1.0, 2.0])


def test_lines_without_a_step_are_counted() -> None:
    log = read([{"loss": 1.0, "step": 1}, {"loss": 2.0, "step": None}])
    assert "1 lines have no step, and were left out" in log.remarks


def test_the_planned_steps_are_read() -> None:
    rows = [{"loss": 1.0, "current_steps": i, "total_steps": 40} for i in range(3)]
    assert read(rows).max_steps == 40
