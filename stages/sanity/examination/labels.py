"""Do labels follow from inputs, in training and in validation alike?"""

import math

import torch

from ...verdict.judging import Measured
from ..label_information import (
    Information,
    Table,
    disagreeing_share,
    information,
    make_table,
    transfer,
)
from ..learning import learned_information
from ..limits import LIMITS
from .scene import Scene
from .values import Values

FEW_LABELS = 200
"""Labels below this number may be random without anybody being wrong: too few to tell."""
SURELY = 8.0
"""Standard errors by which validation labels should follow before it is held against them."""
MOSTLY_AMONG_LIKE, OFTEN_AMONG_LIKE = 0.8, 0.3
"""Shares of rows among like-labelled neighbours from which on a disagreement is wrong: by itself,
and in so far as there is less of it among validation rows."""


def examine_labels(scene: Scene) -> Values:
    if scene.audit.non_finite or scene.audit.constant or scene.audit.out_of_range:
        return {}
    train = make_table(scene.batches, scene.kind)
    if train is None:
        return {}
    n = len(train.features)
    if n < FEW_LABELS or len(torch.unique(train.labels)) < 2:
        few = Measured(None, note=f"{n} labels are too few to tell")
        return {"labels_informative": few}
    told = information(train)
    if told.sigmas < LIMITS["sanity.min_label_sigmas"]:
        told = max(told, _told_by_model(scene), key=lambda one: one.sigmas)
    note = f"score {told.score:.3g}, by guessing {told.chance:.3g}"
    found: Values = {"labels_informative": Measured(told.sigmas, n, note)}
    if not train.classes:
        return found
    held_out = make_table(scene.val_batches, scene.kind) if scene.val_batches else None
    if held_out is None or held_out.features.shape[1:] != train.features.shape[1:]:
        return found | _judge_noise(train)
    return found | _compare_labels(train, held_out, told)


def _told_by_model(scene: Scene) -> Information:
    with scene.world.undone():
        try:
            return learned_information(scene.subject, scene.batches, scene.kind, scene.given.steps)
        except Exception:
            return Information(0.0, 0.0, -math.inf, 0)


def _judge_noise(train: Table) -> Values:
    among_like, noise = disagreeing_share(train)
    if among_like < MOSTLY_AMONG_LIKE:
        return {}
    return {"label_noise": Measured(noise, len(train.labels))}


def _compare_labels(train: Table, held_out: Table, told: Information) -> Values:
    found: Values = {}
    n, m = len(train.features), len(held_out.features)
    if told.sigmas * (m / n) ** 0.5 >= SURELY:
        found["val_labels_consistent"] = Measured(transfer(train, held_out).sigmas, m)
    among_like, noise = disagreeing_share(train)
    if min(n, m) >= FEW_LABELS / 2 and among_like >= OFTEN_AMONG_LIKE:
        _, in_val = disagreeing_share(held_out)
        found["label_noise"] = Measured(max(noise - in_val, 0.0), n)
    return found
