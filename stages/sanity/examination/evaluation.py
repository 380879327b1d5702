"""What the user's evaluation does, and whether its inputs are those that the model trains on."""

from collections.abc import Sequence

import torch

from ...verdict.judging import Measured
from ..batches import Batch, input_of
from ..evaluation import Evaluation, evaluate
from ..input_scale import scale_difference, scale_of_inputs
from ..running import mode_after_evaluation
from .scene import Scene
from .values import Values, flag, sentence

Inputs = list[torch.Tensor]


def examine_evaluation(scene: Scene) -> Values:
    pairs = [(_inputs(scene.batches), _inputs(scene.val_batches))]
    seen = _evaluate(scene)
    if seen is None:
        return compare_inputs(pairs)
    found = judge_evaluation(seen, scene.mode_matters)
    if seen.runs_model:
        found |= _judge_mode_kept(scene)
    if seen.error is None and scene.run is not None:
        forwards = [f for record in scene.run.records for f in record.forwards]
        pairs.append(([f.given for f in forwards if f.given is not None], seen.given))
    return found | compare_inputs(pairs)


def _inputs(batches: Sequence[Batch]) -> Inputs:
    return [x for batch in batches if (x := input_of(batch)) is not None]


def _evaluate(scene: Scene) -> Evaluation | None:
    given, shift = scene.given, scene.assumed_shift
    if given.eval_fn is None or given.val_loader is None:
        return None
    if scene.probe is not None:
        shift = max(scene.probe.shift, 0)
    try:
        return evaluate(
            scene.subject,
            given.eval_fn,
            given.val_loader,
            scene.kind,
            given.num_classes,
            scene.world.undone,
            scene.world.digest_of_model,
            shift,
        )
    except Exception as error:
        return Evaluation(error=sentence(error))


def _judge_mode_kept(scene: Scene) -> Values:
    """Is the model in training mode again in the step after an evaluation?"""
    eval_fn, val_loader = scene.given.eval_fn, scene.given.val_loader
    if eval_fn is None or not scene.mode_matters or scene.own_step:
        return {}
    with scene.world.undone():
        try:
            stays = mode_after_evaluation(
                scene.subject,
                scene.batch,
                scene.optimizer,
                lambda: eval_fn(scene.model, val_loader),
            )
        except Exception:
            return {}
    return {"mode_restored": flag(stays)}


def judge_evaluation(seen: Evaluation, mode_matters: bool) -> Values:
    if seen.error is not None:
        return {"evaluation_runs": flag(True, seen.error)}
    found: Values = {"evaluation_runs": flag(False)}
    found["eval_uses_loader"] = flag(seen.batches_read == 0)
    found["eval_uses_model"] = flag(seen.calls == 0)
    if not seen.runs_model:
        return found
    if seen.batches is not None:
        found["eval_reads_all"] = Measured(max(seen.batches - seen.batches_read, 0), seen.batches)
    found["eval_mode"] = flag(seen.training and mode_matters)
    found["eval_pure"] = flag(seen.changed is not None, seen.changed or "")
    size = max(abs(seen.value), 1.0)
    differs = not abs(seen.value - seen.again) <= 1e-4 * size
    found["eval_same_twice"] = flag(differs, f"{seen.value:.6g} and {seen.again:.6g}")
    if seen.whole is not None and not differs:
        error = abs(seen.value - seen.whole) / max(abs(seen.whole), 1e-3)
        found["metric_aggregation"] = Measured(
            error, seen.batches, f"{seen.value:.6g} in batches, {seen.whole:.6g} over all rows"
        )
    if seen.perfect is not None and seen.wrong is not None:
        note = f"{seen.perfect:.6g} for right answers, {seen.wrong:.6g} for wrong ones"
        found["metric_direction"] = flag(not seen.perfect > seen.wrong, note)
        if abs(seen.wrong) < 1e-6 and 0.3 < seen.perfect < 3:
            found["metric_scale"] = Measured(abs(seen.perfect - 1), note=note)
    return found


def compare_inputs(pairs: Sequence[tuple[Inputs, Inputs]]) -> Values:
    """The largest differences between inputs in training and in evaluation, of several pairs."""
    means, spreads = [], []
    for trained, held_out in pairs:
        one, other = scale_of_inputs(trained), scale_of_inputs(held_out)
        if one is None or other is None:
            continue
        apart, ratio = scale_difference(one, other)
        means.append((apart, f"means {one.mean:.3g} and {other.mean:.3g}"))
        spreads.append((ratio, f"spreads {one.std:.3g} and {other.std:.3g}"))
    if not means:
        return {}
    worst = [max(found, key=lambda pair: pair[0]) for found in (means, spreads)]
    (apart, of_means), (ratio, of_spreads) = worst
    return {
        "preprocessing": Measured(apart, note=of_means),
        "preprocessing_spread": Measured(ratio, note=of_spreads),
    }
