"""What do gates 2 and 3 say of a run, healthy or with a planted fault, in this very process?

Their own measurements, rules and causes. Left out is what needs fresh processes: the second run of
gate 2 and the resume check of gate 3. Only a fault that shows in two runs alone is run twice here.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .. import gradient_probe, overfit_gate
from ..config.load import flatten
from ..config.schema import Params
from ..models.build import is_pretrained
from ..probes.gradients import run_gradient_probe
from ..probes.overfit import STEPS_OF_OTHER_SEED, run_overfit, steps_to_learn
from ..probes.resume import ResumeCheck, Stretch
from ..training.setup import Parts
from ..verdict.judging import Measured, Rule, judge_all, rank_causes
from ..verdict.rules import gradient_probe as gradient_rules
from ..verdict.rules import overfit_gate as overfit_rules
from .fault import DoesNotApply, Fault, Gate

PROBED_STEPS = 4
"""Fewer than the gate probes: faults of the step show in the first ones."""
RERUNS = ("rerun_differs", "other_seed_same")
RESUME = "resume_differs"
RULES: Mapping[Gate, Sequence[Rule]] = {
    "overfit_gate": overfit_rules.RULES,
    "gradient_probe": gradient_rules.RULES,
}
NOT_RESUMED = ResumeCheck(Stretch(0, {}, [], {}), None, [])


@dataclass(frozen=True)
class Seen:
    """What one gate measured, and its table of causes."""

    gate: Gate
    measured: Mapping[str, Measured]
    causes: Sequence[tuple[set[str], str]]


@dataclass(frozen=True)
class Found:
    """The verdict of one gate: ids of the checks that do not pass, and the causes it names.

    warned: those of `checks` that only warn.
    """

    checks: Sequence[str] = ()
    warned: Sequence[str] = ()
    causes: Sequence[str] = ()


@dataclass(frozen=True)
class Run:
    """The verdicts of both gates; seconds: how long it took."""

    found: Mapping[Gate, Found]
    seconds: float = field(default=0.0, compare=False)


def run_gates(
    params: Params, parts: Parts, *, twice: bool = False, probed: int | None = PROBED_STEPS
) -> Run:
    """Both gates over these parts.

    twice: with the reruns of gate 2; probed: at most how many steps gate 3 takes, None for its own.
    """
    started = time.monotonic()
    seen = observe_overfit(params, parts, twice=twice), observe_gradients(params, parts, probed)
    found = {one.gate: judge_seen(one, params) for one in seen}
    return Run(found, time.monotonic() - started)


def observe_gates(params: Params, parts: Parts, *, twice: bool = False) -> tuple[Seen, Seen]:
    return observe_overfit(params, parts, twice=twice), observe_gradients(params, parts)


def observe_overfit(params: Params, parts: Parts, *, twice: bool = False) -> Seen:
    seed = params.run.seed
    run = run_overfit(params, seed, parts=parts)
    steps = len(run.trace.losses)
    blanked = run_overfit(params, seed, blank=True, steps=steps, parts=parts)
    again = other = run.trace
    if twice:
        again = run_overfit(params, seed, steps=steps, parts=parts).trace
        few, other_seed = min(steps, STEPS_OF_OTHER_SEED), (seed + 1) % 2**32
        other = run_overfit(params, other_seed, steps=few, parts=parts).trace
    pretrained = is_pretrained(params.model)
    measured = overfit_gate.measure(run, blanked, again, other, pretrained=pretrained)
    if not twice:
        measured = {name: one for name, one in measured.items() if name not in RERUNS}
    needed = steps_to_learn(params, run, parts)
    frozen = overfit_gate.frozen_on_purpose(params.model)
    causes = overfit_rules.causes_of(run.initial.guesses_evenly, needed, frozen)
    return Seen("overfit_gate", measured, causes)


def observe_gradients(params: Params, parts: Parts, probed: int | None = PROBED_STEPS) -> Seen:
    gradient = params.gates.gradient
    few = replace(gradient, steps=min(gradient.steps, probed or gradient.steps))
    params = replace(params, gates=replace(params.gates, gradient=few))
    probe = run_gradient_probe(params, parts)
    measured = gradient_probe.measure(
        probe,
        NOT_RESUMED,
        params.train,
        params.run.precision,
        pretrained=is_pretrained(params.model),
    )
    del measured[RESUME]
    targets = probe.first_step.targets
    causes = gradient_rules.causes_of(
        None,
        targets.shift,
        loss_is_silent=targets.loss_is_silent,
        excessive_update=gradient_probe.excessive_update(measured, gradient),
    )
    return Seen("gradient_probe", measured, causes)


def judge_seen(seen: Seen, params: Params) -> Found:
    """Judge what was measured by the rules of its gate, with the limits of `params`."""
    limits: dict[str, Any] = dict(flatten({"gates": asdict(params.gates)}))
    rules = [rule for rule in RULES[seen.gate] if rule.id in seen.measured]
    checks = judge_all(rules, seen.measured, limits, params.run.seed)
    return Found(
        [check.id for check in checks if check.status != "pass"],
        [check.id for check in checks if check.status == "warn"],
        rank_causes(checks, seen.causes),
    )


def plant(fault: Fault, params: Params) -> tuple[Parts, Params, bool] | str:
    """What `run_gates` takes to see the fault; or the reason why it cannot be planted."""
    if reason := fault.applies(params):
        return reason
    parts, planted = fault.plant(Parts.of(params), params)
    return parts, planted, not set(RERUNS).isdisjoint(fault.checks)


def run_fault(fault: Fault, params: Params) -> Run | str:
    """The verdicts on a run with the fault, or the reason why it cannot be planted in it."""
    planted = plant(fault, params)
    if isinstance(planted, str):
        return planted
    parts, changed, twice = planted
    try:
        return run_gates(changed, parts, twice=twice)
    except DoesNotApply as reason:
        return str(reason)
