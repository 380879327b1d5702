"""What does the next step of a training depend on? All of it goes into a checkpoint and comes back.

Full training saves and resumes with these functions; the gradient probe tries them before it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .checkpoint import State
from .determinism import restore_rng_state, rng_state
from .parallel import load_model_state, load_optimizer_state, model_state, optimizer_state
from .ranks import gather, rank
from .setup import Trainer, TrainingBatches
from .step import StepResult


@dataclass
class Training:
    """A training under way: what takes its steps, where its rows come from, what it has done.

    telemetry: a line for each step taken. Its length is the data position.
    """

    trainer: Trainer
    batches: TrainingBatches
    telemetry: list[dict[str, Any]]

    @property
    def done(self) -> int:
        return len(self.telemetry)

    def next_step(self) -> StepResult:
        """Take the step that comes next; the caller adds its line to the telemetry."""
        return self.trainer.step(self.batches.of_step(self.done))


def _frozen(model: nn.Module) -> set[str]:
    parameters = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in parameters if not parameter.requires_grad}


def changing_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's state without frozen parameters, which its own files or the seed give again."""
    frozen = _frozen(model)
    return {name: tensor for name, tensor in model_state(model).items() if name not in frozen}


def load_changing_state(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Load what `changing_state` gave; as strict as load_state_dict, but for what is frozen."""
    strangers = sorted(load_model_state(model, state) - _frozen(model))
    if strangers:
        raise RuntimeError(f"the checkpoint and the model do not share {', '.join(strangers)}")


def capture(training: Training) -> State:
    """All that the next step depends on, of every rank; whole on rank 0. Every rank has to ask."""
    return {
        "model": changing_state(training.trainer.model),
        "optimizer": optimizer_state(training.trainer.model, training.trainer.optimizer),
        "scheduler": training.trainer.scheduler.state_dict(),
        "scaler": training.trainer.scaler.state_dict(),
        "rng": gather(rng_state()),
        "telemetry": training.telemetry,
    }


def restore(training: Training, state: State) -> None:
    """Bring a training that was just built to where `capture` saw it."""
    load_changing_state(training.trainer.model, state["model"])
    load_optimizer_state(training.trainer.model, training.trainer.optimizer, state["optimizer"])
    training.trainer.scheduler.load_state_dict(state["scheduler"])
    training.trainer.scaler.load_state_dict(state["scaler"])
    training.telemetry = state["telemetry"]
    restore_rng_state(state["rng"][rank()])
