"""The answer of the sanity check: checks, causes and numbers, as text or as a dict."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ..provenance.records import finite
from ..verdict.judging import Check
from .rules.causes import CAUSES

LAYERS_SHOWN = 12


@dataclass
class Figures:
    """What the table shows first. Losses in nats (or the loss's own unit); norms are L2.

    initial_loss, uniform_loss: before any step, and ln K; overfit: losses of one batch along
    `overfit_steps` steps, at `overfit_rate` (None: the user's); blanked: the same with zeroed
    inputs; gradient_norms: by parameter, at the first step.
    """

    task: str = "unknown"
    initial_loss: float | None = None
    uniform_loss: float | None = None
    overfit: list[float] = field(default_factory=list)
    overfit_steps: int = 0
    overfit_rate: float | None = None
    blanked: list[float] = field(default_factory=list)
    gradient_norms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SanityReport:
    """state_before, state_after: sha256 of everything that the check could have changed."""

    checks: list[Check]
    figures: Figures
    state_before: str
    state_after: str

    @property
    def failed(self) -> list[str]:
        """Ids of the checks that fail, in the order of `checks`."""
        return [check.id for check in self.checks if check.status == "fail"]

    @property
    def passed(self) -> bool:
        """No check fails. What does not apply is `not_judged` and named with its reason."""
        return not self.failed

    @property
    def restored(self) -> bool:
        """Is everything that the functions can reach as it was found?"""
        return self.state_before == self.state_after

    @property
    def causes(self) -> list[str]:
        """One sentence for each check that fails, the most likely cause first."""
        failed = {check.id: check for check in self.checks if check.status == "fail"}
        return [_with_evidence(cause, failed[name]) for name, cause in CAUSES if name in failed]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the same bytes for the same run."""
        figures = asdict(self.figures)
        return {
            "passed": self.passed,
            "failed": self.failed,
            "causes": self.causes,
            "checks": [asdict(check) for check in self.checks],
            "figures": _finite(figures),
            "state_before": self.state_before,
            "state_after": self.state_after,
        }

    def __str__(self) -> str:
        lines = [f"sanity check: {'PASS' if self.passed else 'FAIL'} ({self.figures.task})", ""]
        lines += _figures(self.figures)
        width = max(len(check.id) for check in self.checks)
        judged = [check for check in self.checks if check.status != "not_judged"]
        order = {"fail": 0, "warn": 1, "pass": 2}
        lines += ["", f"{'check':<{width}}  status  value"]
        for check in sorted(judged, key=lambda one: order[one.status]):
            lines.append(f"{check.id:<{width}}  {check.status:<6}  {check.message}")
        lines += ["", "not judged:"]
        reasons: dict[str, list[str]] = {}
        for check in self.checks:
            if check.status == "not_judged":
                reasons.setdefault(check.message, []).append(check.id)
        lines += [f"  {', '.join(ids)}: {reason}" for reason, ids in reasons.items()]
        if not self.restored:
            lines += [
                "",
                "something that was examined is not as it was found: do not train with it",
            ]
        for rank, cause in enumerate(self.causes, start=1):
            lines.append(f"cause {rank}: {cause}")
        for check in self.checks:
            if check.status in ("fail", "warn"):
                lines.append(f"remedy for {check.id}: {check.remedy}")
        return "\n".join(lines)


def _with_evidence(cause: str, check: Check) -> str:
    named = ", ".join(check.evidence[:3]) + (", ..." if len(check.evidence) > 3 else "")
    note = check.message.partition("; ")[2]
    details = "; ".join(part for part in (note, named) if part)
    return f"{cause} ({details})" if details else cause


def _figures(figures: Figures) -> list[str]:
    lines = []
    if figures.initial_loss is not None:
        against = f", ln K {figures.uniform_loss:.4f}" if figures.uniform_loss is not None else ""
        lines.append(f"initial loss    {figures.initial_loss:.4f}{against}")
    if figures.overfit:
        at = "your rate" if figures.overfit_rate is None else f"rate {figures.overfit_rate:g}"
        path = " ".join(f"{loss:.3g}" for loss in _thinned(figures.overfit))
        lines.append(f"one batch       {path}  ({figures.overfit_steps} steps, {at})")
    if figures.blanked:
        path = " ".join(f"{loss:.3g}" for loss in _thinned(figures.blanked))
        lines.append(f"zeroed inputs   {path}")
    norms = list(figures.gradient_norms.items())
    if norms:
        lines.append("gradient norms, first step:")
        shown = norms
        if len(norms) > LAYERS_SHOWN:
            half = LAYERS_SHOWN // 2
            shown = [*norms[:half], *norms[-half:]]
        lines += [f"  {norm:<10.3g} {name}" for name, norm in shown]
        if len(shown) < len(norms):
            lines.append(f"  (first and last of {len(norms)}; all are in to_dict())")
    return lines


def _thinned(values: list[float]) -> list[float]:
    if len(values) <= 6:
        return values
    step = (len(values) - 1) / 5
    return [values[round(index * step)] for index in range(6)]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return finite(value) if isinstance(value, float) else value
