"""Does a training that was stopped and goes on from its checkpoint end with the same bits?

The first steps of the real training are taken without a break; then half of them, up to a
checkpoint that is saved as full training saves it, and from which a fresh process goes on. What is
there after loading, and what the steps see and compute, must be the same as without a break.
"""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ..chat.collator import Batch, Collator
from ..chat.token_store import TokenRow, TokenStore, read_meta
from ..config import Params, Refusal, UserError, load_params
from ..config.fresh_process import in_fresh_processes
from ..models.build import build_model
from ..training.checkpoint import CheckpointDirectory
from ..training.determinism import make_deterministic, rng_state
from ..training.schedule import count_steps
from ..training.setup import TrainingBatches, build_trainer, hooked_collator
from ..training.state import Training, capture, restore
from .fingerprint import state_sha256
from .observe import StepObserver

RESUME_STEPS = 3
"""Steps before the checkpoint, and as many after it."""
NAME = "self-check"
PARTS = {
    "model": "weights",
    "optimizer": "optimizer state",
    "scheduler": "state of the scheduler",
    "scaler": "state of the loss scaler",
    "rng": "random state",
    "telemetry": "telemetry",
}


class CannotResume(Exception):
    """The state cannot be saved, read back, loaded or trained on."""


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Whatever the model's own code raises means that the training cannot be resumed."""
    try:
        yield
    except (UserError, Refusal, OSError):
        raise
    except Exception as error:
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        raise CannotResume(f"{what}: {reason}") from error


@dataclass(frozen=True)
class Step:
    """One step as it was seen.

    rows: their sources, in order; batch: digest of the collated tensors; learning_rate: as the
    optimizer was called; loss: nats per token, as reported; grad_norm: global L2 before clipping.
    """

    rows: tuple[str, ...]
    batch: str
    learning_rate: float
    loss: float
    grad_norm: float


@dataclass(frozen=True)
class Stretch:
    """Some steps in a row, from step `first`; before, after: digests of all state, by its part."""

    first: int
    before: dict[str, str]
    steps: Sequence[Step]
    after: dict[str, str]


@dataclass(frozen=True)
class Difference:
    """what: a part of the state or of a step, for the cause; text: where, and both values."""

    what: str
    text: str


@dataclass(frozen=True)
class ResumeCheck:
    """The steps after the break, without one and resumed, and all that differs, first things first.

    resumed: None when the training could not be resumed.
    """

    uninterrupted: Stretch
    resumed: Stretch | None
    differences: Sequence[Difference]

    @property
    def first_part(self) -> str | None:
        """What differs first, for the cause; None when nothing does."""
        return self.differences[0].what if self.differences else None


class WatchedCollator:
    """A collator that remembers which rows it was given and what it made of them."""

    def __init__(self, collator: Collator) -> None:
        self._collator = collator
        self._rows: list[str] = []
        self._batches: list[str] = []

    def __call__(self, rows: Sequence[TokenRow], pad_token_id: int) -> Batch:
        batch = self._collator(rows, pad_token_id)
        self._rows += [row.source for row in rows]
        self._batches.append(state_sha256(batch))
        return batch

    def take(self) -> tuple[tuple[str, ...], str]:
        """(sources of the rows, digest of the batches) since the last call."""
        seen = tuple(self._rows), state_sha256(self._batches)
        self._rows, self._batches = [], []
        return seen


class WatchedTraining:
    """The real training at step 0, built as full training builds it, and watched."""

    def __init__(self, params: Params) -> None:
        device = make_deterministic(params.run)
        store, meta = TokenStore("train"), read_meta()
        self._collator = WatchedCollator(hooked_collator(params.data))
        batches = TrainingBatches(
            store, meta, self._collator, params.train, params.run.seed, device
        )
        model = build_model(params.model, meta.vocab_size, device)
        trainer = build_trainer(params, model, count_steps(params.train, batches.plan))
        self.training = Training(trainer, batches, telemetry=[])
        self._observer = StepObserver(model, trainer.optimizer, trainer.scaler)

    def take_steps(self) -> Stretch:
        """The next RESUME_STEPS steps."""
        first, before = self.training.done, self._parts()
        steps = [self._take_step() for _ in range(RESUME_STEPS)]
        return Stretch(first, before, steps, self._parts())

    def _take_step(self) -> Step:
        with self._observer.watching() as record:
            loss = float(self.training.next_step().loss)
        self.training.telemetry.append({"step": self.training.done, "loss": loss})
        rows, batch = self._collator.take()
        return Step(rows, batch, record.learning_rate, loss, record.grad_norm)

    def _parts(self) -> dict[str, str]:
        """Digests of what has a state, read apart from `capture`, which may forget some of it."""
        trainer = self.training.trainer
        stateful = {field.name: getattr(trainer, field.name) for field in fields(trainer)}
        parts = {
            name: state_sha256(value.state_dict())
            for name, value in stateful.items()
            if hasattr(value, "state_dict")
        }
        telemetry = state_sha256(self.training.telemetry)
        return {**parts, "rng": state_sha256(rng_state()), "telemetry": telemetry}


def run_uninterrupted(params: Params) -> tuple[Stretch, Stretch]:
    """The steps before and after the break, without a break."""
    watched = WatchedTraining(params)
    return watched.take_steps(), watched.take_steps()


def run_interrupted(params: Params, directory: Path) -> Stretch:
    """The steps before the break, with a checkpoint of them left below `directory`.

    Raises CannotResume when it cannot be saved, UserError when the disk refuses.
    """
    watched = WatchedTraining(params)
    stretch = watched.take_steps()
    checkpoints = CheckpointDirectory(NAME, 1, directory)
    with checkpoints.locked(), telling("the checkpoint cannot be saved"):
        checkpoints.save(watched.training.done, capture(watched.training))
    return stretch


def run_resumed(params: Params, directory: Path) -> Stretch:
    """The steps after the break, from the checkpoint below `directory`. Raises CannotResume."""
    watched = WatchedTraining(params)
    checkpoints = CheckpointDirectory(NAME, 1, directory)
    with checkpoints.locked():
        state = checkpoints.load_latest()
    if state is None:
        raise CannotResume("the checkpoint cannot be read back: it holds more than plain data")
    with telling("the checkpoint cannot be loaded"):
        restore(watched.training, state)
    with telling("no step can be taken after loading"):
        return watched.take_steps()


def resume_in_fresh_process(directory: Path) -> Stretch:
    """`run_resumed` in a new interpreter, which reads params.yaml itself."""
    [resumed] = in_fresh_processes(_resume_here, [directory])
    return resumed


def _resume_here(directory: Path) -> Stretch:
    return run_resumed(load_params("gradient_probe"), directory)


def check_resume(
    params: Params, resume: Callable[[Path], Stretch] = resume_in_fresh_process
) -> ResumeCheck:
    """Take the first steps without a break, and with one.

    The training that is stopped runs in this process too: if the first left anything behind for it,
    its steps differ, which is reported. Only what goes on may know nothing but the checkpoint.
    """
    before, after = run_uninterrupted(params)
    with TemporaryDirectory(prefix="holdshort-resume-") as name:
        try:
            again = run_interrupted(params, Path(name))
            if unlike := list(compare(before, again)):
                twice = [Difference("start", f"two runs from the start: {d.text}") for d in unlike]
                return ResumeCheck(after, None, twice)
            torch.cuda.empty_cache()  # the fresh process needs the memory
            resumed = resume(Path(name))
        except CannotResume as error:
            return ResumeCheck(after, None, [Difference("checkpoint", str(error))])
    return ResumeCheck(after, resumed, list(compare(after, resumed)))


def compare(expected: Stretch, found: Stretch) -> Iterator[Difference]:
    """All that differs in its bits, in the order in which it came about."""
    first, last = expected.first, expected.first + len(expected.steps) - 1
    if found.first != first:
        yield Difference("position", f"the training goes on at step {found.first}, not {first}")
    for part in _unlike(expected.before, found.before):
        yield Difference(part, f"{PARTS.get(part, part)} before step {first}")
    for number, (one, other) in enumerate(zip(expected.steps, found.steps, strict=True), first):
        yield from _compare_step(number, one, other)
    for part in _unlike(expected.after, found.after):
        yield Difference("step", f"{PARTS.get(part, part)} after step {last}")


def _unlike(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return [part for part in one if one[part] != other[part]]


def _compare_step(number: int, one: Step, other: Step) -> Iterator[Difference]:
    if one.rows != other.rows:
        pairs = zip_longest(one.rows, other.rows)
        row, other_row = next(pair for pair in pairs if pair[0] != pair[1])
        yield Difference("position", f"rows of step {number}: {row} and {other_row}")
    elif one.batch != other.batch:
        yield Difference("batch", f"tensors of step {number}, made of the same rows")
    for name, what in (("learning_rate", "learning_rate"), ("loss", "step"), ("grad_norm", "step")):
        value, other_value = getattr(one, name), getattr(other, name)
        if value.hex() != other_value.hex():
            text = f"{name.replace('_', ' ')} of step {number}: {value!r} and {other_value!r}"
            yield Difference(what, text)
