"""What does each output depend on? Told by changing one input and looking at all outputs.

In evaluation mode a sample's output must not depend on other samples (Karpathy, "A Recipe for
Training Neural Networks": use backprop to chart dependencies), a causal model's not on later
tokens, and every output on its own input. Changing inputs works for token ids and for numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from .batches import Batch, input_of, is_integer, take_rows, with_input
from .matrices import MATRICES
from .subject import Subject

NOISE = 1e-3
"""Share of the outputs' spread below which a change is rounding: kernels differ with the batch."""
PROBED_ROWS = 8

Moved = Callable[[Batch], torch.Tensor]
"""From a changed batch to the absolute change of the outputs."""


@dataclass
class Dependency:
    """None where it was not measured, and True where all is well.

    samples: does a row's output stay when other rows change; own_input: does it change with its own
    input; future: does it stay when later tokens change; past: does it change with earlier
    tokens; padding: does it stay when padded tokens change; repeatable: is a second forward pass in
    evaluation mode the same; order: does it change when tokens change places;
    linear: relative distance from f(a + b) + f(0) to f(a) + f(b).
    """

    samples: bool | None = None
    own_input: bool | None = None
    future: bool | None = None
    past: bool | None = None
    padding: bool | None = None
    repeatable: bool = True
    order: bool | None = None
    linear: float | None = None

    @property
    def ignores_input(self) -> bool:
        return self.repeatable and self.own_input is False


def measure_dependency(subject: Subject, batch: Batch, causal: bool) -> Dependency:
    """Forward passes in evaluation mode; the caller restores the mode and the generators."""
    subject.model.eval()
    found = Dependency()
    batch = take_rows(batch, slice(0, PROBED_ROWS))
    given = input_of(batch)
    base = subject.logits(batch).double()
    again = subject.logits(batch).double()
    spread = float((base - base.mean()).norm() / max(base.numel(), 1) ** 0.5)
    tolerance = NOISE * max(spread, 1e-6)
    found.repeatable = bool((base - again).abs().max() <= tolerance)
    if not found.repeatable or given is None or not bool(base.isfinite().all()):
        return found
    rows = len(given)
    per_row = len(base) == rows

    def moved(changed: Batch) -> torch.Tensor:
        """Largest change of each output against `base`, with its shape but for the last axis."""
        return (subject.logits(changed).double() - base).abs()

    half = rows // 2
    if per_row and rows >= 2:
        later = with_input(batch, lambda x: torch.cat([x[:half], _different(x[half:])]))
        earlier = with_input(batch, lambda x: torch.cat([_different(x[:half]), x[half:]]))
        change = moved(later).reshape(rows, -1).amax(1)
        backward = moved(earlier).reshape(rows, -1).amax(1)
        unmoved = torch.cat([change[:half], backward[half:]])
        found.samples = bool((unmoved <= tolerance).all())
        found.own_input = bool((change[half:] > 1e-7 * max(spread, 1e-9)).any())
    if causal and given.ndim == 2 and base.ndim == 3 and base.shape[1] == given.shape[1]:
        _measure_time(found, moved, batch, given, tolerance, spread)
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if mask is not None and mask.shape == given.shape and bool((mask == 0).any()):
        padded = (mask == 0).to(given.device)
        changed = with_input(batch, lambda x: torch.where(padded, _different(x), x))
        change = moved(changed)
        if base.ndim == 3 and base.shape[:2] == given.shape:
            found.padding = bool((change.amax(-1)[~padded] <= tolerance).all())
        elif per_row:
            found.padding = bool((change <= tolerance).all())
    if (
        is_integer(given)
        and given.ndim == 2
        and given.shape[1] >= 4
        and has_attention(subject.model)
    ):
        found.order = _depends_on_order(moved, batch, given, base, tolerance, causal)
    if given.is_floating_point() and per_row and count_layers(subject.model) >= 2 and rows >= 2:
        found.linear = _superposition_error(subject, batch, given)
    return found


def _measure_time(
    found: Dependency,
    moved: Moved,
    batch: Batch,
    given: torch.Tensor,
    tolerance: float,
    spread: float,
) -> None:
    """Change the second half of the tokens, then the first token, then one token in the middle."""
    steps = given.shape[1]
    future = True
    for cut in sorted({1, steps // 2, steps - 1}):
        changed = with_input(batch, partial(_changed_from, cut))
        future &= bool((moved(changed)[:, :cut] <= tolerance).all())
    found.future = future
    first = with_input(batch, lambda x: torch.cat([_different(x[:, :1]), x[:, 1:]], 1))
    found.past = bool((moved(first)[:, 1:] > 1e-7 * max(spread, 1e-9)).any())


def _depends_on_order(
    moved: Moved,
    batch: Batch,
    given: torch.Tensor,
    base: torch.Tensor,
    tolerance: float,
    causal: bool,
) -> bool | None:
    """Exchange tokens that are unlike; outputs that stand at or sum over them must notice."""
    steps = given.shape[1]
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if mask is not None and not bool(mask.bool().all()):
        return None
    order = torch.arange(steps)
    order[: steps - 1] = torch.arange(steps - 1).flip(0)
    changed = with_input(batch, lambda x: x[:, order])
    unlike = (given[:, order] != given).any(1)
    if not bool(unlike.any()):
        return None
    change = moved(changed)
    if base.ndim == 3 and base.shape[1] == steps:
        change = change[:, -1]
    return bool((change[unlike] > tolerance * 0.1).any())


@dataclass(frozen=True)
class OutputRange:
    """low, high: of outputs, for the inputs and far larger ones; zeros: share that is exactly 0.

    at_bounds: share of outputs for far larger inputs that are all but -1, 0 or 1.
    """

    low: float
    high: float
    zeros: float
    at_bounds: float


def output_range(subject: Subject, batch: Batch) -> OutputRange:
    """In evaluation mode; the caller restores the mode."""
    subject.model.eval()
    own = subject.logits(batch).double()
    far = torch.zeros(0).double()
    given = input_of(batch)
    if given is not None and given.is_floating_point():
        factors = (1000.0, -1000.0)
        scaled = [subject.logits(with_input(batch, partial(_scaled, f))) for f in factors]
        far = torch.cat([one.double().flatten() for one in scaled])
    every = torch.cat([own.flatten(), far])
    near = (far - far.round()).abs() < 1e-3
    return OutputRange(
        float(every.min()),
        float(every.max()),
        float((own == 0).double().mean()),
        float((near & (far.abs() < 1.5)).double().mean()) if len(far) else 0.0,
    )


def _superposition_error(subject: Subject, batch: Batch, given: torch.Tensor) -> float:
    """f(a) + f(b) = f(a + b) + f(0) holds for a model without a nonlinearity."""
    b = given.roll(1, 0)
    outputs = [
        subject.logits(with_input(batch, partial(_replaced, x))).double()
        for x in (given, b, given + b, torch.zeros_like(given))
    ]
    left, right = outputs[0] + outputs[1], outputs[2] + outputs[3]
    spread = (outputs[0] - outputs[3]).norm()
    return float((left - right).norm() / spread) if float(spread) else 1.0


def _changed_from(at: int, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:, :at], _different(x[:, at:])], 1)


def _scaled(factor: float, x: torch.Tensor) -> torch.Tensor:
    return x * factor


def _replaced(new: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return new


def _different(x: torch.Tensor) -> torch.Tensor:
    """Another input of the same kind: no id stays, and no number."""
    if is_integer(x):
        low, high = int(x.min()), int(x.max())
        if high <= low:
            return x - 1 if low > 0 else x + 1
        return torch.where(x == high, torch.full_like(x, low), x + 1)
    scale = float(x.std()) if x.numel() > 1 else 1.0
    return x.flip(0) * 0.5 + max(scale, 1e-3)


def has_attention(model: nn.Module) -> bool:
    return any("attention" in type(m).__name__.lower() for m in model.modules())


def count_layers(model: nn.Module) -> int:
    """Modules with a matrix that multiplies their input, recurrent ones apart."""
    if any("lora_" in name for name, _ in model.named_parameters()):
        return 0
    return sum(isinstance(m, MATRICES) or type(m).__name__ == "Conv1D" for m in model.modules())
