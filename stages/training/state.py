"""What does the next step of a training depend on? All of it goes into a checkpoint and comes back.

Full training saves and resumes with these functions; the gradient probe tries them before it.
"""

from dataclasses import dataclass
from typing import Any

from .checkpoint import State
from .determinism import restore_rng_state, rng_state
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


def capture(training: Training) -> State:
    """All that the next step depends on."""
    return {
        "model": training.trainer.model.state_dict(),
        "optimizer": training.trainer.optimizer.state_dict(),
        "scheduler": training.trainer.scheduler.state_dict(),
        "scaler": training.trainer.scaler.state_dict(),
        "rng": rng_state(),
        "telemetry": training.telemetry,
    }


def restore(training: Training, state: State) -> None:
    """Bring a training that was just built to where `capture` saw it."""
    training.trainer.model.load_state_dict(state["model"])
    training.trainer.optimizer.load_state_dict(state["optimizer"])
    training.trainer.scheduler.load_state_dict(state["scheduler"])
    training.trainer.scaler.load_state_dict(state["scaler"])
    training.telemetry = state["telemetry"]
    restore_rng_state(state["rng"])
