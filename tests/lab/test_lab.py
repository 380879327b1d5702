"""The lab passes with the numbers it is known for, and sees whatever is broken on purpose."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stages import cli
from stages.chat.collator import Batch
from stages.chat.labels import IGNORE_INDEX
from stages.commands import lab
from stages.commands.lab import PAD, STOP, LabRun, make_batch, make_exercises, measure, memorise
from stages.config import UserError
from stages.config.protocol import read_protocol
from stages.config.schema import Run
from stages.probes.fingerprint import RunTrace
from stages.training.determinism import make_deterministic
from stages.training.loss import causal_lm_loss
from stages.training.setup import Trainer
from stages.training.step import StepResult, train_step
from stages.verdict.judging import Measured, failed_ids, judge, judge_all, rank_causes
from stages.verdict.rules.lab import CAUSES, RULES

from ..conftest import ROOT
from ..parts import pinned_process

GOLDEN = Path(__file__).with_name("overfit_run_record.json")
GATES, LIMITS = read_protocol()
RUN = Run(seed=42, device="cpu", precision="fp32", cpu_threads=1, hardware=None)
OTHER = RunTrace([9.0] * 36, [9.0] * 36, "a" * 64, "b" * 64)
THIRD_ROW = [1, 42, 33, 41, STOP]
"""The answer of sequence 2, which stands behind a prompt of six tokens."""


@pytest.fixture(autouse=True)
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with pinned_process():
        yield


def make_trainer() -> Trainer:
    return lab.build_trainer(make_deterministic(RUN), RUN)


def learn(trainer: Trainer, batch: Batch) -> LabRun:
    return memorise(trainer, batch, make_exercises(), GATES.overfit.max_steps)


def judged(run: LabRun, again: RunTrace | None = None, other: RunTrace = OTHER) -> set[str]:
    """Ids of the checks that fail; without `again` the second run is like the first."""
    return failed_ids(judge_all(RULES, measure(run, again or run.trace, other), LIMITS, 42))


def in_this_process(
    work: Callable[[int], LabRun], seeds: Sequence[int], *, at_once: int
) -> list[LabRun]:
    return [work(seed) for seed in seeds]


def read_record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(lab.RECORD.read_text(encoding="utf-8"))
    return record


def test_eight_sequences_end_with_the_stop_token_and_hold_it_nowhere_else() -> None:
    exercises = make_exercises()
    assert len(exercises) == 8
    assert len({tuple(one.prompt) for one in exercises}) == 8
    for one in exercises:
        assert one.tokens.index(STOP) == len(one.tokens) - 1
        assert PAD not in one.tokens
    assert exercises[2].prompt == [19, 30, 27, 26, 2, 1]
    assert exercises[2].answer == THIRD_ROW


def test_exactly_the_answers_are_supervised() -> None:
    batch, exercises = make_batch(make_exercises()), make_exercises()
    assert batch["labels"][2].tolist() == [*[-100] * 6, *THIRD_ROW, *[-100] * 8]
    supervised = (batch["labels"] != IGNORE_INDEX).sum(1).tolist()
    assert supervised == [len(one.answer) for one in exercises]


def test_the_numbers_are_those_the_lab_is_known_for() -> None:
    run, golden = lab.run_once(GATES.overfit, 42), json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert run.initial.reference == pytest.approx(golden["initial_loss"], rel=1e-5)
    steps = golden["steps"]
    assert run.trace.losses == pytest.approx([one["loss"] for one in steps], rel=1e-3)
    assert run.trace.grad_norms == pytest.approx([one["grad_norm"] for one in steps], rel=1e-3)
    assert run.parameters == golden["parameters"]
    assert len(steps) == GATES.overfit.max_steps + 1


def test_the_readme_shows_these_numbers() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for step in (0, 10, 20, 30, 35):
        shown = golden["steps"][step]
        assert f"{step:>4} {shown['loss']:>8.4f} {shown['grad_norm']:>15.4f}\n" in readme
    assert f"{golden['parameters']['parameters']:,} parameters" in " ".join(readme.split())


def test_a_healthy_lab_passes_every_check() -> None:
    run = lab.run_once(GATES.overfit, 42)
    assert judged(run) == set()
    assert run.initial.uniform == pytest.approx(4.1588830834)
    assert run.trace.losses[34] < 0.05
    assert (run.frozen, run.adapters) == (9, 8)


def test_its_rate_is_within_the_protocols_range() -> None:
    assert 1e-3 <= lab.LEARNING_RATE <= 5e-2


@pytest.mark.parametrize(
    "name", ["embedding.weight", "lm_head.weight", "blocks.0.mlp.up.base.weight"]
)
def test_one_bit_of_one_frozen_weight_is_seen(name: str) -> None:
    trainer = make_trainer()
    weight = trainer.model.get_parameter(name)

    def flip_last_bit(*arguments: Any, **settings: Any) -> StepResult:
        weight.data.view(torch.int32)[3, 5] |= 1
        return train_step(*arguments, **settings)

    weight.data.view(torch.int32)[3, 5] &= ~1
    run = learn(replace(trainer, step_fn=flip_last_bit), make_batch(make_exercises()))
    assert run.frozen_changed == [name]
    assert judged(run) == {"frozen_changed"}


def test_a_head_that_trains_is_seen() -> None:
    trainer = make_trainer()
    head = trainer.model.get_parameter("lm_head.weight").requires_grad_()
    trainer.optimizer.param_groups[0]["params"].append(head)
    run = learn(trainer, make_batch(make_exercises()))
    assert run.frozen_changed == ["lm_head.weight"]
    assert judged(run) == {"frozen_changed"}


def test_an_adapter_that_does_not_train_is_seen() -> None:
    trainer = make_trainer()
    name = "blocks.0.attention.qkv.lora_B"
    held = trainer.optimizer.param_groups[0]["params"]
    held[:] = [one for one in held if one is not trainer.model.get_parameter(name)]
    run = learn(trainer, make_batch(make_exercises()))
    assert name in run.adapters_unchanged
    assert "adapter_unchanged" in judged(run)


def test_labels_that_are_not_masked_are_seen() -> None:
    batch = make_batch(make_exercises())
    labels = torch.where(batch["attention_mask"].bool(), batch["input_ids"], IGNORE_INDEX)
    run = learn(make_trainer(), {**batch, "labels": labels})
    assert len(run.labels.outside_answer) == sum(len(one.prompt) for one in make_exercises())
    assert run.labels.outside_answer[0] == "sequence 0, token 0"
    assert "prompt_supervised" in judged(run)


def test_padding_that_is_supervised_is_seen() -> None:
    batch = make_batch(make_exercises())
    batch["labels"][2, -1] = PAD
    run = learn(make_trainer(), batch)
    assert run.labels.outside_answer == ["sequence 2, token 18"]
    assert judged(run) == {"prompt_supervised"}


def test_a_masked_stop_token_is_seen() -> None:
    batch = make_batch(make_exercises())
    labels = batch["labels"].masked_fill(batch["input_ids"] == STOP, IGNORE_INDEX)
    run = learn(make_trainer(), {**batch, "labels": labels})
    assert len(run.labels.masked_stops) == 8
    assert run.labels.masked_stops[2] == "sequence 2, token 10"
    assert judged(run) == {"stop_masked"}


def test_one_masked_answer_token_is_seen() -> None:
    batch = make_batch(make_exercises())
    batch["labels"][2, 6] = IGNORE_INDEX
    run = learn(make_trainer(), batch)
    assert run.labels.masked == ["sequence 2, token 6"]
    assert judged(run) == {"answer_masked"}


def test_a_loss_of_another_scale_is_seen() -> None:
    def halved(logits: torch.Tensor, labels: torch.Tensor, num_items: int) -> torch.Tensor:
        return causal_lm_loss(logits, labels, num_items) / 2

    run = learn(replace(make_trainer(), loss_fn=halved), make_batch(make_exercises()))
    assert "loss_error" in judged(run)


def test_a_hot_head_is_seen() -> None:
    trainer = make_trainer()
    trainer.model.get_parameter("lm_head.weight").data.mul_(5)
    assert "initial_loss_error" in judged(learn(trainer, make_batch(make_exercises())))


@pytest.mark.parametrize("rate", [1e-4, 10.0, float("inf")])
def test_a_rate_that_does_not_learn_is_seen(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "LEARNING_RATE", rate)
    assert judged(learn(make_trainer(), make_batch(make_exercises()))) == {"overfit_loss"}


def test_runs_that_should_be_equal_or_should_not_are_compared_to_the_bit() -> None:
    run = lab.run_once(GATES.overfit, 42)
    again = replace(run.trace, weights="c" * 64)
    assert judged(run, again=again) == {"rerun_differs"}
    assert judged(run, other=run.trace) == {"other_seed_same"}


def test_the_sequences_do_not_follow_the_seed() -> None:
    one, other = (lab.run_once(GATES.overfit, seed) for seed in (42, 43))
    assert one.initial.tokens == other.initial.tokens
    assert one.trace.losses[0] != other.trace.losses[0]


def test_the_command_prints_the_steps_and_writes_the_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab, "in_fresh_processes", in_this_process)
    with pytest.raises(SystemExit) as caught:
        cli.main(["lab"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    numbers = [line.strip("│").split("│") for line in printed.splitlines() if "│" in line]
    steps = [int(row[0]) for row in numbers if row[0].strip().isdigit()]
    assert steps == [0, 10, 20, 30, 35]
    assert "lab: PASS" in printed
    record = read_record()
    assert [one["step"] for one in record["steps"]] == list(range(36))
    assert {check["status"] for check in record["verdict"]["checks"]} == {"pass"}
    assert record["verdict"]["params"]["seed"] == 42
    assert str(Path.cwd()) not in lab.RECORD.read_text(encoding="utf-8")


def learn_unmasked(limits: Any, seed: int) -> LabRun:
    batch = make_batch(make_exercises())
    return learn(make_trainer(), {**batch, "labels": batch["input_ids"]})


def test_the_command_fails_with_the_causes_and_still_writes_the_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab, "in_fresh_processes", in_this_process)
    monkeypatch.setattr(lab, "run_once", learn_unmasked)
    monkeypatch.setattr(lab, "LEARNING_RATE", 1e30)
    with pytest.raises(SystemExit) as caught:
        cli.main(["lab"])
    assert caught.value.code == 1
    printed = capsys.readouterr().out
    assert "lab: FAIL" in printed
    assert "cause 1: the labels are not masked: the prompt or the padding is supervised" in printed
    record = read_record()
    assert record["verdict"]["passed"] is False
    assert record["steps"][35]["loss"] == "nan"


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(UserError) as caught:
        lab.run(seed)
    assert str(caught.value) == f"--seed is {seed}: use a whole number from 0 to 4294967295"


def test_the_last_seed_is_followed_by_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def remember(work: partial[LabRun], asked: Sequence[int], *, at_once: int) -> list[LabRun]:
        seeds.extend(asked)
        return in_this_process(work, asked, at_once=at_once)

    monkeypatch.setattr(lab, "in_fresh_processes", remember)
    lab.run(2**32 - 1)
    assert seeds == [2**32 - 1, 2**32 - 1, 0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_that_fails_alone_has_a_cause(rule: Any) -> None:
    check = judge(rule, Measured(float("nan")), LIMITS, None)
    assert check.status == "fail"
    assert len(rank_causes([check], CAUSES)) == 1


@pytest.mark.parametrize(("ids", "cause"), CAUSES, ids=[cause[:40] for _, cause in CAUSES])
def test_no_cause_is_hidden_by_an_earlier_one(ids: set[str], cause: str) -> None:
    checks = [judge(rule, Measured(1e9), LIMITS, None) for rule in RULES if rule.id in ids]
    assert len(checks) == len(ids)
    assert rank_causes(checks, CAUSES) == [cause]
