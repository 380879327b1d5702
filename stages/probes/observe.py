"""What does a training step really do? Watched through hooks on the model and the optimizer.

Nothing here trusts what a step says of itself: gradients are seen as they are accumulated, the
learning rate and the clipped gradients at the moment the optimizer is called, weights before and
after.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

DEAD_ACTIVATION = 1e-5
"""A unit that never exceeds this is dead (TheDeepChecker's limit)."""
SATURATED_ACTIVATION = 0.95
"""Share of its range from its middle beyond which a bounded unit is saturated (DLCheck's limit)."""
BOUNDED = {"Tanh": (-1.0, 1.0), "Sigmoid": (0.0, 1.0), "Hardtanh": (-1.0, 1.0)}
RECTIFYING = ("ReLU", "GELU", "SiLU", "Mish", "Softplus", "ELU")


@dataclass
class StepRecord:
    """One step as it was seen. Norms are L2; dicts are by parameter name.

    grad_norm: global, before clipping; applied_norm: global, as the optimizer got it;
    update_ratios: mean |change| over mean |weight| of matrices that did not begin as zeros, as the
    B matrices of LoRA do: their ratio says nothing while they are small;
    stale_gradients: parameters whose gradient began with what an earlier step had left there;
    skipped: scaled gradients overflowed, and the optimizer was not called; loss_unscaled: there is
    a scaler, and the step did not use it. Norms are of gradients without their scale.
    """

    optimizer_calls: int = 0
    learning_rate: float = math.nan
    grad_norm: float = math.nan
    applied_norm: float = math.nan
    grad_norms: dict[str, float] = field(default_factory=dict)
    update_ratios: dict[str, float] = field(default_factory=dict)
    non_finite: list[str] = field(default_factory=list)
    stale_gradients: list[str] = field(default_factory=list)
    skipped: bool = False
    loss_unscaled: bool = False


@dataclass(frozen=True)
class ActivationRecord:
    """The output of one module over one forward pass.

    dead: share of units that never fire, None where the module does not rectify; saturated: share
    of saturated units, None where its output is not bounded.
    """

    module: str
    mean: float
    std: float
    absolute_max: float
    non_finite: int
    dead: float | None
    saturated: float | None


class StepObserver:
    """Keeps a StepRecord for every step taken within `watching`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, scaler: GradScaler) -> None:
        self._optimizer, self._scaler, self._scale = optimizer, scaler, 1.0
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._zero_at_first = {n for n, p in self._parameters.items() if not bool(p.any())}
        self._squares: dict[str, torch.Tensor] = {}
        self._incoming: dict[str, torch.Tensor] = {}
        self._before: dict[str, torch.Tensor] = {}
        self._record = StepRecord()

    @contextmanager
    def watching(self) -> Iterator[StepRecord]:
        """Watch one training step; the record is complete when the block ends."""
        self._record, self._squares = StepRecord(), {}
        self._scale = self._scaler.get_scale()
        with ExitStack() as stack:
            scaled = stack.enter_context(_counting_calls(self._scaler, "scale"))
            for name, parameter in self._parameters.items():
                untyped: Any = parameter
                incoming = untyped.register_hook(self._saw_incoming(name))
                complete = untyped.register_post_accumulate_grad_hook(self._saw_gradient(name))
                stack.callback(incoming.remove)
                stack.callback(complete.remove)
            before = self._optimizer.register_step_pre_hook(self._before_update)
            after = self._optimizer.register_step_post_hook(self._after_update)
            stack.callback(before.remove)
            stack.callback(after.remove)
            yield self._record
        enabled, calls = self._scaler.is_enabled(), self._record.optimizer_calls
        self._record.loss_unscaled = enabled and not scaled
        self._record.skipped = enabled and not calls and self._scaler.get_scale() < self._scale
        norms = {name: float(square) ** 0.5 for name, square in self._squares.items()}
        self._record.grad_norms = norms
        self._record.grad_norm = math.hypot(*norms.values())
        self._record.non_finite = [
            *(name for name, norm in norms.items() if not math.isfinite(norm)),
            *(f"{n} (weight)" for n, p in self._parameters.items() if not bool(p.isfinite().all())),
        ]

    def _saw_incoming(self, name: str) -> Any:
        def hook(gradient: torch.Tensor) -> None:
            if name not in self._squares:
                self._incoming[name] = gradient.detach().clone()

        return hook

    def _saw_gradient(self, name: str) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            if name in self._incoming:
                incoming = self._incoming.pop(name)
                if not torch.equal(parameter.grad.nan_to_num(), incoming.nan_to_num()):
                    self._record.stale_gradients.append(name)
            self._squares[name] = (parameter.grad.detach().float() / self._scale).square().sum()

        return hook

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._record.optimizer_calls += 1
        self._record.learning_rate = float(optimizer.param_groups[0]["lr"])
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        self._record.applied_norm = float(nn.utils.get_total_norm(gradients)) if gradients else 0.0
        self._before = {name: p.detach().clone() for name, p in self._parameters.items()}

    def _after_update(self, *_: Any) -> None:
        for name, parameter in self._parameters.items():
            before = self._before[name].float()
            size = float(before.abs().mean())
            if parameter.ndim >= 2 and size > 0 and name not in self._zero_at_first:
                change = float((parameter.detach().float() - before).abs().mean())
                self._record.update_ratios[name] = change / size
        self._before = {}


@contextmanager
def _counting_calls(owner: Any, method: str) -> Iterator[list[None]]:
    """The list grows by one with every call of a method of `owner`."""
    calls: list[None] = []
    original = getattr(owner, method)

    def counted(*arguments: Any) -> Any:
        calls.append(None)
        return original(*arguments)

    setattr(owner, method, counted)
    try:
        yield calls
    finally:
        delattr(owner, method)


@contextmanager
def watching_activations(model: nn.Module) -> Iterator[dict[str, ActivationRecord]]:
    """Record the output of every module that returns one tensor; of several passes the last."""
    records: dict[str, ActivationRecord] = {}

    def saw(name: str, kind: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                records[name] = _describe(name, kind, output.detach().float())

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            handle = module.register_forward_hook(saw(name, type(module).__name__))
            stack.callback(handle.remove)
        yield records


def _describe(name: str, kind: str, output: torch.Tensor) -> ActivationRecord:
    units = output.flatten(0, -2) if output.ndim > 1 else output[None]
    dead = saturated = None
    if any(word in kind for word in RECTIFYING):
        dead = float((units.abs().amax(0) < DEAD_ACTIVATION).float().mean())
    if kind in BOUNDED:
        low, high = BOUNDED[kind]
        distance = (2 * (units - low) / (high - low) - 1).abs().mean(0)
        saturated = float((distance > SATURATED_ACTIVATION).float().mean())
    finite = output.isfinite()
    return ActivationRecord(
        module=name,
        mean=float(output[finite].mean()),
        std=float(output[finite].std(correction=0)),
        absolute_max=float(output[finite].abs().amax()) if bool(finite.any()) else math.inf,
        non_finite=int((~finite).sum()),
        dead=dead,
        saturated=saturated,
    )
