"""Can this model, with this loss, step, optimizer and data, learn at all? One call for any script.

    from holdshort.sanity import sanity_check
    report = sanity_check(model, loader, loss_fn, optimizer=optimizer, train_step=train_step)

Runs the user's own functions on the user's own objects and puts everything back.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..config.errors import UserError
from ..training.determinism import seed_everything
from ..verdict.judging import judge_all
from .examination.course import examine
from .examination.scene import Given, set_scene
from .limits import LIMITS
from .report import SanityReport
from .rules.book import RULES
from .state import World
from .subject import EvalFunction, LossFunction, Subject, TrainStep

NOT_APPLICABLE = "does not apply to this task, or what it needs was not given"


def sanity_check(
    model: nn.Module,
    loader: Iterable[Any],
    loss_fn: LossFunction | None = None,
    *,
    optimizer: Optimizer | None = None,
    train_step: TrainStep | None = None,
    eval_fn: EvalFunction | None = None,
    val_loader: Iterable[Any] | None = None,
    num_classes: int | None = None,
    task: str | None = None,
    intended_frozen: Iterable[Any] = (),
    label_smoothing: float = 0.0,
    pretrained: bool = False,
    steps: int = 200,
    seed: int = 0,
) -> SanityReport:
    """Examine a training script before it trains.

    loader: batches (x, ..., y), or dicts; iterated from its start. loss_fn(outputs, y), or None
    where the model returns its loss. train_step(model, batch, optimizer) -> loss is one whole step
    as the script does it; without it forward, backward and optimizer.step(). eval_fn(model,
    val_loader) -> float, higher is better. task: classification, regression, tagging, language
    modelling; found out where it is not said. intended_frozen: names, prefixes, patterns, modules
    or parameters. label_smoothing: as declared. pretrained: the weights were trained before.
    steps: at most so many on one batch.

    Everything is left as it was found: weights, gradients, buffers, modes, hooks, optimizer,
    schedulers and generators that the functions can reach; `state_before` equals `state_after`, and
    `report.restored` says so.
    Raises UserError where there is nothing to examine: no batch, no parameter, an iterator,
    a class in place of what is made of it.
    """
    for name, part in (("optimizer", optimizer), ("loss_fn", loss_fn)):
        if isinstance(part, type):
            raise UserError(f"{name} is the class {part.__name__}: give one that was made of it")
    if not isinstance(model, nn.Module):
        raise UserError(f"model is a {type(model).__name__}: give a torch.nn.Module")
    if hasattr(loader, "__next__"):
        raise UserError(
            "loader is an iterator, which can be read only once: give a DataLoader or a list"
        )
    if num_classes is not None and type(num_classes) is not int:
        raise UserError(f"num_classes is {num_classes!r}: give a whole number")
    if steps < 1:
        raise UserError(f"steps is {steps}: at least 1 is needed")
    roots = [one for one in (train_step, eval_fn, loss_fn, loader, val_loader) if one is not None]
    world = World(model, optimizer, roots)
    before = world.digest()
    restore = world.keep()
    try:
        seed_everything(seed)
        given = Given(
            subject=Subject(model, loss_fn, optimizer, train_step),
            loader=loader,
            val_loader=val_loader,
            eval_fn=eval_fn,
            num_classes=num_classes,
            task=task,
            intended_frozen=tuple(
                [intended_frozen] if isinstance(intended_frozen, str) else intended_frozen
            ),
            label_smoothing=label_smoothing,
            pretrained=pretrained,
            steps=steps,
        )
        scene = set_scene(given, world)
        measured = examine(scene)
    finally:
        restore()
    after = world.digest()
    return SanityReport(
        checks=judge_all(RULES, measured, LIMITS, seed, unmeasured=NOT_APPLICABLE),
        figures=scene.figures,
        state_before=before,
        state_after=after,
    )
