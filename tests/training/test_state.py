"""What a checkpoint holds brings a training back to the bit: the same steps on the same rows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.chat.collator import collate
from stages.chat.token_store import TOKENS, TokenStore
from stages.training.checkpoint import CheckpointDirectory, State
from stages.training.determinism import seed_everything
from stages.training.setup import TrainingBatches, build_trainer
from stages.training.state import (
    Training,
    capture,
    changing_state,
    load_changing_state,
    restore,
)
from stages.training.step import StepResult

from ..parts import Bigram, make_rows, write_store
from ..settings import make_params

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_training(precision: str = "fp32", **values: Any) -> Training:
    """A training at step 0 whose steps draw random numbers."""
    params = make_params(train__warmup_steps=2, run__precision=precision, **values)
    meta = write_store(TOKENS, "train", make_rows(10))
    seed_everything(5)
    trainer = build_trainer(params, Bigram(dropout=0.5), 12)
    batches = TrainingBatches(TokenStore("train"), meta, collate, params.train, 3, CPU)
    return Training(trainer, batches, [])


def take_steps(training: Training, count: int) -> list[StepResult]:
    results = []
    for _ in range(count):
        results.append(training.next_step())
        training.telemetry.append({"step": training.done, "loss": results[-1].loss})
    return results


def saved_and_loaded(training: Training) -> State:
    checkpoints = CheckpointDirectory("0" * 64, 1)
    with checkpoints.locked():
        checkpoints.save(training.done, capture(training))
        state = checkpoints.load_latest()
    assert state is not None
    return state


def test_the_next_step_takes_the_batches_behind_those_that_were_seen() -> None:
    training = make_training()
    asked = []

    class Asked:
        def of_step(self, step: int) -> object:
            asked.append(step)
            return original.of_step(step)

    original, training.batches = training.batches, Asked()  # type: ignore[assignment]
    take_steps(training, 3)
    assert (asked, training.done) == ([0, 1, 2], 3)


@pytest.mark.parametrize(
    ("precision", "values"),
    [
        ("fp32", {}),
        ("fp16", {}),
        ("fp32", {"train__group_by_length": True}),
        ("fp32", {"train__packing": True}),
        ("fp32", {"train__max_tokens_per_batch": 64}),
    ],
    ids=["fp32", "fp16", "grouped", "packed", "by tokens"],
)
def test_a_resumed_training_ends_with_the_bits_of_one_that_was_not_broken_off(
    precision: str, values: dict[str, Any]
) -> None:
    whole = make_training(precision, **values)
    expected = take_steps(whole, 6)
    drawn_next = torch.rand(1)

    first = make_training(precision, **values)
    results = take_steps(first, 3)
    state = saved_and_loaded(first)
    second = make_training(precision, **values)
    seed_everything(999)
    restore(second, state)
    results += take_steps(second, 3)

    assert results == expected
    assert second.telemetry == whole.telemetry
    assert torch.rand(1).equal(drawn_next)
    for name, weight in whole.trainer.model.state_dict().items():
        assert second.trainer.model.state_dict()[name].equal(weight)
    assert str(second.trainer.optimizer.state_dict()) == str(whole.trainer.optimizer.state_dict())
    assert second.trainer.scheduler.state_dict() == whole.trainer.scheduler.state_dict()
    assert second.trainer.scaler.state_dict() == whole.trainer.scaler.state_dict()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_training_on_a_gpu_is_brought_back() -> None:
    training = make_training()
    training.trainer.model.cuda()
    state = saved_and_loaded(training)
    assert {tensor.device for tensor in state["model"].values()} == {CPU}
    expected = torch.rand(1)
    restore(training, state)
    assert torch.rand(1).equal(expected)


def test_frozen_weights_are_left_out_of_a_checkpoint_and_stay_what_they_are() -> None:
    model = Bigram()
    model.embedding.weight.requires_grad_(False)
    state = {name: tensor.clone() for name, tensor in changing_state(model).items()}
    assert "embedding.weight" not in state
    assert set(state) == set(model.state_dict()) - {"embedding.weight"}
    frozen = model.embedding.weight.clone()
    model.head.bias.data += 1
    load_changing_state(model, state)
    assert model.head.bias.equal(state["head.bias"])
    assert model.embedding.weight.equal(frozen)


def test_a_checkpoint_of_another_model_is_not_loaded() -> None:
    model = Bigram()
    state = changing_state(model)
    del state["head.bias"]
    with pytest.raises(RuntimeError, match=r"do not share head\.bias"):
        load_changing_state(model, state)
    with pytest.raises(RuntimeError, match="do not share extra"):
        load_changing_state(model, {**changing_state(model), "extra": torch.ones(1)})
