"""What the gradient says of a loss over classes: what it trains, how strongly, and what it is."""

import torch

from ..batches import IGNORE_INDEX, Batch, input_of
from ..tasks import Task, copies_input
from .alignment import align
from .lines import fit_line, vary
from .losses import OF_LOGITS, OF_PROBABILITIES, recognise
from .probe import TargetProbe

SILENT = 1e-7
"""A position whose gradient is below this share of the largest gets none."""


def read_classes(
    probe: TargetProbe,
    z: torch.Tensor,
    g: torch.Tensor,
    labels: torch.Tensor,
    batch: Batch,
    task: Task,
) -> None:
    """Fill in what the gradient g [P, K] at logits z [P, K] says against labels of P elements."""
    target = labels.reshape(-1).to(g.device)
    sizes = g.abs().amax(1)
    active = sizes > SILENT * max(float(sizes.max()), 1e-30)
    if float(sizes.max()) == 0:
        active = torch.zeros_like(active)
    probe.active = int(active.sum())
    if not probe.active:
        probe.supervised = int((target != IGNORE_INDEX).sum())
        probe.missing = probe.supervised
        return
    probe.sign = _sign(z[active], g[active], target[active])
    g = probe.sign * g
    found = align(z, g, active, labels)
    target, probe.shift, probe.aligned = found.target, found.shift, found.share
    supervised = target != IGNORE_INDEX
    probe.supervised = int(supervised.sum())
    missing = supervised & ~active
    probe.missing, probe.extra = int(missing.sum()), int((active & ~supervised).sum())
    classes = torch.unique(target[missing])
    if len(classes) == 1 and not bool((active & (target == classes[0])).any()):
        probe.missing_class = int(classes[0])
        probe.missing_is_padding = _is_padding(batch, labels, missing, active, task)
    copied = copies_input(batch)
    if copied is not None and task == "lm":
        probe.ahead = probe.shift + copied
    _read_kind(probe, z[active], g[active], found.trained[active], target[active])
    if task in ("lm", "tagging") and probe.scale is not None:
        probe.allowed_scales = [probe.active / max(len(labels), 1)]


def _sign(z: torch.Tensor, g: torch.Tensor, target: torch.Tensor) -> int:
    """-1 where g is a gradient that drives the label's class down."""
    one_entry = bool(((g != 0).sum(1) == 1).all())
    known = (target >= 0) & (target < g.shape[1])
    if one_entry or g.shape[1] == 2:
        at_label = g[known].gather(1, target[known, None])
        return -1 if float((at_label > 0).double().mean()) > 0.9 else 1
    straight = [fit_line(z, s * g, (s * g).argmin(1)).fits for s in (1, -1)]
    return -1 if straight == [False, True] else 1


def _is_padding(
    batch: Batch, labels: torch.Tensor, missing: torch.Tensor, active: torch.Tensor, task: Task
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


def _read_kind(
    probe: TargetProbe,
    z: torch.Tensor,
    g: torch.Tensor,
    trained: torch.Tensor,
    target: torch.Tensor,
) -> None:
    """Fill in kind, scale and smoothing from the positions that have a gradient."""
    k = z.shape[1]
    if probe.outputs == "probabilities":
        probe.kind, sign = recognise(z, g, trained, OF_PROBABILITIES)
        probe.sign *= sign
        if probe.kind == "unknown" and fit_line(z, g, trained).fits:
            probe.kind = "softmax before cross-entropy"
        return
    off_target = g.scatter(1, trained[:, None], 0.0).abs().amax(1)
    if k > 1 and bool((off_target <= SILENT * g.abs().amax(1)).all()):
        if probe.outputs == "log-probabilities":
            probe.kind = "cross-entropy"
            probe.scale, probe.smoothing = float(-g.amin(1).sum()), 0.0
            probe.weights_vary = vary(-g.amin(1))
        else:
            probe.kind = "negative log-likelihood without log_softmax"
        return
    line = fit_line(z, g, trained)
    if line.fits:
        probe.kind = "cross-entropy"
        probe.scale, probe.smoothing = float(line.weights.sum()), line.smoothing
        probe.weights_vary = vary(line.weights)
        likelihood = z.softmax(1).gather(1, trained[:, None])[:, 0]
        if probe.weights_vary and not vary(line.weights / likelihood):
            probe.kind = "negative log-likelihood of probabilities"  # it lacks the logarithm
            probe.scale = None
        return
    probe.kind, sign = recognise(z, g, target.clamp(0, k - 1), OF_LOGITS)
    probe.sign *= sign
    if probe.kind != "unknown":
        probe.aligned = 1.0  # it was found with the labels
