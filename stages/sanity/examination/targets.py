"""Which targets does the training step train on, with which weight, and with which loss?"""

import torch

from ...verdict.judging import Measured
from ..batches import input_of, labels_of
from ..limits import LIMITS
from ..targets.losses import HEALTHY_KINDS, SOFTMAX_KINDS
from ..targets.measure import run_target_probe
from ..targets.probe import TargetProbe
from ..tasks import Task
from .scene import Scene
from .values import Values, flag, sentence


def examine_targets(scene: Scene) -> Values:
    if scene.kind is None:
        return {}
    scalers = scene.world.of_type(torch.amp.GradScaler)

    def loss_scale() -> float:
        enabled = [one.get_scale() for one in scalers if one.is_enabled()]
        return float(enabled[0]) if enabled else 1.0

    try:
        scene.probe = run_target_probe(
            scene.subject,
            scene.batch,
            scene.optimizer,
            scene.kind,
            scene.given.num_classes,
            scene.world.undone,
            loss_scale,
        )
    except Exception as error:
        note = f"the training step cannot take other outputs: {sentence(error)}"
        return {"loss_kind": Measured(None, note=note)}
    if scene.probe is None:
        return {}
    period = scene.run.period if scene.run is not None else 1
    found = judge_targets(scene.probe, scene.kind, scene.given.label_smoothing, period)
    if scene.kind == "lm" and scene.given.task is not None and _may_be_copied(scene):
        found["lm_labels"] = flag(scene.probe.ahead is None)
    return found


def _may_be_copied(scene: Scene) -> bool:
    """Are labels of the form of the input's tokens?"""
    given, labels = input_of(scene.batch), labels_of(scene.batch)
    return (
        given is not None
        and labels is not None
        and given.shape == labels.shape
        and (not given.is_floating_point() and labels.shape[1] >= 4)
    )


def judge_targets(probe: TargetProbe, task: Task, smoothing: float, period: int) -> Values:
    """smoothing: as declared; period: calls of the training step a call of the optimizer."""
    if probe.rows_used > 1.001:
        return {}
    unused = round((1 - probe.rows_used) * 1000) / 1000
    found: Values = {
        "rows_used": Measured(unused, note=f"{probe.rows_used:.3g} of the rows"),
    }
    if not probe.finite:
        return found
    found["gradient_reaches_logits"] = flag(probe.supervised > 0 and probe.active == 0)
    if not probe.active:
        return found
    found["loss_sign"] = flag(probe.sign < 0)
    found["softmax_before_loss"] = flag(probe.kind in SOFTMAX_KINDS, probe.kind)
    if probe.kind != "unknown":
        wrong = probe.kind not in (*HEALTHY_KINDS, *SOFTMAX_KINDS)
        found["loss_kind"] = flag(wrong, probe.kind)
    permuted = probe.aligned is not None and probe.aligned < LIMITS["sanity.min_alignment"]
    if probe.local is not None and not (permuted and task != "regression"):
        found["targets_local"] = flag(not probe.local)
    if task == "regression":
        if probe.kind != "unknown" and probe.aligned is not None and probe.local is not False:
            found["targets_aligned"] = Measured(probe.aligned, probe.supervised)
    elif probe.kind in (*HEALTHY_KINDS, *SOFTMAX_KINDS) and probe.aligned is not None:
        found |= _judge_positions(probe, task, aligned=not permuted)
    if probe.smoothing is not None and probe.sign > 0:
        undeclared = max(probe.smoothing - smoothing, 0.0)
        found["label_smoothing"] = Measured(undeclared, note=f"{probe.smoothing:.3g}")
    if probe.scale is not None and probe.sign > 0 and probe.local is not False:
        found |= _judge_scale(probe, probe.scale, period)
    if probe.calls > 1 and probe.uneven_calls is not None:
        found["accumulation_weights"] = Measured(probe.uneven_calls, probe.calls)
    return found


def _judge_positions(probe: TargetProbe, task: Task, aligned: bool) -> Values:
    found: Values = {"targets_aligned": Measured(probe.aligned, probe.active)}
    if task == "lm" and probe.ahead is not None:
        note = f"trains on the token {probe.ahead} ahead"
        found["token_shift"] = Measured(abs(probe.ahead - 1), probe.active, note)
    elif task == "tagging" and aligned:
        found["label_shift"] = Measured(abs(probe.shift), probe.active)
    if aligned:
        ignored = probe.missing_class is not None and not probe.missing_is_padding
        note = f"class {probe.missing_class}" if ignored else ""
        found["ignored_class"] = Measured(probe.missing if ignored else 0, note=note)
        missing = 0 if ignored or probe.missing_is_padding else probe.missing
        found["missing_targets"] = Measured(missing, probe.supervised)
        found["extra_targets"] = Measured(probe.extra, probe.active)
    return found


def _judge_scale(probe: TargetProbe, sum_of_weights: float, period: int) -> Values:
    """Is the loss a mean: of what, summed over what, or off by a factor?"""
    scale, near = sum_of_weights * period, LIMITS["sanity.max_scale_error"]

    def is_near(value: float) -> bool:
        return value > 0 and abs(scale / value - 1) <= near

    note = f"the weights of {probe.active} targets sum to {sum_of_weights:.4g}"
    half = probe.kind == "squared error"
    allowed = [1.0, *([0.5, 2.0] if half else []), *probe.allowed_scales]
    if half:
        allowed += [value / 2 for value in probe.allowed_scales]
    fine = any(is_near(value) for value in allowed)
    count = probe.active
    accumulated = max(probe.calls, period)
    summed = (
        not fine and count > 1 and any(is_near(v) for v in (count, count / 2 if half else count))
    )
    undivided = not fine and not summed and accumulated > 1 and is_near(accumulated)
    found: Values = {"loss_summed": flag(summed, note)}
    if accumulated > 1:
        found["accumulation_scale"] = flag(undivided, note)
    if fine or summed or undivided:
        found["loss_scale"] = Measured(0.0, count)
    elif probe.weights_vary and 0.02 < scale < 50:
        found["loss_scale"] = Measured(None, note="the loss weighs classes or positions")
    else:
        found["loss_scale"] = Measured(abs(scale - 1), count, note)
    return found
