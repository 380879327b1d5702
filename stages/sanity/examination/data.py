"""Are the batches fit to be learned from, and are the validation rows others?"""

from ...verdict.judging import Measured
from ..batches import input_of, read_batches
from ..data import LONG_ENOUGH, DataAudit, audit_data, workers_repeat
from ..rows import collect_rows, overlap
from ..tasks import Task
from .scene import MOST_BATCHES, MOST_ROWS, Scene
from .values import Values, flag, named

HANDLED = 0.75
"""Share of ln K below which an untrained model must know how frequent each class is."""


def examine_data(scene: Scene) -> Values:
    config = getattr(scene.model, "config", None)
    declared = None if scene.kind == "lm" else scene.given.num_classes
    classes = min((k for k in (scene.classes, declared) if k is not None), default=None)
    probabilities = scene.probe is not None and scene.probe.kind == "binary cross-entropy"
    scene.audit = audit_data(scene.batches, scene.kind, classes, config, probabilities)
    weighs = scene.probe is not None and scene.probe.weights_vary
    handled = scene.loss_share is not None and scene.loss_share < HANDLED
    found = judge_data(scene.audit, scene.kind, weighs, handled)
    loader, val_loader = scene.given.loader, scene.given.val_loader
    with scene.world.undone():
        repeat = workers_repeat(loader)
    if repeat is not None:
        found["worker_seeds"] = flag(repeat)
    if val_loader is not None:
        scene.val_batches = read_batches(val_loader, MOST_BATCHES, MOST_ROWS)
        found |= _compare_rows(scene)
    return found


def _compare_rows(scene: Scene) -> Values:
    given = input_of(scene.batch)
    if not scene.val_batches or given is None or given[0].numel() < LONG_ENOUGH:
        return {}
    if scene.audit.constant:
        return {}
    shared, within = overlap(collect_rows(scene.batches), collect_rows(scene.val_batches))
    more = max(shared - 3 * within, 0.0)
    return {"train_val_overlap": Measured(more, len(scene.val_batches))}


def judge_data(audit: DataAudit, task: Task | None, loss_weighs: bool, handled: bool) -> Values:
    """loss_weighs, handled: the loss weighs classes, or the last bias starts at their shares."""
    rows = audit.rows
    found: Values = {
        "inputs_finite": Measured(audit.non_finite, rows),
        "labels_finite": Measured(audit.labels_non_finite, rows),
        "inputs_vary": flag(audit.constant),
        "duplicates": Measured(audit.duplicates, rows),
        "conflicts": Measured(audit.conflicts, rows),
        "labels_in_range": named([str(c) for c in audit.out_of_range]),
        "attention_mask": flag(audit.mask_inverted),
        "padding_masked": Measured(audit.supervised_padding, rows),
        "stop_supervised": flag(audit.masked_stops),
        "target_leak": flag(audit.leaking_feature is not None, audit.leaking_feature or ""),
    }
    if audit.mean_abs is not None and not audit.constant and not audit.non_finite:
        found["input_scale"] = Measured(audit.mean_abs, rows, f"largest {audit.largest:.4g}")
        found["input_size"] = Measured(audit.largest, rows)
    if audit.target_rms is not None and not audit.labels_non_finite:
        found["target_scale"] = Measured(audit.target_rms, rows)
    if audit.label_kinds is not None:
        found["labels_supervised"] = flag(audit.label_kinds == 0)
        if rows >= 8 and audit.label_kinds:
            found["labels_vary"] = Measured(audit.label_kinds, rows)
            found["rows_supervised"] = Measured(audit.masked_rows, rows)
    if audit.sorted_labels is not None:
        found["shuffled"] = flag(audit.sorted_labels)
    if task in ("classification", "binary") and audit.majority is not None and rows >= 64:
        if loss_weighs or handled:
            note = "the classes are weighed, or the last bias starts at their shares"
            found["class_balance"] = Measured(None, note=note)
        elif (audit.label_kinds or 0) > 1:
            found["class_balance"] = Measured(audit.majority, rows)
    return found
