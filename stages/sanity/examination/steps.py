"""What the first training steps do to parameters: gradients, updates, rates, and their order."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...verdict.judging import Measured
from ..matrices import MATRICES, last_matrix
from ..running import Run, run_steps
from ..watching import StepRecord
from .scene import Scene
from .values import Values, flag, named, sentence

OBSERVED_STEPS = 12
KEPT = 0.9
"""Share of the norm of all gradients of a step that must be there when the optimizer is called."""
NEVER_LEARNED = ("pooler",)
"""Parts of Hugging Face models that a task may leave unused."""
ALL_BUT_ALL = 0.9
"""Share of dead units that a constant input does not explain."""


def take_first_step(scene: Scene) -> Values:
    try:
        with scene.world.undone():
            scene.subject.step(scene.batch, scene.optimizer)
    except Exception as error:
        scene.runs = False
        return {"step_runs": flag(True, sentence(error))}
    return {"step_runs": flag(False)}


def take_steps(scene: Scene) -> Values:
    """Watch some steps; they are judged when it is known how high the rate gets."""
    with scene.world.undone():
        try:
            scene.run = run_steps(scene.subject, scene.batches, scene.optimizer, OBSERVED_STEPS)
        except Exception as error:
            return {"step_runs": flag(True, sentence(error))}
    scene.figures.gradient_norms = scene.run.gradient_norms
    return {}


def judge_steps(scene: Scene, peak_rate: float) -> Values:
    """peak_rate: the highest that the user's schedule reaches, 0 where that is not known."""
    run = scene.run
    if run is None:
        return {}
    n = len(run.records)
    bad = [run.first_bad] if run.first_bad is not None else []
    found: Values = {"non_finite": named(bad, n)}
    if not scene.own_step:
        found |= _judge_script(scene, run)
    called = [record for record in run.records if record.optimizers]
    zero_rates = bool(called) and all(rate == 0 for r in called for rate in r.learning_rates)
    found["learning_rate_zero"] = Measured(n if zero_rates else 0, n)
    nothing = bool(run.trainable) and not run.arrived
    found["backward"] = Measured(n if nothing else 0, n)
    if bad:
        return found
    found |= _judge_gradients(scene, run, nothing)
    idle = zero_rates or any(
        found[i].value for i in ("optimizer_steps", "cleared_gradients", "backward") if i in found
    )
    found |= _judge_changes(scene, run, idle)
    if not zero_rates:
        found |= _judge_updates(run, called, peak_rate)
    return found | _judge_norms(run)


def _judge_script(scene: Scene, run: Run) -> Values:
    """What only a training step of the user's own can get wrong."""
    records = run.records
    n = len(records)
    called = [record for record in records if record.optimizers]
    given = {id(scene.optimizer), id(getattr(scene.optimizer, "optimizer", scene.optimizer))}
    again = [r for r in called if len(set(r.optimizers)) < len(r.optimizers)]
    others = [r for r in called if not given & set(r.optimizers)]
    stale = {name for record in records[1:] for name in record.stale}
    # what the optimizer does not hold, it does not clear either
    held = sorted(stale - set(scene.coverage.not_in_optimizer))
    cleared = [
        r
        for r in called
        if (r.applied_norm == 0 < r.grad_norm) or r.grad_norm < KEPT * r.arrived_norm
    ]
    unscaled = [
        r for r in records if not r.scaled and any(f.precision == torch.float16 for f in r.forwards)
    ]
    lost = [
        r
        for r in records
        if r.autocast and r.forwards and all(f.precision is None for f in r.forwards)
    ]
    texts = [text for record in records for text in record.warnings]
    in_evaluation = sum(any(not f.training for f in r.forwards) for r in records)
    found: Values = {
        "optimizer_steps": Measured(n if not called else 0, n),
        "optimizer_once": Measured(len(again), n),
        "optimizer_kept": Measured(len(others), n),
        "stale_gradients": named(held, scene.coverage.trainable),
        "cleared_gradients": Measured(len(cleared), n),
        "fp16_unscaled": Measured(len(unscaled), n),
        "autocast_applied": Measured(len(lost), n),
        "scheduler_order": flag(any("lr_scheduler.step()` before" in text for text in texts)),
        "reseeded": flag(run.reseeded),
        "training_mode": Measured(in_evaluation, n),
    }
    if in_evaluation and not scene.mode_matters:
        found["training_mode"] = Measured(0, n, "it makes no difference here")
    return found | _judge_clips(called)


def _judge_clips(called: Sequence[StepRecord]) -> Values:
    wrong = {when for r in called for when in r.clips if when != "before step"}
    found: Values = {"clip_order": named(sorted(wrong), len(called))}
    ratios = [
        r.grad_norm / r.applied_norm for r in called if r.applied_norm > 0 and r.grad_norm > 0
    ]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    if finite:
        found["clip_excess"] = Measured(min(finite), len(called))
    return found


def _judge_gradients(scene: Scene, run: Run, nothing: bool) -> Values:
    """Which parameters and units does a gradient reach? nothing: it reaches no parameter."""
    initial = scene.initial
    modules = {n: m for n, m in scene.model.named_modules() if isinstance(m, MATRICES)}
    matrices = {f"{name}.{part}": name for name in modules for part in ("weight", "bias")}
    arrived_zero = [n for n in run.no_gradient if n in run.arrived]
    cut = [
        name
        for name in run.no_gradient
        if not any(part in name for part in NEVER_LEARNED)
        and not (name in arrived_zero and name in matrices)
        and not ("lora_" in name and initial.adapters_dead)
        and not (name.endswith("bias") and name[: -len("bias")] + "weight" not in run.no_gradient)
    ]
    found: Values = {"without_gradient": named([] if nothing else cut, len(run.trainable))}
    still = [n for n in initial.zero if f"{n}.weight" in run.no_gradient + run.unchanged]
    most = len(initial.zero) > len(modules) / 2 and len(initial.zero) > 1
    found["zero_weights"] = named(initial.zero if most else still, len(modules))
    found["symmetric_units"] = named(run.symmetric, len(modules))
    if run.saturated:
        worst = max(run.saturated, key=lambda name: run.saturated[name])
        found["saturated_units"] = Measured(run.saturated[worst], evidence=(worst,))
    explained = initial.zero or initial.constant or initial.zero_gains or initial.adapters_dead
    dead = _dead_layers(scene, run, modules, arrived_zero)
    if dead and not explained and not nothing:
        found["dead_units"] = _worst_layer(scene, dead)
    return found


def _dead_layers(
    scene: Scene, run: Run, modules: dict[str, Any], arrived_zero: list[str]
) -> dict[str, float]:
    """Share of dead units by layer: all of one that gets a gradient of 0, while the head learns."""
    last = last_matrix(scene.model)
    head = next((name for name, module in modules.items() if module is last), None)
    dead = dict(run.dead)
    if head is None or f"{head}.weight" in run.no_gradient:
        return dead
    for name in modules:
        bias = f"{name}.bias"
        silent = bias in arrived_zero or bias not in run.trainable
        if f"{name}.weight" in arrived_zero and silent:
            dead[name] = 1.0
    return dead


def _worst_layer(scene: Scene, dead: dict[str, float]) -> Measured:
    worst = max(dead, key=lambda name: dead[name])
    share = dead[worst]
    if scene.dependency is not None and scene.dependency.ignores_input and share < ALL_BUT_ALL:
        return Measured(None, note="one and the same input reaches the units")
    return Measured(share, len(dead), evidence=(worst,) if share else ())


def _judge_changes(scene: Scene, run: Run, idle: bool) -> Values:
    """Which parameters change? idle: nothing moves them, which is judged elsewhere."""
    found: Values = {"frozen_changed": named(run.frozen_changed)}
    if scene.lint.low_precision:
        shares = [run.changed_share[n] for n in run.gains if n in run.changed_share]
        if shares:
            found["swallowed_updates"] = Measured(min(shares), len(shares))
    elif not idle:
        outside = set(scene.coverage.not_in_optimizer)
        still_same = [n for n in run.unchanged if n not in outside]
        found["unchanged"] = named(still_same, len(run.trainable))
    return found


def _judge_updates(run: Run, called: Sequence[StepRecord], peak_rate: float) -> Values:
    """The size of an update at the peak of the schedule, against the weights."""
    highest = max((rate for r in called for rate in r.learning_rates), default=0.0)
    if not run.update_ratios or highest <= 0:
        return {}
    ratios = sorted(run.update_ratios.values())
    middle = ratios[len(ratios) // 2] * max(peak_rate / highest, 1.0)
    return {"update_ratio": Measured(middle, len(ratios))} if middle > 0 else {}


def _judge_norms(run: Run) -> Values:
    """The gradients of the first step: over all, and of the first matrix against the last."""
    found: Values = {}
    norms = [norm for norm in run.gradient_norms.values() if math.isfinite(norm)]
    if norms:
        found["exploding_gradient"] = Measured(math.hypot(*norms), len(norms))
    matrices = [
        n
        for n in run.gradient_norms
        if n.endswith("weight") and n in run.matrices and "lora_" not in n
    ]
    if len(matrices) > 1:
        first, final = run.gradient_norms[matrices[0]], run.gradient_norms[matrices[-1]]
        if first > 0 and final > 0:
            found["vanishing_gradient"] = Measured(first / final, evidence=(matrices[0],))
    return found
