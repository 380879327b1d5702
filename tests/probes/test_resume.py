"""A training that goes on from its checkpoint is compared with one that was never stopped."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from torch import nn

from stages import gradient_probe
from stages.chat.collator import Batch, collate
from stages.chat.token_store import TokenRow
from stages.probes import resume
from stages.probes.resume import (
    RESUME_STEPS,
    Difference,
    ResumeCheck,
    Step,
    Stretch,
    check_resume,
    compare,
    run_resumed,
)
from stages.training.checkpoint import State
from stages.training.order import BatchOrder
from stages.training.state import Training, capture, restore
from stages.training.step import StepResult, train_step
from stages.verdict.judging import Measured, judge_all, rank_causes
from stages.verdict.rules.gradient_probe import RULES, causes_of

from ..parts import Bigram, make_rows
from ..settings import make_params, params_tree

pytestmark = pytest.mark.usefixtures("tokens")


def check(**values: Any) -> ResumeCheck:
    """The self-check with all its runs in this process, so that a test can break their parts."""
    params = make_params(**values)
    return check_resume(params, lambda directory: run_resumed(params, directory))


def texts(found: ResumeCheck) -> list[str]:
    return [difference.text for difference in found.differences]


def causes(found: ResumeCheck) -> list[str]:
    """What the gate says when nothing but the resumed training is amiss."""
    rules = [rule for rule in RULES if rule.id == "resume_differs"]
    checks = judge_all(rules, {"resume_differs": Measured(len(found.differences))}, {}, 42)
    return rank_causes(checks, causes_of(found.first_part))


HEALTHY: dict[str, dict[str, Any]] = {
    "as it is": {},
    "dropout": {"model__dropout": 0.1},
    "bfloat16": {"run__precision": "bf16", "model__dropout": 0.1},
    "float16": {"run__precision": "fp16", "model__dropout": 0.1},
    "accumulation": {"train__gradient_accumulation_steps": 2, "model__dropout": 0.1},
    "grouped by length": {"train__group_by_length": True},
    "packed": {"train__packing": True, "model__dropout": 0.1},
    "one micro-batch": {"train__gradient_accumulation_steps": 1},
    "warm-up over the break": {"train__warmup_steps": 5},
    "shorter than the check": {"train__max_steps": 2, "train__warmup_ratio": 0.0},
    "rows seen twice": {"train__per_device_train_batch_size": 5, "train__num_train_epochs": 9.0},
    "frozen": {"model__frozen": ["*embed*"]},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_sound_training_resumes_to_the_bit(name: str) -> None:
    found = check(**HEALTHY[name])
    assert texts(found) == []
    assert found.resumed == found.uninterrupted
    assert (found.uninterrupted.first, len(found.uninterrupted.steps)) == (3, 3)
    assert causes(found) == []


def test_no_checkpoint_stays_behind() -> None:
    check()
    assert not Path("checkpoints").exists()


def test_the_resumed_steps_take_the_rows_of_the_real_training() -> None:
    found = check()
    order = BatchOrder(12, 4, 42)
    sources = [row.source for row in make_rows(12)]
    assert [list(step.rows) for step in found.uninterrupted.steps] == [
        [sources[index] for index in order.indices(step)] for step in (3, 4, 5)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_fresh_process_resumes_to_the_bit(precision: str) -> None:
    values = {"model__dropout": 0.1, "train__warmup_steps": 5, "run__precision": precision}
    with Path("params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(params_tree(**values), file)
    found = check_resume(make_params(**values))
    assert texts(found) == []
    assert found.resumed == found.uninterrupted


def not_restoring(part: str) -> Callable[[Training, State], None]:
    """`restore`, but for one part of the state, which stays as the fresh training has it."""

    def forget(training: Training, state: State) -> None:
        restore(training, {**state, part: capture(training)[part]})

    return forget


@pytest.mark.parametrize(
    ("part", "first", "also", "cause"),
    [
        (
            "model",
            "weights before step 3",
            "loss of step 3",
            "a resumed run has other weights: they are not restored, or loading changes them",
        ),
        (
            "optimizer",
            "optimizer state before step 3",
            "learning rate of step 3: 0.006 and 0.0",
            "optimizer state is not restored",
        ),
        (
            "scheduler",
            "state of the scheduler before step 3",
            "learning rate of step 4: 0.008 and 0.002",
            "learning rate differs: the scheduler is not restored",
        ),
        (
            "rng",
            "random state before step 3",
            "loss of step 3",
            "random state is not restored",
        ),
        (
            "telemetry",
            "the training goes on at step 0, not 3",
            "rows of step 3",
            "a resumed run gets other rows: the data position is not restored",
        ),
    ],
)
def test_each_part_that_is_not_restored_is_named(
    monkeypatch: pytest.MonkeyPatch, part: str, first: str, also: str, cause: str
) -> None:
    monkeypatch.setattr(resume, "restore", not_restoring(part))
    found = check(model__dropout=0.1, train__warmup_steps=5)
    assert texts(found)[0] == first
    assert [text for text in texts(found) if text.startswith(also)] != []
    assert causes(found) == [cause]


def test_a_loss_scaler_that_is_not_restored_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "restore", not_restoring("scaler"))
    found = check(run__precision="fp16")
    assert texts(found)[0] == "state of the loss scaler before step 3"
    assert causes(found) == ["the loss scaler is not restored"]


def test_other_parts_are_not_blamed_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "restore", not_restoring("scheduler"))
    found = check()
    before = [text for text in texts(found) if text.endswith("before step 3")]
    assert before == ["state of the scheduler before step 3"]


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_data_position_that_is_off_by_one_is_named(
    monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    def off_by_one(training: Training, state: State) -> None:
        lines = [*state["telemetry"], {"step": 3}]
        restore(training, {**state, "telemetry": lines[: RESUME_STEPS + shift]})

    monkeypatch.setattr(resume, "restore", off_by_one)
    found = check()
    assert texts(found)[0] == f"the training goes on at step {3 + shift}, not 3"
    assert causes(found) == ["a resumed run gets other rows: the data position is not restored"]


def test_lost_lines_of_telemetry_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def emptied(training: Training, state: State) -> None:
        restore(training, {**state, "telemetry": [{}] * RESUME_STEPS})

    monkeypatch.setattr(resume, "restore", emptied)
    assert causes(check()) == ["the telemetry of the steps before is not restored"]


def test_weights_that_loading_changes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def through_bfloat16(training: Training, state: State) -> None:
        weights = {name: weight.bfloat16() for name, weight in state["model"].items()}
        restore(training, {**state, "model": weights})

    monkeypatch.setattr(resume, "restore", through_bfloat16)
    found = check()
    assert texts(found)[0] == "weights before step 3"
    assert causes(found)[0].startswith("a resumed run has other weights")


@pytest.mark.parametrize("part", ["model", "optimizer", "scheduler", "scaler", "rng"])
def test_a_part_that_was_never_saved_is_named(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(
        resume, "capture", lambda run: {k: v for k, v in capture(run).items() if k != part}
    )
    found = check()
    assert texts(found) == [f"the checkpoint cannot be loaded: KeyError: '{part}'"]
    assert found.resumed is None
    assert causes(found) == ["a training cannot go on from its checkpoint"]


def test_saving_that_changes_the_training_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawing(training: Training) -> State:
        torch.rand(1)
        return capture(training)

    monkeypatch.setattr(resume, "capture", drawing)
    assert causes(check()) == ["random state is not restored"]


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (Path, "the checkpoint cannot be read back: it holds more than plain data"),
        (lambda: 0, "the checkpoint cannot be saved: "),
    ],
    ids=["a class", "a function"],
)
def test_state_that_no_checkpoint_can_hold_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: object, text: str
) -> None:
    monkeypatch.setattr(resume, "capture", lambda run: {**capture(run), "extra": extra})
    found = check()
    assert [one.startswith(text) for one in texts(found)] == [True]
    assert causes(found) == ["a training cannot go on from its checkpoint"]


class Growing(Bigram):
    """Has a buffer more once it has run, so that its fresh copy does not know it."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.register_buffer("seen", torch.ones(1))
        return super().forward(*inputs, **named)


class Counting(Bigram):
    """Counts its calls in an attribute, and scores by the count."""

    calls = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.calls += 1
        output = super().forward(*inputs, **named)
        return output._replace(logits=output.logits * self.calls)


def build(monkeypatch: pytest.MonkeyPatch, model: type[nn.Module]) -> None:
    monkeypatch.setattr(resume, "build_model", lambda params, vocab_size, device: model())


def test_weights_that_the_fresh_model_does_not_have_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build(monkeypatch, Growing)
    [text] = texts(check())
    assert text == (
        "the checkpoint cannot be loaded: RuntimeError: the checkpoint and the model do not share "
        "seen"
    )


def test_a_step_that_fails_after_loading_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_nowhere(training: Training, state: State) -> None:
        restore(training, state)
        training.trainer.model.to("meta")

    monkeypatch.setattr(resume, "restore", to_nowhere)
    [text] = texts(check())
    assert text.startswith("no step can be taken after loading: ")


def test_state_that_a_model_keeps_outside_its_state_dict_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build(monkeypatch, Counting)
    found = check()
    assert texts(found)[0].startswith("loss of step 3: ")
    assert causes(found)[0].startswith(
        "a resumed run computes otherwise from the same state and batch"
    )


def counting_collator() -> Callable[[Sequence[TokenRow], int], Batch]:
    """A collator that pads wider at every call."""
    calls = 0

    def widening(rows: Sequence[TokenRow], pad_token_id: int) -> Batch:
        nonlocal calls
        calls += 1
        wide = replace(rows[0], input_ids=np.full(14 + calls, 2, np.int32))
        wide = replace(wide, labels=wide.input_ids, roles=np.zeros(14 + calls, np.uint8))
        return collate([*rows, wide], pad_token_id)

    return widening


def test_a_collator_that_keeps_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "hooked_collator", lambda data: counting_collator())
    found = check()
    assert texts(found)[0] == "tensors of step 3, made of the same rows"
    assert causes(found)[0].startswith("a resumed run gets other batches of the same rows")


def test_rows_that_come_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    indices = BatchOrder.indices

    def shifting(order: BatchOrder, step: int) -> list[int]:
        drawn.append(step)
        resumed = len(drawn) > 3 * RESUME_STEPS
        return indices(order, step + resumed)

    monkeypatch.setattr(BatchOrder, "indices", shifting)
    found = check()
    sources = [make_rows(12)[indices(BatchOrder(12, 4, 42), step)[0]].source for step in (3, 4)]
    assert texts(found)[0] == f"rows of step 3: {sources[0]} and {sources[1]}"
    assert causes(found) == ["a resumed run gets other rows: the data position is not restored"]


def test_a_rate_of_the_step_s_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh_step(train: Any) -> Callable[..., StepResult]:
        taken = 0

        def step(*arguments: Any, optimizer: torch.optim.Optimizer, **rest: Any) -> StepResult:
            nonlocal taken
            taken += 1
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / taken
            return train_step(*arguments, optimizer=optimizer, **rest)

        return step

    monkeypatch.setattr("stages.training.setup.hooked_step", fresh_step)
    found = check()
    assert texts(found)[0] == "learning rate of step 3: 0.0025 and 0.01"
    assert causes(found) == ["learning rate differs: it follows from what no checkpoint holds"]


def test_a_training_that_does_not_repeat_is_not_blamed_on_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = 0

    def step(model: nn.Module, *arguments: Any, **rest: Any) -> StepResult:
        nonlocal taken
        taken += 1
        result = train_step(model, *arguments, **rest)
        return replace(result, loss=result.loss + taken)

    monkeypatch.setattr("stages.training.setup.hooked_step", lambda train: step)
    found = check()
    assert texts(found)[0].startswith("two runs from the start: loss of step 0: ")
    assert found.resumed is None
    assert causes(found)[0].startswith("the training does not repeat from its start")


STEP = Step(("a:1", "a:2"), "0" * 64, 0.5, 2.0, 1.0)
STRETCH = Stretch(3, {"model": "1", "average": "2"}, [STEP] * 3, {"model": "3", "average": "4"})


def test_the_page_shows_both_values_where_they_differ() -> None:
    other = replace(STEP, rows=("a:2", "a:3"), loss=2.5)
    found = ResumeCheck(STRETCH, replace(STRETCH, steps=[STEP, STEP, other]), [])
    section = gradient_probe.describe_resume(found)
    assert section.table is not None
    assert section.table.rows[1:] == [
        (4, "2 of 2 the same", "0.5", "2.0", "1.0"),
        (5, "1 of 2 the same", "0.5", "2.0, resumed 2.5", "1.0"),
    ]


def test_the_page_says_why_a_training_could_not_be_resumed() -> None:
    found = ResumeCheck(STRETCH, None, [Difference("checkpoint", "the checkpoint cannot be saved")])
    section = gradient_probe.describe_resume(found)
    assert (section.text, section.table) == ("Not resumed: the checkpoint cannot be saved.", None)


def test_equal_stretches_do_not_differ() -> None:
    assert list(compare(STRETCH, STRETCH)) == []


def test_a_new_part_of_the_trainer_has_a_cause_of_its_own() -> None:
    found = replace(STRETCH, before={"model": "1", "average": "9"})
    [difference] = compare(STRETCH, found)
    assert difference == Difference("average", "average before step 3")
    assert causes(ResumeCheck(STRETCH, found, [difference])) == ["the average is not restored"]


def test_all_that_differs_is_told_in_its_order() -> None:
    other = Step(("a:1",), "1" * 64, 0.25, float("nan"), 1.5)
    found = Stretch(4, {"model": "0", "average": "2"}, [STEP, STEP, other], {**STRETCH.after})
    found.after["average"] = "0"
    assert list(compare(STRETCH, found)) == [
        Difference("position", "the training goes on at step 4, not 3"),
        Difference("model", "weights before step 3"),
        Difference("position", "rows of step 5: a:2 and None"),
        Difference("learning_rate", "learning rate of step 5: 0.5 and 0.25"),
        Difference("step", "loss of step 5: 2.0 and nan"),
        Difference("step", "grad norm of step 5: 1.0 and 1.5"),
        Difference("step", "average after step 5"),
    ]


def test_the_smallest_difference_of_a_loss_counts() -> None:
    near = replace(STEP, loss=float(np.nextafter(2.0, 3.0)))
    found = replace(STRETCH, steps=[STEP, near, STEP])
    assert list(compare(STRETCH, found)) == [
        Difference("step", "loss of step 4: 2.0 and 2.0000000000000004")
    ]
