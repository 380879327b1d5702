"""What the gradient at the logits says of the loss: the record that all readers fill in."""

from dataclasses import dataclass, field

from ..outputs import OutputKind


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
    outputs: OutputKind = "logits"
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
