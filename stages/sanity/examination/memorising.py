"""Is one batch learned by heart: at the user's rate, at another, without its inputs?"""

import math
from collections.abc import Callable, Sequence

from ...verdict.judging import Measured
from ..batches import Batch, size_of
from ..limits import LIMITS
from ..memorising import Memorised, batch_loss, blanked, memorise, rates_for
from .scene import Scene
from .steps import OBSERVED_STEPS, judge_steps
from .values import Values, sentence

BLANK_STEPS = 50
"""Steps on zeroed inputs."""


def examine_memorising(scene: Scene) -> Values:
    """Learn the first batch; its rates say how high those of the observed steps would get."""
    try:
        with scene.world.undone():
            _loss_of(scene, scene.batch)()
    except Exception as error:
        return judge_steps(scene, 0.0) | {"overfit": Measured(None, note=sentence(error))}
    user = _attempt(scene, None, scene.batch, scene.given.steps)
    found = judge_steps(scene, max(user.rates, default=0.0) if user else 0.0)
    if user is None:
        return found
    others = _at_other_rates(scene) if not user.learned >= enough(scene.adapted) else []
    best = user
    if others and others[-1].learned >= enough(scene.adapted):
        best = others[-1]
    blank = None
    if size_of(scene.batch) >= 4:
        blank = _attempt(scene, best.rate, blanked(scene.batch), min(best.steps, BLANK_STEPS))
    one_label_a_row = scene.kind not in ("lm", "tagging")
    found |= judge_memorised(user, others, blank, scene.adapted, one_label_a_row)
    lowest = schedule_floor(user.rates, OBSERVED_STEPS)
    if lowest is not None and not scene.own_optimizer:
        found["schedule"] = lowest
    figures = scene.figures
    figures.overfit, figures.overfit_steps = best.losses, best.steps
    figures.overfit_rate = best.rate
    figures.blanked = blank.losses if blank is not None else []
    return found


def _attempt(scene: Scene, rate: float | None, batch: Batch, steps: int) -> Memorised | None:
    """One run from the user's state, at a rate of the harness's own if given; None if it raises."""
    smoothing, floor = scene.given.label_smoothing, 0.0
    if smoothing and scene.classes:
        floor = -math.log(1 - smoothing + smoothing / scene.classes)
    with scene.world.undone():
        try:
            measure = _loss_of(scene, batch)
            return memorise(scene.subject, batch, scene.optimizer, measure, steps, rate, floor)
        except Exception:
            return None


def _loss_of(scene: Scene, batch: Batch) -> Callable[[], float]:
    shift = scene.assumed_shift
    if scene.probe is not None and scene.probe.aligned:
        shift = max(scene.probe.shift, 0)
    return batch_loss(scene.subject, batch, scene.kind, scene.given.num_classes, shift)


def _at_other_rates(scene: Scene) -> list[Memorised]:
    """Runs at rates of the harness's own, up to the first that does."""
    tried = []
    for rate in rates_for(scene.optimizer):
        other = _attempt(scene, rate, scene.batch, scene.given.steps)
        if other is None:
            continue
        tried.append(other)
        if other.learned >= enough(scene.adapted):
            break
    return tried


def judge_memorised(
    user: Memorised,
    others: Sequence[Memorised],
    blank: Memorised | None,
    adapted: bool,
    one_label_a_row: bool,
) -> Values:
    """others: runs at rates of the harness's own, tried where the user's did not do.

    adapted: most weights are frozen. one_label_a_row: of tokens, their place alone tells much.
    """
    found: Values = {}
    runs = [user, *others]
    learned = {id(one): 0.0 if math.isnan(one.learned) else one.learned for one in runs}
    best = max(runs, key=lambda one: learned[id(one)])
    note = f"loss {user.losses[0]:.4g} to {user.final:.4g} in {user.steps} steps"
    name = "overfit_adapted" if adapted else "overfit"
    found[name] = Measured(learned[id(best)], user.steps, note)
    if learned[id(best)] >= enough(adapted):
        found["rate_learns"] = Measured(learned[id(user)], user.steps, note)
    elif others:
        found["rate_learns"] = Measured(None, note="no rate learns the batch")
    if blank is not None and math.isfinite(blank.final) and one_label_a_row:
        real = best.losses[min(len(blank.losses), len(best.losses)) - 1]  # after as many steps
        start, reducible = best.losses[0] - best.floor, blank.final - best.floor
        if reducible > 0.05 * start and start - (real - best.floor) > 0.2 * start:
            ratio = max(real - best.floor, 0.0) / reducible
            found["input_independence"] = Measured(ratio, blank.steps)
    return found


def enough(adapted: bool) -> float:
    """Share of a batch's loss that must be gone."""
    return LIMITS["sanity.min_learned_adapted" if adapted else "sanity.min_learned"]


def schedule_floor(rates: Sequence[float], window: int) -> Measured | None:
    """The lowest rate over the highest, in the steps that follow the highest of the first ones."""
    first = list(rates[: 2 * window])
    if len(first) < 4 or max(first) <= 0:
        return None
    top = first.index(max(first[:window]))
    after = first[top : top + window]
    if max(after) <= 0:
        return None
    return Measured(min(after) / max(after), len(after), f"{max(after):.3g} to {min(after):.3g}")
