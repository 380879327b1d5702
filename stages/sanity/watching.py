"""What does one step of the user's script really do? Seen through hooks; the script is not changed.

Gradients are seen as they are accumulated, rates and gradients at the moment any optimizer is
called, the mode and precision when the model is called, clipping and loss scaling when they happen.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .batches import first_tensor


@dataclass(frozen=True)
class Forward:
    """One call of the model. precision: of autocast, None without it; given: its first tensor."""

    training: bool
    precision: torch.dtype | None
    given: torch.Tensor | None


@dataclass
class StepRecord:
    """One call of the training step. Norms are global and L2.

    optimizers: ids of the optimizers that stepped, in order; learning_rates: the largest of each
    such step; grad_norm: of what was accumulated, arrived_norm: of the sum of all that came in
    during the step, applied_norm: of what the optimizer got;
    stale: parameters whose first new gradient after an optimizer step was added to an old one;
    clips: when gradients were clipped: "before backward", "before step", "before unscaling",
    "after step"; autocast: was it entered, enabled; scaled, scale: was the loss scaled, by what.
    """

    loss: float = float("nan")
    forwards: list[Forward] = field(default_factory=list)
    optimizers: list[int] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    grad_norm: float = float("nan")
    arrived_norm: float = float("nan")
    applied_norm: float = float("nan")
    stale: list[str] = field(default_factory=list)
    clips: list[str] = field(default_factory=list)
    autocast: bool = False
    scaled: bool = False
    scale: float = 1.0
    warnings: list[str] = field(default_factory=list)


class StepWatch:
    """Watches calls of a training step, one after the other, and keeps what spans several."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._fresh: set[str] = set()
        """Parameters that have accumulated since the last optimizer step."""
        self._squares: dict[str, float] = {}

    @contextmanager
    def watching(self) -> Iterator[StepRecord]:
        record = StepRecord()
        self._unscaled, self._stepped = False, False
        with ExitStack() as stack:
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            for handle in self._hooks(record):
                stack.callback(handle.remove)
            stack.enter_context(self._watching_clips(record))
            stack.enter_context(self._watching_scalers(record))
            stack.enter_context(_watching_autocast(record))
            yield record
        record.warnings = [str(one.message) for one in caught]

    def _hooks(self, record: StepRecord) -> list[Any]:
        incoming: dict[str, torch.Tensor] = {}

        def saw_incoming(name: str) -> Callable[[torch.Tensor], None]:
            def hook(gradient: torch.Tensor) -> None:
                incoming[name] = gradient.detach().clone()

            return hook

        def saw_accumulated(name: str) -> Callable[[torch.Tensor], None]:
            def hook(parameter: torch.Tensor) -> None:
                assert parameter.grad is not None
                total = parameter.grad.detach()
                new = incoming.pop(name, None)
                if name not in self._fresh and new is not None:
                    self._fresh.add(name)
                    if not torch.equal(total.nan_to_num(), new.nan_to_num().to(total.dtype)):
                        record.stale.append(name)
                self._squares[name] = float(total.float().square().sum())

            return hook

        def before_forward(module: nn.Module, given: Any, named: Any) -> None:
            first = first_tensor(given, named)
            device = "cpu" if first is None else first.device.type
            autocast = torch.is_autocast_enabled(device)
            precision = torch.get_autocast_dtype(device) if autocast else None
            copied = None if first is None else first.detach().clone()
            record.forwards.append(Forward(module.training, precision, copied))

        def before_step(optimizer: Optimizer, *_: Any) -> None:
            record.optimizers.append(id(optimizer))
            record.learning_rates.append(max(float(g["lr"]) for g in optimizer.param_groups))
            gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
            record.applied_norm = float(nn.utils.get_total_norm(gradients)) if gradients else 0.0
            record.grad_norm = sum(self._squares.values()) ** 0.5 / record.scale

        def after_step(*_: Any) -> None:
            self._stepped = True
            self._fresh.clear()
            self._squares.clear()

        handles = [
            self.model.register_forward_pre_hook(before_forward, with_kwargs=True),
            register_optimizer_step_pre_hook(before_step),
            register_optimizer_step_post_hook(after_step),
        ]
        for name, parameter in self.parameters.items():
            handles.append(parameter.register_hook(saw_incoming(name)))  # type: ignore[no-untyped-call]
            handles.append(parameter.register_post_accumulate_grad_hook(saw_accumulated(name)))  # type: ignore[no-untyped-call]
        return handles

    @contextmanager
    def _watching_clips(self, record: StepRecord) -> Iterator[None]:
        def clipped(*_: Any) -> None:
            if self._stepped:
                record.clips.append("after step")
            elif not self._squares:
                record.clips.append("before backward")
            elif record.scaled and not self._unscaled:
                record.clips.append("before unscaling")
            else:
                record.clips.append("before step")

        with _noticing(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", clipped):
            yield

    @contextmanager
    def _watching_scalers(self, record: StepRecord) -> Iterator[None]:
        def scaled(scaler: Any, *_: Any) -> None:
            if scaler.is_enabled():
                record.scaled = True
                record.scale = scaler.get_scale()

        def unscaled(*_: Any) -> None:
            self._unscaled = True

        with (
            _noticing(torch.amp.GradScaler, "scale", scaled),
            _noticing(torch.amp.GradScaler, "unscale_", unscaled),
        ):
            yield


@contextmanager
def _watching_autocast(record: StepRecord) -> Iterator[None]:
    def entered(context: Any) -> None:
        record.autocast |= bool(context._enabled)

    with _noticing(torch.autocast, "__enter__", entered):
        yield


@contextmanager
def _noticing(owner: Any, name: str, notice: Callable[..., None]) -> Iterator[None]:
    """Call `notice` before every call of a function of a module or a class."""
    original = getattr(owner, name)

    def noticed(*arguments: Any, **settings: Any) -> Any:
        notice(*arguments)
        return original(*arguments, **settings)

    setattr(owner, name, noticed)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def applied_rates(rate: float | None = None, decay: float | None = None) -> Iterator[list[float]]:
    """The largest rate of every optimizer step; with `rate`, the step uses that one instead.

    The optimizer's own rate is put back after each step, so that a schedule goes on as it would.
    """
    seen: list[float] = []
    own: list[tuple[dict[str, Any], float, float]] = []

    def before(optimizer: Optimizer, *_: Any) -> None:
        seen.append(max(float(group["lr"]) for group in optimizer.param_groups))
        if rate is None:
            return
        for group in optimizer.param_groups:
            own.append((group, group["lr"], group.get("weight_decay", 0.0)))
            group["lr"] = rate
            if decay is not None and "weight_decay" in group:
                group["weight_decay"] = decay

    def after(*_: Any) -> None:
        for group, lr, weight_decay in own:
            group["lr"] = lr
            if "weight_decay" in group:
                group["weight_decay"] = weight_decay
        own.clear()

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
