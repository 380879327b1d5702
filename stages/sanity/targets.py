"""Which targets does the loss really train on, with which weight? Read from dL/dlogits.

The cross-entropy of one position has the gradient w (p - (1 - e) onehot(t) - e / K): over all
classes but t a straight line in p. Its slope is the weight w that the normaliser really gave, its
intercept the label smoothing e, the entry off the line the class t that is really trained on, and
the distance to the line says whether the loss is a cross-entropy at all. The logits are made up and
confident, because at a fresh model's even guess smoothing and a second softmax hardly show. They
are put in place of the model's own while the user's own training step runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from .subject import (
    IGNORE_INDEX,
    TRIED_SHIFTS,
    Batch,
    Logits,
    Subject,
    Task,
    copies_input,
    input_of,
    labels_of,
    logits_of,
    side_by_side,
    size_of,
    with_labels,
    with_logits,
)

CONFIDENCE = 3.0
"""Standard deviation of the made-up logits."""
LINE_RESIDUAL = 0.02
"""Relative distance to the line that a cross-entropy's gradient stays below (float32: 1e-6)."""
SAME_DIRECTION = 0.999
"""Cosine from which on two gradients are one, up to their scale."""
SILENT = 1e-7
"""A position whose gradient is below this share of the largest gets none."""


@dataclass(frozen=True)
class Captured:
    """One training step: logits as the loss saw them, and their gradient.

    calls: rows of each call of the model; given: what it was given, all calls together, None where
    that has no rows.
    """

    logits: torch.Tensor
    gradient: torch.Tensor
    calls: list[int]
    given: torch.Tensor | None


@dataclass
class TargetProbe:
    """What the gradient says.

    kind: the loss that it is the gradient of, or "unknown"; sign: -1 where the loss is negated;
    shift: by how many positions the target stands later than its logits, within the labels;
    ahead: the same against the input, None where labels are not the input; aligned: share of
    positions trained on their own label; missing, extra: positions without and with a gradient
    against their labels; missing_class: the one class that all missing positions have;
    scale: the sum of the weights, 1 for a mean; smoothing; local: does each position depend on
    its own label alone; rows_used: share of the batch's rows that reached the model.
    """

    kind: str = "unknown"
    outputs: str = "logits"
    sign: int = 1
    shift: int = 0
    ahead: int | None = None
    aligned: float | None = None
    supervised: int = 0
    active: int = 0
    missing: int = 0
    missing_class: int | None = None
    missing_is_padding: bool = False
    extra: int = 0
    scale: float | None = None
    allowed_scales: list[float] = field(default_factory=list)
    smoothing: float | None = None
    weights_vary: bool = False
    uneven_calls: float | None = None
    calls: int = 1
    local: bool | None = None
    rows_used: float = 1.0
    finite: bool = True


def find_site(subject: Subject, batch: Batch) -> nn.Module:
    """The module whose output is the logits: the model, or its head where it computes the loss."""
    if subject.loss_fn is not None:
        return subject.model
    outputs: list[tuple[nn.Module, torch.Tensor]] = []

    def saw(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            outputs.append((module, output))

    handles = [m.register_forward_hook(saw) for m in subject.model.modules()]
    try:
        logits = subject.logits(batch)
    finally:
        for handle in handles:
            handle.remove()
    for module, output in reversed(outputs):
        if output.shape == logits.shape and torch.equal(output, logits):
            return module
    return subject.model


@contextmanager
def replaced_logits(
    site: nn.Module, make: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[tuple[list[torch.Tensor], dict[int, torch.Tensor]]]:
    """While open, what `site` returns is `make(logits)`; gradients flow through unchanged.

    Yields, by call: what took the place of the model's own logits, and its gradient.
    """
    seen: list[torch.Tensor] = []
    gradients: dict[int, torch.Tensor] = {}

    def hook(module: nn.Module, given: Any, outputs: Any) -> Any:
        logits = logits_of(outputs)
        with torch.no_grad():
            moved = make(logits.detach()).to(logits.dtype) - logits
        replaced = logits + moved.detach()
        call = len(seen)
        seen.append(replaced.detach())
        if replaced.requires_grad:

            def keep(gradient: torch.Tensor) -> None:
                known = gradients.get(call)
                gradients[call] = gradient.detach() + (0 if known is None else known)

            untyped: Any = replaced
            untyped.register_hook(keep)
        return with_logits(outputs, replaced)

    handle = site.register_forward_hook(hook)
    try:
        yield seen, gradients
    finally:
        handle.remove()


def capture(
    subject: Subject,
    site: nn.Module,
    batch: Batch,
    optimizer: Optimizer,
    make: Callable[[torch.Tensor], torch.Tensor],
    scale_of: Callable[[], float],
) -> Captured | None:
    """One training step with made-up logits; None where no gradient reaches them."""
    given: list[torch.Tensor] = []

    def saw(module: nn.Module, inputs: Any, named: Any) -> None:
        tensors = [v for v in (*inputs, *named.values()) if isinstance(v, torch.Tensor)]
        given.extend(one.detach().clone() for one in tensors[:1])

    handle = subject.model.register_forward_pre_hook(saw, with_kwargs=True)
    try:
        with replaced_logits(site, make) as (seen, gradients):
            scale = scale_of()
            subject.step(batch, optimizer)
    finally:
        handle.remove()
    if not gradients:
        return None
    used = sorted(gradients)
    shapes = {tuple(seen[call].shape[1:]) for call in used}
    if len(shapes) > 1:
        return None
    together = len(given) == len(seen) and len({one.shape[1:] for one in given}) == 1
    return Captured(
        torch.cat([seen[call] for call in used]).double(),
        torch.cat([gradients[call] for call in used]).double() / scale,
        [len(seen[call]) for call in used],
        torch.cat([given[call] for call in used]) if together else None,
    )


def row_order(batch: Batch, given: torch.Tensor | None) -> torch.Tensor | None:
    """Which rows of the batch the model was given, in its order: int64; None where unknown.

    A step may deal rows to its micro-batches in any way; rows that it changes are not found.
    """
    rows = input_of(batch)
    if rows is None or given is None or given.shape[1:] != rows.shape[1:]:
        return None
    known: dict[bytes, int] = {}
    for number, row in enumerate(rows.detach().cpu()):
        known.setdefault(row.contiguous().numpy().tobytes(), number)
    if len(known) < len(rows) or given.dtype != rows.dtype:
        return None
    found = [known.get(row.contiguous().numpy().tobytes()) for row in given.cpu()]
    return None if None in found else torch.tensor(found)


def output_kind(own: torch.Tensor, task: Task, class_axis: int = -1) -> str:
    """Are a model's outputs logits, probabilities or log-probabilities?"""
    if task in ("binary", "multilabel"):
        within = bool(((own >= 0) & (own <= 1)).all())
        return "probabilities" if within and own.numel() >= 4 else "logits"
    if task == "regression" or own.ndim < 2:
        return "logits"
    total = own.sum(class_axis)
    if bool((own >= 0).all()) and bool(((total - 1).abs() < 1e-3).all()):
        return "probabilities"
    if bool((own.logsumexp(class_axis).abs() < 1e-3).all()):
        return "log-probabilities"
    return "logits"


def make_logits(kind: str, task: Task, class_axis: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Confident outputs of the same kind as the model's own; each call draws others."""
    generator = torch.Generator().manual_seed(0)

    def make(own: torch.Tensor) -> torch.Tensor:
        drawn = CONFIDENCE * torch.randn(own.shape, generator=generator).to(own.device)
        if kind == "probabilities":
            if task in ("binary", "multilabel"):
                return drawn.sigmoid().clamp(0.02, 0.98)
            return drawn.softmax(class_axis)
        return drawn.log_softmax(class_axis) if kind == "log-probabilities" else drawn

    return make


def run_target_probe(
    subject: Subject,
    batch: Batch,
    optimizer: Optimizer,
    task: Task,
    num_classes: int | None,
    undone: Callable[[], Any],
    scale_of: Callable[[], float],
) -> TargetProbe | None:
    """Run the user's step on made-up logits and read its gradient; None where that cannot be."""
    labels = labels_of(batch)
    if labels is None:
        return None
    with undone():
        site = find_site(subject, batch)
        own = subject.logits(batch)
    at_own = side_by_side(own, labels, task, num_classes)
    class_axis = -1
    if at_own is not None and at_own.logits.shape[-1] != own.shape[-1] and own.ndim > 2:
        class_axis = 1
    kind = output_kind(own, task, class_axis)
    if task == "regression":
        spread = float(labels.float().std()) if labels.numel() > 1 else 1.0
        middle = float(labels.float().mean())
        make = _around(middle, max(spread, 1e-3))
    else:
        make = make_logits(kind, task, class_axis)
    with undone():
        captured = capture(subject, site, batch, optimizer, make, scale_of)
    if captured is None:
        return None
    probe = TargetProbe(outputs=kind, calls=len(captured.calls))
    probe.rows_used = sum(captured.calls) / max(size_of(batch), 1)
    probe.finite = bool(captured.gradient.isfinite().all())
    if probe.rows_used > 1.001 or not probe.finite:
        return probe
    order = row_order(batch, captured.given)
    in_order = torch.arange(len(captured.logits))
    if order is not None and len(order) == len(in_order) and len(captured.logits) <= len(labels):
        used = labels[order.to(labels.device)]
    else:
        order, used = in_order, labels[: sum(captured.calls)]
    placed = _place(captured, used, task, num_classes)
    if placed is None:
        return probe
    z, g, side = placed
    if task in ("regression", "binary", "multilabel"):
        read_single(probe, z[:, 0], g[:, 0], side, used, task)
    else:
        read_classes(probe, z, g, side, used, batch, task)
        read_calls(probe, g, side, captured.calls)
    if torch.equal(order, in_order):
        probe.local = is_local(subject, site, batch, optimizer, task, captured, undone, scale_of)
    return probe


def _around(middle: float, spread: float) -> Callable[[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def make(own: torch.Tensor) -> torch.Tensor:
        return middle + 2 * spread * torch.randn(own.shape, generator=generator).to(own.device)

    return make


def _place(
    captured: Captured, labels: torch.Tensor, task: Task, num_classes: int | None
) -> tuple[torch.Tensor, torch.Tensor, Logits] | None:
    side = side_by_side(captured.logits, labels, task, num_classes)
    gradient = side_by_side(captured.gradient, labels, task, num_classes)
    if side is None or gradient is None:
        return None
    return side.logits, gradient.logits, side


def read_classes(
    probe: TargetProbe,
    z: torch.Tensor,
    g: torch.Tensor,
    side: Logits,
    labels: torch.Tensor,
    batch: Batch,
    task: Task,
) -> None:
    """Fill in what the gradient g [P, K] at logits z [P, K] says of a loss over classes."""
    sizes = g.abs().amax(1)
    active = sizes > SILENT * max(float(sizes.max()), 1e-30)
    if float(sizes.max()) == 0:
        active = torch.zeros_like(active)
    probe.active = int(active.sum())
    target = side.labels.to(g.device)
    if not probe.active:
        probe.supervised = int((target != IGNORE_INDEX).sum())
        probe.missing = probe.supervised
        return
    probe.sign = _sign(z[active], g[active], target[active])
    g = probe.sign * g
    trained, shifted, probe.shift, probe.aligned = _best_shift(z, g, active, target, labels)
    supervised = shifted != IGNORE_INDEX
    probe.supervised = int(supervised.sum())
    missing = supervised & ~active
    probe.missing, probe.extra = int(missing.sum()), int((active & ~supervised).sum())
    classes = torch.unique(shifted[missing])
    if len(classes) == 1 and not bool((active & (shifted == classes[0])).any()):
        probe.missing_class = int(classes[0])
        probe.missing_is_padding = _is_padding(batch, labels, missing, active, task)
    copied = copies_input(batch)
    if copied is not None and task == "lm":
        probe.ahead = probe.shift + copied
    _read_kind(probe, z[active], g[active], trained[active], shifted[active])
    if task in ("lm", "tagging") and probe.scale is not None:
        probe.allowed_scales = [probe.active / max(len(labels), 1)]


def _is_padding(
    batch: Batch,
    labels: torch.Tensor,
    missing: torch.Tensor,
    active: torch.Tensor,
    task: Task,
) -> bool:
    """Do the positions left out look like padding: ends of rows, with one input of their own?

    missing, active: bool [P].
    """
    if labels.ndim != 2 or task not in ("lm", "tagging"):
        return False
    out, kept = missing.reshape(labels.shape).cpu(), active.reshape(labels.shape).cpu()
    given = input_of(batch)
    if given is None or given.shape[:2] != labels.shape:
        return False
    last_kept = torch.where(kept, torch.arange(labels.shape[1]), -1).amax(1, keepdim=True)
    at_ends = bool((~out | (torch.arange(labels.shape[1]) > last_kept)).all())
    if task == "lm":
        return at_ends and not bool(out.any(1).all())
    own = torch.unique(given.cpu()[out], dim=0)
    same = given.cpu()[kept] == own[0]
    elsewhere = same.all(-1).any() if given.ndim > 2 else same.any()
    alone = len(own) == 1 and not bool(elsewhere)
    return alone or at_ends


def _sign(z: torch.Tensor, g: torch.Tensor, target: torch.Tensor) -> int:
    """-1 where g is a gradient that drives the label's class down."""
    one_entry = bool(((g != 0).sum(1) == 1).all())
    known = (target >= 0) & (target < g.shape[1])
    if one_entry or g.shape[1] == 2:
        at_label = g[known].gather(1, target[known, None])
        return -1 if float((at_label > 0).double().mean()) > 0.9 else 1
    straight = [_line(z, s * g, (s * g).argmin(1))[2] < LINE_RESIDUAL for s in (1, -1)]
    return -1 if straight == [False, True] else 1


def _best_shift(
    z: torch.Tensor,
    g: torch.Tensor,
    active: torch.Tensor,
    target: torch.Tensor,
    labels: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, int, float]:
    """(class trained on, labels moved to where they are trained on, by how much, share that fits).

    The class trained on is the one with the most negative gradient. A likely class with smoothing
    may have a positive one: there it is the label, if with it the others lie on a line.
    """
    lowest = g.argmin(1)

    def moved(shift: int) -> torch.Tensor:
        if shift == 0 or labels.ndim < 2:
            return target
        rolled = torch.full_like(labels, IGNORE_INDEX)
        if shift > 0:
            rolled[:, :-shift] = labels[:, shift:]
        else:
            rolled[:, -shift:] = labels[:, :shift]
        return rolled.reshape(-1).to(target.device)

    def explained(shifted: torch.Tensor) -> torch.Tensor:
        fits = lowest == shifted
        doubtful = active & ~fits & (shifted >= 0) & (shifted < g.shape[1])
        if g.shape[1] > 3 and bool(doubtful.any()):
            _, smoothing, residuals = _lines(z[doubtful], g[doubtful], shifted[doubtful])
            fits[doubtful] = (residuals < LINE_RESIDUAL) & (smoothing < 1)
        return fits

    def share(shifted: torch.Tensor) -> float:
        known = active & (shifted != IGNORE_INDEX)
        return float(explained(shifted)[known].double().mean()) if bool(known.any()) else 0.0

    tried = [0, *(s for s in TRIED_SHIFTS if s != 0 and labels.ndim == 2 and labels.shape[1] > 3)]
    shares = {shift: share(moved(shift)) for shift in tried}
    best = max(tried, key=lambda shift: shares[shift])
    if shares[best] < shares[0] + 0.2:
        best = 0
    shifted = moved(best)
    return torch.where(explained(shifted), shifted, lowest), shifted, best, shares[best]


def _read_kind(
    probe: TargetProbe,
    z: torch.Tensor,
    g: torch.Tensor,
    trained: torch.Tensor,
    target: torch.Tensor,
) -> None:
    k = z.shape[1]
    if probe.outputs == "probabilities":
        probe.kind, sign = _match(z, g, trained, _PROBABILITY_LOSSES)
        probe.sign *= sign
        if probe.kind == "unknown" and _line(z, g, trained)[2] < LINE_RESIDUAL:
            probe.kind = "softmax before cross-entropy"
        return
    off_target = g.scatter(1, trained[:, None], 0.0).abs().amax(1)
    if k > 1 and bool((off_target <= SILENT * g.abs().amax(1)).all()):
        if probe.outputs == "log-probabilities":
            probe.kind = "cross-entropy"
            probe.scale, probe.smoothing = float(-g.amin(1).sum()), 0.0
            probe.weights_vary = _varies(-g.amin(1))
        else:
            probe.kind = "negative log-likelihood without log_softmax"
        return
    weights, smoothing, residual = _line(z, g, trained)
    if residual < LINE_RESIDUAL:
        probe.kind = "cross-entropy"
        probe.scale, probe.smoothing = float(weights.sum()), smoothing
        probe.weights_vary = _varies(weights)
        likelihood = z.softmax(1).gather(1, trained[:, None])[:, 0]
        if probe.weights_vary and not _varies(weights / likelihood):
            probe.kind = "negative log-likelihood of probabilities"  # it lacks the logarithm
            probe.scale = None
        return
    probe.kind, sign = _match(z, g, target.clamp(0, k - 1), _LOGIT_LOSSES)
    probe.sign *= sign
    if probe.kind != "unknown":
        probe.aligned = 1.0  # it was found with the labels


def _varies(weights: torch.Tensor) -> bool:
    middle = weights.median()
    return bool(((weights - middle).abs() > 0.02 * middle.abs()).any())


def _line(
    z: torch.Tensor, g: torch.Tensor, trained: torch.Tensor
) -> tuple[torch.Tensor, float, float]:
    """(weight of each position, label smoothing, median distance to the line)."""
    p = z.softmax(1)
    k = z.shape[1]
    others = torch.ones_like(g, dtype=torch.bool).scatter(1, trained[:, None], False)
    if k == 2:  # one point a position: the line goes through all positions
        x, y = p[others], g[others]
        design = torch.stack([x, torch.ones_like(x)], 1)
        solution = torch.linalg.lstsq(design, y[:, None]).solution[:, 0]
        slope, intercept = solution.tolist()
        if slope <= 0:
            return torch.zeros(len(g)).double(), 0.0, 1.0
        smoothing = max(-intercept * k / slope, 0.0)
        fitted = design @ solution
        if float((fitted - y).norm() / y.norm().clamp_min(1e-30)) > LINE_RESIDUAL:
            weights = y / x  # class weights: every position has a line of its own through 0
            same = [weights[trained == c] for c in (0, 1) if bool((trained == c).any())]
            uneven = max(float((w - w.mean()).abs().max() / w.mean().abs()) for w in same)
            return weights, 0.0, uneven
        return torch.full((len(g),), slope).double(), smoothing, 0.0
    slope, smoothing, residual = _lines(z, g, trained)
    middle = float(smoothing.median())
    uneven = slope.abs() * (smoothing - middle).abs() / k / g.norm(dim=1).clamp_min(1e-30)
    healthy = float(slope.median()) > 0
    # among three classes two others always lie on a line: the smoothing must also be one
    return slope, middle, float((residual + uneven).median()) if healthy else 1.0


def _lines(
    z: torch.Tensor, g: torch.Tensor, trained: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each position: weight, smoothing and distance to the line, if `trained` is its class."""
    p, k = z.softmax(1), z.shape[1]
    others = torch.ones_like(g, dtype=torch.bool).scatter(1, trained[:, None], False)
    count = k - 1
    mean_x, mean_y = (p * others).sum(1) / count, (g * others).sum(1) / count
    dx = (p - mean_x[:, None]) * others
    dy = (g - mean_y[:, None]) * others
    slope = (dx * dy).sum(1) / dx.square().sum(1).clamp_min(1e-30)
    intercept = mean_y - slope * mean_x
    distance = (dy - slope[:, None] * dx).norm(dim=1)
    size = g.norm(dim=1).clamp_min(1e-30)
    safe = torch.where(slope.abs() > 1e-30, slope, torch.full_like(slope, 1e-30))
    smoothing = (-intercept * k / safe).clamp(0, 1)
    at_target = g.gather(1, trained[:, None])[:, 0]
    expected = slope * (p.gather(1, trained[:, None])[:, 0] - 1 + smoothing) + intercept
    return slope, smoothing, (distance + (at_target - expected).abs()) / size


def _one_hot(target: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return functional.one_hot(target, z.shape[1]).to(z)


_LOGIT_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softmax before cross-entropy": lambda z, t: functional.cross_entropy(z.softmax(1), t),
    "sigmoid before cross-entropy": lambda z, t: functional.cross_entropy(z.sigmoid(), t),
    "negative log-likelihood of probabilities": lambda z, t: functional.nll_loss(z.softmax(1), t),
    "mean squared error for classes": lambda z, t: functional.mse_loss(
        z.softmax(1), _one_hot(t, z)
    ),
    "mean squared error of logits": lambda z, t: functional.mse_loss(z, _one_hot(t, z)),
    "mean absolute error for classes": lambda z, t: functional.l1_loss(
        z.softmax(1), _one_hot(t, z)
    ),
    "binary cross-entropy": lambda z, t: functional.binary_cross_entropy_with_logits(
        z, _one_hot(t, z)
    ),
    "binary cross-entropy of probabilities": lambda z, t: functional.binary_cross_entropy(
        z.softmax(1), _one_hot(t, z)
    ),
    "softmax over the batch": lambda z, t: functional.nll_loss(z.log_softmax(0), t),
}
_PROBABILITY_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softmax before cross-entropy": lambda p, t: functional.cross_entropy(p, t),
    "cross-entropy": lambda p, t: functional.nll_loss(p.log(), t),
    "negative log-likelihood of probabilities": lambda p, t: functional.nll_loss(p, t),
    "mean squared error for classes": lambda p, t: functional.mse_loss(p, _one_hot(t, p)),
    "binary cross-entropy of probabilities": lambda p, t: functional.binary_cross_entropy(
        p.clamp(1e-6, 1 - 1e-6), _one_hot(t, p)
    ),
}
HEALTHY_KINDS = ("cross-entropy", "binary cross-entropy", "squared error", "absolute error")


def _match(
    z: torch.Tensor,
    g: torch.Tensor,
    target: torch.Tensor,
    losses: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]],
) -> tuple[str, int]:
    """(the loss that g is the gradient of, 1; -1 where it is negated)."""
    for name, loss in losses.items():
        leaf = z.clone().requires_grad_()
        with torch.enable_grad():
            (reference,) = torch.autograd.grad(loss(leaf, target), leaf)
        cosine = _cosine(reference, g)
        if abs(cosine) > SAME_DIRECTION:
            return name, 1 if cosine > 0 else -1
    return "unknown", 1


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(functional.cosine_similarity(one.flatten(), other.flatten(), dim=0))


def read_single(
    probe: TargetProbe,
    z: torch.Tensor,
    g: torch.Tensor,
    side: Logits,
    labels: torch.Tensor,
    task: Task,
) -> None:
    """Fill in what the gradient g [P] at outputs z [P] says of a loss with one number a target."""
    y = side.labels.to(z)
    n = len(z)
    probe.supervised = n
    probe.active = int((g != 0).sum())
    if not probe.active:
        probe.missing = n
        return
    widths = n / max(len(labels), 1)
    probe.allowed_scales = [widths] if widths > 1 else []
    if task == "regression":
        _read_regression(probe, z, g, y)
        return
    candidates = {
        "binary cross-entropy": (z if probe.outputs == "logits" else z.clamp(1e-6, 1 - 1e-6)),
    }
    error = (
        z.sigmoid() - y
        if probe.outputs == "logits"
        else (z - y) / (candidates["binary cross-entropy"] * (1 - z)).clamp_min(1e-6)
    )
    weights = g / torch.where(error.abs() > 1e-9, error, torch.full_like(error, 1e-9))
    if _even_by_class(weights, y):
        probe.kind = "binary cross-entropy"
        probe.sign = 1 if float(weights.median()) > 0 else -1
        probe.scale = abs(float(weights.sum()))
        probe.weights_vary = _varies(weights)
        probe.aligned = 1.0
        return
    for name, reference in (
        ("sigmoid before binary cross-entropy", _twice(z, y, probe.outputs)),
        ("mean squared error for classes", _squared(z, y, probe.outputs)),
        ("mean squared error of logits", z - y),
    ):
        cosine = _cosine(reference, g)
        if abs(cosine) > SAME_DIRECTION:
            probe.kind, probe.sign = name, 1 if cosine > 0 else -1
            return
    smoothed = _smoothing_of(z, g, y) if probe.outputs == "logits" else None
    if smoothed is not None:
        probe.kind = "binary cross-entropy"
        probe.scale, probe.smoothing = smoothed
        probe.aligned = 1.0
        return
    probe.aligned = float(((g < 0) == (y > 0.5)).double().mean())


def _even_by_class(weights: torch.Tensor, y: torch.Tensor) -> bool:
    for kind in (0.0, 1.0):
        own = weights[y == kind]
        if len(own) and not bool(((own - own.median()).abs() <= 0.02 * own.median().abs()).all()):
            return False
    return True


def _twice(z: torch.Tensor, y: torch.Tensor, outputs: str) -> torch.Tensor:
    if outputs == "probabilities":
        return z.sigmoid() - y
    p = z.sigmoid()
    return (p.sigmoid() - y) * p * (1 - p)


def _squared(z: torch.Tensor, y: torch.Tensor, outputs: str) -> torch.Tensor:
    if outputs == "probabilities":
        return z - y
    p = z.sigmoid()
    return (p - y) * p * (1 - p)


def _smoothing_of(z: torch.Tensor, g: torch.Tensor, y: torch.Tensor) -> tuple[float, float] | None:
    """(scale, smoothing) where g is that of a binary cross-entropy with smoothed labels."""
    design = torch.stack([z.sigmoid(), y, torch.ones_like(y)], 1)
    solution = torch.linalg.lstsq(design, g[:, None]).solution[:, 0]
    if float((design @ solution - g).norm() / g.norm()) > LINE_RESIDUAL:
        return None
    slope, at_label, _ = solution.tolist()
    return slope * len(z), 1 + at_label / slope


def _read_regression(probe: TargetProbe, z: torch.Tensor, g: torch.Tensor, y: torch.Tensor) -> None:
    n = len(z)
    if n < 4:
        return
    design = torch.stack([z, y, torch.ones_like(y)], 1)
    solution = torch.linalg.lstsq(design, g[:, None]).solution[:, 0]
    residual = float((design @ solution - g).norm() / g.norm())
    slope, at_label, _ = solution.tolist()
    spread = float(y.std()) > 0
    if residual < LINE_RESIDUAL:
        probe.kind = "squared error"
        probe.sign = 1 if slope > 0 else -1
        probe.scale = abs(slope) * n / 2
        if spread:
            probe.aligned = 1.0 if -at_label / slope > 1e-3 else 0.0
        return
    agreement = float((g.sign() == (z - y).sign()).double().mean())
    probe.sign = -1 if agreement < 0.1 else 1
    probe.aligned = max(agreement, 1 - agreement)
    even = float((g.abs() - g.abs().median()).abs().max() / g.abs().median().clamp_min(1e-30))
    if even < LINE_RESIDUAL and probe.aligned > 0.9:
        probe.kind, probe.scale = "absolute error", float(g.abs().sum())


def read_calls(probe: TargetProbe, g: torch.Tensor, side: Logits, calls: list[int]) -> None:
    """With micro-batches: the largest weight of a position over the smallest, between calls.

    Where each micro-batch is averaged by itself, positions of short ones weigh more.
    """
    if len(calls) < 2 or probe.kind != "cross-entropy" or probe.weights_vary is False:
        return
    rows = side.rows.to(g.device)
    p_weights, counts, start = [], [], 0
    for size in calls:
        within = (rows >= start) & (rows < start + size)
        own = g[within].abs().sum(1)
        active = own > 0
        if bool(active.any()):
            weight = (probe.sign * g[within][active]).amin(1).abs()
            p_weights.append(float(weight.max()))
            counts.append(int(active.sum()))
        start += size
    if len(set(counts)) < 2:
        return
    products = [weight * count for weight, count in zip(p_weights, counts, strict=True)]
    if max(products) / min(products) < 1.25:
        probe.uneven_calls = max(counts) / min(counts)


def is_local(
    subject: Subject,
    site: nn.Module,
    batch: Batch,
    optimizer: Optimizer,
    task: Task,
    captured: Captured,
    undone: Callable[[], Any],
    scale_of: Callable[[], float],
) -> bool | None:
    """Does the gradient of one half of the rows keep its direction when other labels change?"""
    labels = labels_of(batch)
    assert labels is not None
    half = len(labels) // 2
    if half < 2 or captured.calls != [len(labels)] or len(captured.logits) != len(labels):
        return None
    changed = labels.clone()
    if task == "regression":
        changed[half:] += 3 * float(labels.float().std()) + 1
    elif labels.ndim == 1 or task == "multilabel":
        changed[half:] = labels[half:].roll(1, 0)
    else:
        return None
    again_made = iter([captured.logits])
    with undone():
        again = capture(
            subject,
            site,
            with_labels(batch, changed),
            optimizer,
            lambda own: next(again_made),
            scale_of,
        )
    if again is None or again.gradient.shape != captured.gradient.shape:
        return None
    before, after = captured.gradient[:half], again.gradient[:half]
    if not float(before.norm()) or not bool(after.isfinite().all()):
        return None
    return _cosine(before, after) > SAME_DIRECTION
