"""One arm of a comparison, trained as full_train would train it, and what it showed."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import isfinite
from statistics import fmean, median
from typing import Any

from ..config import Params, UserError
from ..config.load import nearest
from ..curves.columns import Rows, to_run_log
from ..curves.diagnosis import Diagnosis, diagnose
from ..curves.run_log import RunLog
from ..curves.signature import Known
from ..faults.catalogue import FAULTS
from ..faults.running import Found, judge_seen, observe_gradients
from ..probes.lost_updates import UpdateCount, counting_updates
from ..training.run import start_run, validation_loss
from ..training.setup import Parts, hooked_loss
from .declared import Arm

AT_THE_END = 10
"""Steps over which the last loss is averaged: single batches differ."""
AROUND = 8
"""Losses before a step whose median it is held against."""


@dataclass(frozen=True)
class Setup:
    """What an arm trains: params and the parts it is put together from."""

    params: Params
    parts: Parts

    def under(self, seed: int) -> "Setup":
        """The same under another seed."""
        return replace(self, params=replace(self.params, run=replace(self.params.run, seed=seed)))


@dataclass(frozen=True)
class TrainedArm:
    """What one arm showed under one seed.

    lines: of each step its loss, gradient norm (before clipping), rate, and whether it was skipped;
    updates: what got lost of them; validation_loss: nats per token behind the last step.
    """

    seed: int
    lines: list[dict[str, Any]]
    updates: UpdateCount
    validation_loss: float
    log: RunLog
    diagnosis: Diagnosis
    probe: Found

    @property
    def losses(self) -> list[float]:
        return [line["loss"] for line in self.lines]

    @property
    def not_finite(self) -> int:
        """Steps whose loss or gradient is NaN or infinite."""
        return sum(
            not isfinite(line["loss"]) or not isfinite(line["grad_norm"]) for line in self.lines
        )

    @property
    def skipped(self) -> int:
        """Steps whose update was not applied."""
        return sum(line["skipped"] for line in self.lines)

    @property
    def last_loss(self) -> float:
        return fmean(self.losses[-AT_THE_END:])

    @property
    def signatures(self) -> list[str]:
        return [one.id for one in self.diagnosis.faults]

    @property
    def numbers(self) -> dict[str, float | None]:
        """What arms are compared by."""
        return {
            "last_loss": self.last_loss,
            "validation_loss": self.validation_loss,
            "highest_rise": highest_rise(self.losses),
            "not_finite": self.not_finite,
            "skipped": self.skipped,
            "zero_gradient": self.updates.zero_share,
            "unmoved": self.updates.unmoved_share,
        }


def highest_rise(losses: list[float]) -> float:
    """The largest loss over the median of the up to AROUND before it; 1 where none is above."""
    rises = [1.0]
    for step in range(1, len(losses)):
        before = [loss for loss in losses[max(step - AROUND, 0) : step] if isfinite(loss)]
        if before and isfinite(losses[step]) and median(before) > 0:
            rises.append(losses[step] / median(before))
    return max(rises)


def set_up(arm: Arm, params: Params) -> Setup:
    """Params and parts of an arm, with its faults planted.

    Raises UserError for a fault that nobody knows, or that cannot be planted in such a run.
    """
    setup = Setup(params, Parts.of(params))
    if arm.plant and params.train.on_anomaly == "skip":
        raise UserError(
            f"arm '{arm.name}' plants a fault under train.on_anomaly=skip, which brings a step of "
            "its own; use warn"
        )
    faults = {fault.name: fault for fault in FAULTS}
    for name in arm.plant:
        if name not in faults:
            raise UserError(
                f"arm '{arm.name}' plants '{name}', and stages/faults/ has no such fault"
                f"{nearest(name, faults)}"
            )
        if reason := faults[name].applies(setup.params):
            raise UserError(f"arm '{arm.name}': '{name}' cannot be planted: {reason}")
        parts, changed = faults[name].plant(setup.parts, setup.params)
        setup = Setup(changed, parts)
    return setup


def train_arm(setup: Setup, after_step: Callable[[], object]) -> TrainedArm:
    """All steps of the arm, without checkpoints and generations.

    Raises DoesNotApply where the model has nothing to plant its fault in.
    """
    params = setup.params
    run = start_run(params, parts=setup.parts)
    with counting_updates(run.trainer.optimizer) as updates:
        while run.done < run.steps:
            result = run.next_step()
            line = {"step": run.done, **asdict(result)}
            run.telemetry.append(line)
            after_step()
    lines = run.telemetry
    sound = hooked_loss(params.train)  # a fault of the loss must not hide in the evaluation
    run.trainer = replace(run.trainer, loss_fn=sound)
    rows = [(f"step {line['step']}", line) for line in lines]
    log = to_run_log(Rows("telemetry", rows, max_steps=run.steps), {})
    return TrainedArm(
        seed=params.run.seed,
        lines=lines,
        updates=updates,
        validation_loss=validation_loss(run, params),
        log=log,
        diagnosis=diagnose(log, Known(max_grad_norm=params.train.max_grad_norm)),
        probe=judge_seen(observe_gradients(params, setup.parts), params),
    )
