"""The course of the examination: what is asked, in which order."""

from ...verdict.judging import Measured
from .data import examine_data
from .evaluation import examine_evaluation
from .labels import examine_labels
from .memorising import examine_memorising
from .model import examine_initial_loss, examine_outputs, examine_settings
from .scene import Scene
from .steps import take_first_step, take_steps
from .targets import examine_targets
from .values import Values
from .wiring import examine_wiring

NEEDS_STEPS = ("overfit", "rate_learns", "stale_gradients", "without_gradient", "unchanged")


def examine(scene: Scene) -> Values:
    """A value, or the reason for none, for every rule that applies."""
    found = examine_settings(scene)
    found |= examine_outputs(scene)
    if scene.runs:
        found |= examine_initial_loss(scene)
        found |= take_first_step(scene)
    if scene.runs:
        found |= take_steps(scene)
        found |= examine_targets(scene)
        found |= examine_wiring(scene)
        found |= examine_memorising(scene)
    else:
        note = Measured(None, note="the training step raises an error")
        found |= dict.fromkeys(NEEDS_STEPS, note)
    found |= examine_data(scene)
    found |= examine_evaluation(scene)
    found |= examine_labels(scene)
    return found
