"""What the gradient says of a loss with one number a target: regression, binary, multi-label."""

import torch

from ..outputs import OutputKind
from ..tasks import Task
from .lines import LINE_RESIDUAL, VARIATION, vary
from .losses import direction
from .probe import TargetProbe


def read_numbers(
    probe: TargetProbe, z: torch.Tensor, g: torch.Tensor, y: torch.Tensor, rows: int, task: Task
) -> None:
    """Fill in what the gradient g [P] at outputs z [P] says against labels y [P] of some rows."""
    n = len(z)
    probe.supervised = n
    probe.active = int((g != 0).sum())
    if not probe.active:
        probe.missing = n
        return
    widths = n / max(rows, 1)
    probe.allowed_scales = [widths] if widths > 1 else []
    if task == "regression":
        _read_regression(probe, z, g, y)
    else:
        _read_binary(probe, z, g, y)


def _read_binary(probe: TargetProbe, z: torch.Tensor, g: torch.Tensor, y: torch.Tensor) -> None:
    if probe.outputs == "logits":
        error = z.sigmoid() - y
    else:
        error = (z - y) / (z.clamp(1e-6, 1 - 1e-6) * (1 - z)).clamp_min(1e-6)
    weights = g / torch.where(error.abs() > 1e-9, error, torch.full_like(error, 1e-9))
    if _even_by_class(weights, y):
        probe.kind = "binary cross-entropy"
        probe.sign = 1 if float(weights.median()) > 0 else -1
        probe.scale = abs(float(weights.sum()))
        probe.weights_vary = vary(weights)
        probe.aligned = 1.0
        return
    for name, reference in (
        ("sigmoid before binary cross-entropy", _twice(z, y, probe.outputs)),
        ("mean squared error for classes", _squared(z, y, probe.outputs)),
        ("mean squared error of logits", z - y),
    ):
        if sign := direction(reference, g):
            probe.kind, probe.sign = name, sign
            return
    smoothed = _smoothing_of(z, g, y) if probe.outputs == "logits" else None
    if smoothed is not None:
        probe.kind = "binary cross-entropy"
        probe.scale, probe.smoothing = smoothed
        probe.aligned = 1.0
        return
    probe.aligned = float(((g < 0) == (y > 0.5)).double().mean())


def _even_by_class(weights: torch.Tensor, y: torch.Tensor) -> bool:
    of_classes = [weights[y == kind] for kind in (0.0, 1.0)]
    return not any(vary(own) for own in of_classes if len(own))


def _twice(z: torch.Tensor, y: torch.Tensor, outputs: OutputKind) -> torch.Tensor:
    if outputs == "probabilities":
        return z.sigmoid() - y
    p = z.sigmoid()
    return (p.sigmoid() - y) * p * (1 - p)


def _squared(z: torch.Tensor, y: torch.Tensor, outputs: OutputKind) -> torch.Tensor:
    if outputs == "probabilities":
        return z - y
    p = z.sigmoid()
    return (p - y) * p * (1 - p)


def _smoothing_of(z: torch.Tensor, g: torch.Tensor, y: torch.Tensor) -> tuple[float, float] | None:
    """(scale, smoothing) where g is that of a binary cross-entropy with smoothed labels."""
    slope, at_label, residual = _fit_plane(z.sigmoid(), y, g)
    return None if residual > LINE_RESIDUAL else (slope * len(z), 1 + at_label / slope)


def _fit_plane(x: torch.Tensor, y: torch.Tensor, g: torch.Tensor) -> tuple[float, float, float]:
    """Slopes in x and y of the plane through g, and its relative distance."""
    design = torch.stack([x, y, torch.ones_like(y)], 1)
    solution = torch.linalg.lstsq(design, g[:, None]).solution[:, 0]
    slope, at_label, _ = solution.tolist()
    return slope, at_label, float((design @ solution - g).norm() / g.norm())


def _read_regression(probe: TargetProbe, z: torch.Tensor, g: torch.Tensor, y: torch.Tensor) -> None:
    n = len(z)
    if n < 4:
        return
    slope, at_label, residual = _fit_plane(z, y, g)
    if residual < LINE_RESIDUAL:
        probe.kind = "squared error"
        probe.sign = 1 if slope > 0 else -1
        probe.scale = abs(slope) * n / 2
        if float(y.std()) > 0:
            probe.aligned = 1.0 if -at_label / slope > 1e-3 else 0.0
        return
    if smoothed := _smoothing_of(z, g, y):
        scale, _ = smoothed
        probe.kind = "binary cross-entropy"
        probe.sign = 1 if scale > 0 else -1
        probe.scale = abs(scale)
        probe.aligned = 1.0
        return
    agreement = float((g.sign() == (z - y).sign()).double().mean())
    probe.sign = -1 if agreement < 0.1 else 1
    probe.aligned = max(agreement, 1 - agreement)
    even = float((g.abs() - g.abs().median()).abs().max() / g.abs().median().clamp_min(1e-30))
    if even < VARIATION and probe.aligned > 0.9:
        probe.kind, probe.scale = "absolute error", float(g.abs().sum())
