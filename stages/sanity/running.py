"""What do the first steps of the user's own training do, on the loader's own batches?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..probes.observe import ActivationRecord, watching_activations
from .batches import Batch
from .matrices import MATRICES
from .subject import Subject
from .watching import StepRecord, StepWatch

ROUNDING = 1e-6
"""A step this small against the weights may be lost in float32 without anything being wrong."""


@dataclass
class Run:
    """What some steps showed; names are of parameters, or modules.

    no_gradient: trainable, and no gradient other than 0 in any step; unchanged: trainable, with a
    gradient, and no element changed; changed_share: of elements, by parameter of one axis;
    update_ratios: mean |change of a step| over mean |weight|, by matrix; dead: share of a layer's
    units that never got a gradient; symmetric: layers whose units are still all alike;
    gradient_norms: by parameter, of the first step; first_bad: where a number is not finite first;
    arrived: parameters that got a gradient, be it 0; gains: those of one axis that are not near 0;
    matrices: weights of linear and convolutional layers; reseeded: the generator stands at one
    point after every step.
    """

    records: list[StepRecord] = field(default_factory=list)
    trainable: list[str] = field(default_factory=list)
    no_gradient: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    changed_share: dict[str, float] = field(default_factory=dict)
    frozen_changed: list[str] = field(default_factory=list)
    update_ratios: dict[str, float] = field(default_factory=dict)
    dead: dict[str, float] = field(default_factory=dict)
    saturated: dict[str, float] = field(default_factory=dict)
    symmetric: list[str] = field(default_factory=list)
    gradient_norms: dict[str, float] = field(default_factory=dict)
    first_bad: str | None = None
    reseeded: bool = False
    arrived: set[str] = field(default_factory=set)
    gains: list[str] = field(default_factory=list)
    matrices: set[str] = field(default_factory=set)

    @property
    def period(self) -> int:
        """Calls of the training step for one of the optimizer."""
        called = sum(bool(record.optimizers) for record in self.records)
        return round(len(self.records) / called) if called else 1


def run_steps(subject: Subject, batches: Sequence[Batch], optimizer: Optimizer, steps: int) -> Run:
    """Take steps on the batches in turn. The caller puts everything back."""
    model, run = subject.model, Run()
    watch = StepWatch(model)
    run.trainable = list(watch.parameters)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    touched: dict[str, torch.Tensor] = {}
    largest: dict[str, float] = {}
    sizes: list[dict[str, float]] = []
    states: list[torch.Tensor] = []
    at_first, bad_activation = torch.get_rng_state(), None
    run.matrices = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, MATRICES)}
    run.gains = [
        n
        for n, p in watch.parameters.items()
        if p.ndim == 1 and float(p.detach().abs().mean()) > 0.1
    ]
    for step in range(steps):
        at_start = {n: p.detach().clone() for n, p in watch.parameters.items()}
        with ExitStack() as stack:
            seen = stack.enter_context(_seeing_gradients(watch.parameters))
            if step == 0:
                activations = stack.enter_context(watching_activations(model))
            record = stack.enter_context(watch.watching())
            record.loss = subject.step(batches[step % len(batches)], optimizer)
        record.arrived_norm = math.hypot(*(float(g.norm()) for g in seen.values())) / record.scale
        states.append(torch.get_rng_state())
        if step == 0:
            run.saturated = _saturated(activations)
            bad_activation = _first_bad_activation(activations)
            run.gradient_norms = {n: float(seen[n].norm()) for n in run.trainable if n in seen}
        for name, gradient in seen.items():
            if run.first_bad is None and not record.scaled and not _is_finite(gradient):
                run.first_bad = bad_activation or f"the gradient of {name}, step {step}"
            nonzero = gradient != 0
            run.arrived.add(name)
            largest[name] = max(largest.get(name, 0.0), float(gradient.abs().max()))
            touched[name] = touched[name] | nonzero if name in touched else nonzero
        run.records.append(record)
        sizes.append(_ratios(at_start, watch.parameters))
        if run.first_bad is None and not math.isfinite(record.loss) and record.forwards:
            run.first_bad = bad_activation or (
                f"the loss of step {step}" if math.isinf(record.loss) else None
            )
        if run.first_bad is not None:
            break
    highest = max((rate for r in run.records for rate in r.learning_rates), default=0.0)
    _compare(run, model, before, touched, {n: highest * size for n, size in largest.items()})
    moving = [one for one in sizes if one]
    if moving:
        run.update_ratios = {n: max(one.get(n, 0.0) for one in moving) for n in moving[0]}
    run.dead = _dead_units(model, touched)
    still = len(states) > 2 and all(torch.equal(states[0], state) for state in states[1:])
    run.reseeded = still and not torch.equal(at_first, states[0])
    return run


@contextmanager
def _seeing_gradients(parameters: Mapping[str, Any]) -> Iterator[dict[str, torch.Tensor]]:
    """What arrives at each parameter during the block, summed; whatever clears it afterwards."""
    seen: dict[str, torch.Tensor] = {}

    def saw(name: str) -> Any:
        def hook(gradient: torch.Tensor) -> None:
            known = seen.get(name)
            seen[name] = gradient.detach() + (0 if known is None else known)

        return hook

    handles = [p.register_hook(saw(n)) for n, p in parameters.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _ratios(
    before: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]
) -> dict[str, float]:
    found = {}
    for name, old in before.items():
        size = float(old.float().abs().mean())
        if old.ndim >= 2 and size > 0:
            change = (parameters[name].detach().float() - old.float()).abs().mean()
            found[name] = float(change) / size
    return found


def _compare(
    run: Run,
    model: nn.Module,
    before: dict[str, torch.Tensor],
    touched: dict[str, torch.Tensor],
    expected: dict[str, float],
) -> None:
    for name, parameter in model.named_parameters():
        old, now = before[name], parameter.detach()
        if old.shape != now.shape:
            continue
        same = old == now
        if name not in run.trainable:
            if not bool((same | (old.isnan() & now.isnan())).all()):
                run.frozen_changed.append(name)
            continue
        gradient = touched.get(name)
        if gradient is None or not bool(gradient.any()):
            run.no_gradient.append(name)
            continue
        too_small = expected[name] < ROUNDING * float(old.abs().max())
        if bool(same.all()) and not too_small:
            run.unchanged.append(name)
        run.changed_share[name] = float((~same)[gradient].float().mean())
    for name, module in model.named_modules():
        if isinstance(module, MATRICES) and len(module.weight) > 2 and module.weight.requires_grad:
            rows = module.weight.detach().reshape(len(module.weight), -1)
            if rows.numel() and bool((rows == rows[:1]).all()) and "lora_" not in name:
                run.symmetric.append(name)


def _dead_units(model: nn.Module, touched: dict[str, torch.Tensor]) -> dict[str, float]:
    """Share of a layer's units whose weights got no gradient from any row of any step."""
    named = {id(p): n for n, p in model.named_parameters()}
    found = {}
    for name, module in model.named_modules():
        if not isinstance(module, MATRICES) or "lora_" in name:
            continue
        gradient = touched.get(named.get(id(module.weight), ""))
        if gradient is not None and bool(gradient.any()):
            rows = gradient.reshape(len(gradient), -1).any(1)
            found[name] = 1 - float(rows.float().mean())
    return found


def _saturated(activations: dict[str, ActivationRecord]) -> dict[str, float]:
    return {n: a.saturated for n, a in activations.items() if a.saturated is not None}


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _first_bad_activation(activations: dict[str, ActivationRecord]) -> str | None:
    for name, record in activations.items():
        if record.non_finite:
            return f"the output of {name or 'the model'}"
    return None


def mode_after_evaluation(
    subject: Subject, batch: Batch, optimizer: Optimizer, evaluate: Any
) -> bool:
    """Is the model still in evaluation mode in the step that follows an evaluation?"""
    evaluate()
    watch = StepWatch(subject.model)
    with watch.watching() as record:
        subject.step(batch, optimizer)
    return bool(record.forwards) and not record.forwards[0].training
