"""What outputs depend on, and what range they can reach."""

import math

import torch

from ...verdict.judging import Measured
from ..batches import labels_of
from ..dependency import Dependency, OutputRange, measure_dependency, output_range
from .scene import Scene
from .values import Values, flag, flag_unless, sentence


def examine_wiring(scene: Scene) -> Values:
    causal = scene.kind == "lm"
    try:
        with scene.world.undone():
            scene.dependency = measure_dependency(scene.subject, scene.batch, causal)
    except Exception as error:
        return {"sample_independence": Measured(None, note=sentence(error))}
    found = judge_dependency(scene.dependency, causal)
    labels = labels_of(scene.batch)
    if labels is None or scene.kind not in ("classification", "regression"):
        return found
    with scene.world.undone():
        outputs = output_range(scene.subject, scene.batch)
    targets = None
    if scene.kind == "regression":
        low, high = torch.quantile(labels.double(), torch.tensor([0.05, 0.95]).double()).tolist()
        targets = (low, high)
    if scene.probe is None or scene.probe.outputs == "logits":
        found["output_activation"] = judge_range(outputs, targets)
    return found


def judge_dependency(dependency: Dependency, causal: bool) -> Values:
    found: Values = {"eval_repeatable": flag(not dependency.repeatable)}
    if not dependency.repeatable:
        return found
    found["sample_independence"] = flag_unless(dependency.samples)
    found["input_used"] = flag_unless(dependency.own_input)
    if causal:
        found["causal"] = flag_unless(dependency.future)
        found["context_used"] = flag_unless(dependency.past)
    if dependency.padding is not None:
        found["padding_ignored"] = flag(not dependency.padding)
    if dependency.order is not None:
        found["order_used"] = flag(not dependency.order)
    if dependency.linear is not None and dependency.own_input:
        found["nonlinear"] = Measured(dependency.linear)
    return found


def judge_range(outputs: OutputRange, targets: tuple[float, float] | None) -> Measured:
    """targets: what regression is to reach; None for classes."""
    low, high, zeros = outputs.low, outputs.high, outputs.zeros
    if targets is None:
        return flag(low == 0 and zeros > 0.1, f"{zeros:.0%} of the outputs are 0")
    within = ((a, b) for a, b in ((0.0, 1.0), (-1.0, 1.0)) if low >= a and high <= b)
    bounds = next(within, None) if outputs.at_bounds > 0.5 else None
    if bounds is None and low >= 0 and zeros > 0.1:
        bounds = (0.0, math.inf)
    wrong = bounds is not None and (targets[0] < bounds[0] - 0.05 or targets[1] > bounds[1] + 0.05)
    note = f"outputs within {low:.3g} and {high:.3g}, targets {targets[0]:.3g} to {targets[1]:.3g}"
    return flag(wrong, note)
