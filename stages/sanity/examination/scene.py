"""What is examined, and what is known of it so far: later probes ask what earlier ones found."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from ...config.errors import UserError
from ..batches import Batch, read_batches
from ..coverage import Coverage
from ..data import DataAudit
from ..dependency import Dependency
from ..initial import Initial
from ..lint import Lint
from ..report import Figures
from ..running import Run
from ..state import World
from ..subject import EvalFunction, Subject
from ..targets.probe import TargetProbe
from ..tasks import Task

MOST_BATCHES, MOST_ROWS = 128, 4096
OWN_RATE = 1e-3
MOSTLY = 0.3
"""Share of frozen weights from which on a batch need not be learned by heart."""


@dataclass(frozen=True)
class Given:
    """What sanity_check was given; see there."""

    subject: Subject
    loader: Iterable[Batch]
    val_loader: Iterable[Batch] | None
    eval_fn: EvalFunction | None
    num_classes: int | None
    task: str | None
    intended_frozen: tuple[Any, ...]
    label_smoothing: float
    pretrained: bool
    steps: int


@dataclass
class Scene:
    """own_optimizer: it is the harness's; runs: the model and its training step do not raise;
    classes: how many the model tells apart; mode_matters: it computes otherwise in evaluation mode;
    loss_share: the initial loss over ln K. None where it is not known.
    """

    given: Given
    world: World
    batches: list[Batch]
    optimizer: Optimizer
    own_optimizer: bool
    figures: Figures = field(default_factory=Figures)
    coverage: Coverage = field(default_factory=Coverage)
    lint: Lint = field(default_factory=Lint)
    initial: Initial = field(default_factory=Initial)
    audit: DataAudit = field(default_factory=DataAudit)
    val_batches: list[Batch] = field(default_factory=list)
    runs: bool = True
    kind: Task | None = None
    classes: int | None = None
    mode_matters: bool = False
    loss_share: float | None = None
    run: Run | None = None
    probe: TargetProbe | None = None
    dependency: Dependency | None = None

    @property
    def subject(self) -> Subject:
        return self.given.subject

    @property
    def model(self) -> nn.Module:
        return self.given.subject.model

    @property
    def batch(self) -> Batch:
        return self.batches[0]

    @property
    def own_step(self) -> bool:
        """Is the training step the harness's?"""
        return self.given.subject.train_step is None

    @property
    def adapted(self) -> bool:
        """Are most weights frozen?"""
        return self.coverage.frozen_share > MOSTLY

    @property
    def assumed_shift(self) -> int:
        """Where a model computes its own loss of language modelling, it shifts labels itself."""
        return int(self.kind == "lm" and self.given.subject.loss_fn is None)


def set_scene(given: Given, world: World) -> Scene:
    """Read the batches, find the optimizer. Raises UserError where there is nothing to examine."""
    batches = read_batches(given.loader, MOST_BATCHES, MOST_ROWS)
    if not batches:
        raise UserError("the loader gives no batch")
    return Scene(given, world, batches, *_find_optimizer(given.subject, world))


def _find_optimizer(subject: Subject, world: World) -> tuple[Optimizer, bool]:
    """(the user's, or one of the harness's own, is it that?)."""
    if subject.optimizer is not None:
        return subject.optimizer, False
    found = world.found.optimizers
    if subject.train_step is not None and len(found) == 1:
        return found[0], False
    trainable = [p for p in subject.model.parameters() if p.requires_grad]
    if not trainable:
        raise UserError("the model has no parameter that requires a gradient")
    return AdamW(trainable, lr=OWN_RATE, weight_decay=0.0), True
