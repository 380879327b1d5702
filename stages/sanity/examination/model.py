"""The model before it trains: its settings and the optimizer's, its outputs, its first loss."""

import math

import torch

from ...verdict.judging import Measured
from ..batches import labels_of, size_of
from ..coverage import Coverage, find_coverage
from ..initial import Initial, inspect_initial
from ..limits import LIMITS
from ..lint import Lint, lint
from ..memorising import reference_loss
from ..tasks import find_task, side_by_side
from .scene import Scene
from .values import Values, flag, named, sentence

KNOWS = 0.9
"""Share of ln K below which a model's loss shows that it has learned before."""


def examine_settings(scene: Scene) -> Values:
    """What can be read off model and optimizer without running them."""
    given, optimizer = scene.given, None if scene.own_optimizer else scene.optimizer
    scene.coverage = find_coverage(scene.model, optimizer, given.intended_frozen, given.pretrained)
    scene.lint = lint(scene.model, optimizer, LIMITS)
    scene.initial = inspect_initial(scene.model, LIMITS, given.pretrained)
    found = judge_model(scene.coverage, scene.lint, scene.initial)
    return found if optimizer is None else found | judge_optimizer(scene.coverage, scene.lint)


def judge_model(coverage: Coverage, lint: Lint, initial: Initial) -> Values:
    found: Values = {
        "frozen_undeclared": named(coverage.frozen_undeclared),
        "frozen_trains": named(coverage.trained_though_declared),
        "base_trains": flag(coverage.base_trains),
        "weights_tied": named(coverage.untied),
        "registered": named(coverage.unregistered),
        "dropout": named(lint.dropout),
        "batch_norm_momentum": named(lint.batch_norm),
        "norm_eps": named(lint.norm_eps),
        "half_weights": Measured(lint.half_parameters),
        "constant_weights": named(initial.constant),
        "zero_gains": named(initial.zero_gains),
        "adapters_dead": named(initial.adapters_dead),
        "small_init": named(initial.small),
        "large_init": named(initial.large),
    }
    if initial.untouched_share is not None:
        untouched = tuple(initial.untouched)
        found["weights_loaded"] = Measured(initial.untouched_share, evidence=untouched)
    return found


def judge_optimizer(coverage: Coverage, lint: Lint) -> Values:
    return {
        "not_in_optimizer": named(coverage.not_in_optimizer, coverage.trainable),
        "foreign_parameters": Measured(coverage.foreign),
        "twice_in_optimizer": named(coverage.twice),
        "maximize": flag(lint.maximize),
        "betas": named(lint.betas),
        "optimizer_eps": named(lint.eps),
        "weight_decay": named(lint.weight_decay),
        "momentum": named(lint.momentum),
    }


def examine_outputs(scene: Scene) -> Values:
    """Find the task from what the model makes of its first batch."""
    given = scene.given
    scene.kind = find_task(given.task, scene.model, scene.batch, torch.zeros(1, 2))
    scene.classes = given.num_classes
    try:
        with scene.world.undone():
            scene.model.eval()
            logits = scene.subject.logits(scene.batch)
    except Exception as error:
        scene.runs = False
        return {"step_runs": flag(True, sentence(error))}
    scene.kind = find_task(given.task, scene.model, scene.batch, logits)
    scene.figures.task = scene.kind or "unknown"
    scene.mode_matters = _mode_matters(scene)
    labels = labels_of(scene.batch)
    if scene.kind not in ("classification", "tagging", "lm") or labels is None:
        return {}
    side = side_by_side(logits, labels, scene.kind, given.num_classes)
    if side is None:
        return {}
    outputs = scene.classes = side.logits.shape[1]
    if given.num_classes is None or scene.kind == "lm":
        return {}
    off = outputs - given.num_classes
    note = f"{outputs} outputs, {given.num_classes} classes" if off else ""
    return {"classes_match": Measured(off, note=note)}


def _mode_matters(scene: Scene) -> bool:
    """Does the model compute otherwise in training mode than in evaluation mode?"""
    outputs = []
    for training in (True, False):
        with scene.world.undone():
            scene.model.train(training)
            torch.manual_seed(0)
            try:
                outputs.append(scene.subject.logits(scene.batch).double())
            except Exception:
                return False
    return not torch.allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-6, equal_nan=True)


def examine_initial_loss(scene: Scene) -> Values:
    """The loss of the first batch before any step, against that of guessing evenly."""
    given, figures = scene.given, scene.figures
    with scene.world.undone(), torch.no_grad():
        scene.model.eval()
        try:
            outputs = scene.subject.forward(scene.batch)
            loss = reference_loss(
                scene.subject,
                outputs,
                scene.batch,
                scene.kind,
                given.num_classes,
                scene.assumed_shift,
            )
            own = float(scene.subject.loss(outputs, scene.batch).detach().float().mean())
        except Exception:
            return {}
    figures.initial_loss = own if loss is None else loss
    if scene.kind == "binary":
        figures.uniform_loss = math.log(2)
    elif loss is not None and scene.classes is not None:
        figures.uniform_loss = math.log(scene.classes)
    if figures.uniform_loss is None or not math.isfinite(figures.initial_loss):
        return {}
    share = scene.loss_share = figures.initial_loss / figures.uniform_loss
    found: Values = {}
    if scene.initial.untouched_share is not None and (share < KNOWS or scene.adapted):
        note = "it knows more than a random one, or its body is frozen"
        found["weights_loaded"] = Measured(0.0, note=note)
    note = f"initial loss {figures.initial_loss:.4g}, ln K {figures.uniform_loss:.4g}"
    if not given.pretrained:
        found["initial_loss"] = Measured(share, size_of(scene.batch), note)
    elif scene.kind == "lm":
        found["pretrained_loss"] = Measured(share, size_of(scene.batch), note)
    return found
