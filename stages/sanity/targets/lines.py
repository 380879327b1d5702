"""Is this the gradient of a cross-entropy, and with which weights and smoothing?

Over all classes but the target it is a straight line in the probabilities (see the package).
"""

from dataclasses import dataclass

import torch

LINE_RESIDUAL = 0.02
"""Relative distance to the line that a cross-entropy's gradient stays below (float32: 1e-6)."""
VARIATION = 0.02
"""Relative distance to their median within which weights are one and the same."""


@dataclass(frozen=True)
class Line:
    """weights: [P], of each position; smoothing, distance: of labels, and to the line: medians."""

    weights: torch.Tensor
    smoothing: float
    distance: float

    @property
    def fits(self) -> bool:
        return self.distance < LINE_RESIDUAL


def fit_line(z: torch.Tensor, g: torch.Tensor, trained: torch.Tensor) -> Line:
    """The line of a gradient g [P, K] at logits z [P, K], where `trained` [P] are the classes."""
    k = z.shape[1]
    if k == 2:
        return _fit_two_classes(z, g, trained)
    slope, smoothing, residual = fit_positions(z, g, trained)
    middle = float(smoothing.median())
    uneven = slope.abs() * (smoothing - middle).abs() / k / g.norm(dim=1).clamp_min(1e-30)
    healthy = float(slope.median()) > 0
    # among three classes two others always lie on a line: the smoothing must also be one
    return Line(slope, middle, float((residual + uneven).median()) if healthy else 1.0)


def _fit_two_classes(z: torch.Tensor, g: torch.Tensor, trained: torch.Tensor) -> Line:
    """One point a position: the line goes through all positions."""
    others = _all_but(trained, g)
    x, y = z.softmax(1)[others], g[others]
    design = torch.stack([x, torch.ones_like(x)], 1)
    solution = torch.linalg.lstsq(design, y[:, None]).solution[:, 0]
    slope, intercept = solution.tolist()
    if slope <= 0:
        return Line(torch.zeros(len(g)).double(), 0.0, 1.0)
    smoothing = max(-intercept * 2 / slope, 0.0)
    fitted = design @ solution
    if float((fitted - y).norm() / y.norm().clamp_min(1e-30)) > LINE_RESIDUAL:
        weights = y / x  # class weights: every position has a line of its own through 0
        same = [weights[trained == c] for c in (0, 1) if bool((trained == c).any())]
        uneven = max(float((w - w.mean()).abs().max() / w.mean().abs()) for w in same)
        return Line(weights, 0.0, uneven)
    return Line(torch.full((len(g),), slope).double(), smoothing, 0.0)


def fit_positions(
    z: torch.Tensor, g: torch.Tensor, trained: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each position: weight, smoothing and distance to the line, if `trained` is its class."""
    p, k = z.softmax(1), z.shape[1]
    others = _all_but(trained, g)
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


def _all_but(trained: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(g, dtype=torch.bool).scatter(1, trained[:, None], False)


def vary(weights: torch.Tensor) -> bool:
    middle = weights.median()
    return bool(((weights - middle).abs() > VARIATION * middle.abs()).any())
