"""From what was measured to what is judged: one value for each rule, or the reason for none."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..verdict.judging import Measured
from .data import DataAudit
from .dependency import Dependency, OutputRange
from .evaluation import Evaluation
from .limits import LIMITS
from .memorising import Memorised
from .running import Run
from .settings import NEVER_LEARNED, Coverage, Initial, Lint
from .subject import Task
from .targets.losses import HEALTHY_KINDS, SOFTMAX_KINDS
from .targets.probe import TargetProbe

Values = dict[str, Measured]

KEPT = 0.9
"""Share of the norm of all gradients of a step that must be there when the optimizer is called."""


def names(found: Sequence[str], of: int | None = None, note: str = "") -> Measured:
    return Measured(len(found), of, note, tuple(found))


def flag(wrong: bool, note: str = "") -> Measured:
    return Measured(int(wrong), note=note if wrong else "")


def unless_none(well: bool | None, note: str = "") -> Measured:
    return (
        Measured(None, note="it could not be measured here")
        if well is None
        else flag(not well, note)
    )


def judge_data(audit: DataAudit, task: Task | None, loss_weighs: bool, handled: bool) -> Values:
    """loss_weighs, handled: the loss weighs classes, or the last bias starts at their shares."""
    rows = audit.rows
    found: Values = {
        "inputs_finite": Measured(audit.non_finite, rows),
        "labels_finite": Measured(audit.labels_non_finite, rows),
        "inputs_vary": flag(audit.constant),
        "duplicates": Measured(audit.duplicates, rows),
        "conflicts": Measured(audit.conflicts, rows),
        "labels_in_range": names([str(c) for c in audit.out_of_range]),
        "attention_mask": flag(audit.mask_inverted),
        "padding_masked": Measured(audit.supervised_padding, rows),
        "stop_supervised": flag(audit.masked_stops),
        "target_leak": flag(audit.leaking_feature is not None, audit.leaking_feature or ""),
    }
    if audit.mean_abs is not None and not audit.constant and not audit.non_finite:
        found["input_scale"] = Measured(audit.mean_abs, rows, f"largest {audit.largest:.4g}")
        found["input_size"] = Measured(audit.largest, rows)
    if audit.target_rms is not None and not audit.labels_non_finite:
        found["target_scale"] = Measured(audit.target_rms, rows)
    if audit.label_kinds is not None:
        found["labels_supervised"] = flag(audit.label_kinds == 0)
        if rows >= 8 and audit.label_kinds:
            found["labels_vary"] = Measured(audit.label_kinds, rows)
            found["rows_supervised"] = Measured(audit.masked_rows, rows)
    if audit.sorted_labels is not None:
        found["shuffled"] = flag(audit.sorted_labels)
    if task in ("classification", "binary") and audit.majority is not None and rows >= 64:
        if loss_weighs or handled:
            found["class_balance"] = Measured(
                None, note="the classes are weighed, or the last bias starts at their shares"
            )
        elif (audit.label_kinds or 0) > 1:
            found["class_balance"] = Measured(audit.majority, rows)
    return found


def judge_settings(coverage: Coverage, lint: Lint, initial: Initial, own: bool) -> Values:
    """own: the optimizer is the harness's."""
    found: Values = {
        "frozen_undeclared": names(coverage.frozen_undeclared),
        "frozen_trains": names(coverage.trained_though_declared),
        "base_trains": flag(coverage.base_trains),
        "weights_tied": names(coverage.untied),
        "registered": names(coverage.unregistered),
        "dropout": names(lint.dropout),
        "batch_norm_momentum": names(lint.batch_norm),
        "norm_eps": names(lint.norm_eps),
        "half_weights": Measured(lint.half_parameters),
        "constant_weights": names(initial.constant),
        "zero_gains": names(initial.zero_gains),
        "adapters_dead": names(initial.adapters_dead),
        "small_init": names(initial.small),
        "large_init": names(initial.large),
    }
    if initial.untouched_share is not None:
        found["weights_loaded"] = Measured(
            initial.untouched_share, evidence=tuple(initial.untouched)
        )
    if not own:
        found |= {
            "not_in_optimizer": names(coverage.not_in_optimizer, coverage.trainable),
            "foreign_parameters": Measured(coverage.foreign),
            "twice_in_optimizer": names(coverage.twice),
            "maximize": flag(lint.maximize),
            "betas": names(lint.betas),
            "optimizer_eps": names(lint.eps),
            "weight_decay": names(lint.weight_decay),
            "momentum": names(lint.momentum),
        }
    return found


def judge_targets(
    probe: TargetProbe, task: Task, smoothing: float, period: int, own_step: bool
) -> Values:
    """smoothing: as declared; period: calls of the training step a call of the optimizer."""
    found: Values = {}
    if probe.rows_used > 1.001:
        return found
    found["rows_used"] = Measured(
        round((1 - probe.rows_used) * 1000) / 1000, note=f"{probe.rows_used:.3g} of the rows"
    )
    if not probe.finite:
        return found
    found["gradient_reaches_logits"] = flag(probe.supervised > 0 and probe.active == 0)
    if not probe.active:
        return found
    found["loss_sign"] = flag(probe.sign < 0)
    found["softmax_before_loss"] = flag(probe.kind in SOFTMAX_KINDS, probe.kind)
    if probe.kind != "unknown":
        wrong = probe.kind not in (*HEALTHY_KINDS, *SOFTMAX_KINDS)
        found["loss_kind"] = flag(wrong, probe.kind)
    permuted = probe.aligned is not None and probe.aligned < LIMITS["sanity.min_alignment"]
    if probe.local is not None and not (permuted and task != "regression"):
        found["targets_local"] = flag(not probe.local)
    if task == "regression":
        if probe.kind != "unknown" and probe.aligned is not None and probe.local is not False:
            found["targets_aligned"] = Measured(probe.aligned, probe.supervised)
    elif probe.kind in (*HEALTHY_KINDS, *SOFTMAX_KINDS) and probe.aligned is not None:
        _judge_positions(found, probe, task)
    if probe.smoothing is not None and probe.sign > 0:
        found["label_smoothing"] = Measured(
            max(probe.smoothing - smoothing, 0.0), note=f"{probe.smoothing:.3g}"
        )
    if probe.scale is not None and probe.sign > 0 and probe.local is not False:
        _judge_scale(found, probe, period)
    if probe.calls > 1 and probe.uneven_calls is not None:
        found["accumulation_weights"] = Measured(probe.uneven_calls, probe.calls)
    return found


def _judge_positions(found: Values, probe: TargetProbe, task: Task) -> None:
    shifted = probe.aligned is not None and probe.aligned >= LIMITS["sanity.min_alignment"]
    if task == "lm" and probe.ahead is not None:
        found["token_shift"] = Measured(
            abs(probe.ahead - 1), probe.active, f"trains on the token {probe.ahead} ahead"
        )
    elif task == "tagging" and shifted:
        found["label_shift"] = Measured(abs(probe.shift), probe.active)
    found["targets_aligned"] = Measured(probe.aligned, probe.active)
    if shifted:
        ignored = probe.missing_class is not None and not probe.missing_is_padding
        note = f"class {probe.missing_class}" if ignored else ""
        found["ignored_class"] = Measured(probe.missing if ignored else 0, note=note)
        missing = 0 if ignored or probe.missing_is_padding else probe.missing
        found["missing_targets"] = Measured(missing, probe.supervised)
        found["extra_targets"] = Measured(probe.extra, probe.active)


def _judge_scale(found: Values, probe: TargetProbe, period: int) -> None:
    assert probe.scale is not None
    scale, near = probe.scale * period, LIMITS["sanity.max_scale_error"]

    def is_near(value: float) -> bool:
        return value > 0 and abs(scale / value - 1) <= near

    note = f"the weights of {probe.active} targets sum to {probe.scale:.4g}"
    half = probe.kind == "squared error"
    allowed = [1.0, *([0.5, 2.0] if half else []), *probe.allowed_scales]
    if half:
        allowed += [value / 2 for value in probe.allowed_scales]
    fine = any(is_near(value) for value in allowed)
    count = probe.active
    accumulated = max(probe.calls, period)
    summed = (
        not fine and count > 1 and any(is_near(v) for v in (count, count / 2 if half else count))
    )
    undivided = not fine and not summed and accumulated > 1 and is_near(accumulated)
    found["loss_summed"] = flag(summed, note)
    if accumulated > 1:
        found["accumulation_scale"] = flag(undivided, note)
    if fine or summed or undivided:
        found["loss_scale"] = Measured(0.0, count)
    elif probe.weights_vary and 0.02 < scale < 50:
        found["loss_scale"] = Measured(None, note="the loss weighs classes or positions")
    else:
        found["loss_scale"] = Measured(abs(scale - 1), count, note)


def judge_run(
    run: Run,
    coverage: Coverage,
    lint: Lint,
    initial: Initial,
    matters: bool,
    own: bool,
    optimizer_ids: set[int],
    peak_rate: float,
    last: str | None,
    modules: Mapping[str, Any],
) -> Values:
    """matters: does the model compute otherwise in evaluation mode; own: the step is the harness's.

    optimizer_ids: the optimizer that was given; last: name of the last matrix.
    """
    records = run.records
    n = len(records)
    found: Values = {}
    bad = [run.first_bad] if run.first_bad is not None else []
    found["non_finite"] = names(bad, n)
    called = [record for record in records if record.optimizers]
    if not own:
        found["optimizer_steps"] = Measured(n if not called else 0, n)
        again = [r for r in called if len(set(r.optimizers)) < len(r.optimizers)]
        found["optimizer_once"] = Measured(len(again), n)
        others = [r for r in called if not optimizer_ids & set(r.optimizers)]
        found["optimizer_kept"] = Measured(len(others), n)
        stale = {name for record in records[1:] for name in record.stale}
        # what the optimizer does not hold, it does not clear either
        held = sorted(stale - set(coverage.not_in_optimizer))
        found["stale_gradients"] = names(held, coverage.trainable)
        cleared = [
            r
            for r in called
            if (r.applied_norm == 0 < r.grad_norm) or r.grad_norm < KEPT * r.arrived_norm
        ]
        found["cleared_gradients"] = Measured(len(cleared), n)
        _judge_clips(found, called)
        found["fp16_unscaled"] = Measured(
            sum(
                any(str(f.precision) == "torch.float16" for f in r.forwards) and not r.scaled
                for r in records
            ),
            n,
        )
        lost = [r for r in records if r.autocast and all(f.precision is None for f in r.forwards)]
        found["autocast_applied"] = Measured(len([r for r in lost if r.forwards]), n)
        texts = [text for record in records for text in record.warnings]
        early = any("lr_scheduler.step()` before" in text for text in texts)
        found["scheduler_order"] = flag(early)
        found["reseeded"] = flag(run.reseeded)
        evals = sum(any(not f.training for f in r.forwards) for r in records)
        found["training_mode"] = Measured(
            evals if matters else 0,
            n,
            "" if matters or not evals else "it makes no difference here",
        )
    zero_rates = bool(called) and all(rate == 0 for r in called for rate in r.learning_rates)
    found["learning_rate_zero"] = Measured(n if zero_rates else 0, n)
    nothing = bool(run.trainable) and not run.arrived
    found["backward"] = Measured(n if nothing else 0, n)
    if not bad:
        _judge_parameters(found, run, coverage, lint, initial, nothing, zero_rates, last, modules)
        _judge_sizes(found, run, peak_rate, called, zero_rates, last)
    return found


def _judge_clips(found: Values, called: Sequence[Any]) -> None:
    wrong = [when for r in called for when in r.clips if when != "before step"]
    found["clip_order"] = names(sorted(set(wrong)), len(called))
    ratios = [
        r.grad_norm / r.applied_norm for r in called if r.applied_norm > 0 and r.grad_norm > 0
    ]
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    if finite:
        found["clip_excess"] = Measured(min(finite), len(called))


def _judge_parameters(
    found: Values,
    run: Run,
    coverage: Coverage,
    lint: Lint,
    initial: Initial,
    nothing: bool,
    zero_rates: bool,
    last: str | None,
    modules: Mapping[str, Any],
) -> None:
    head_learns = last is not None and f"{last}.weight" not in run.no_gradient
    arrived_zero = [n for n in run.no_gradient if n in run.arrived]
    matrices = {f"{name}.{part}": name for name in modules for part in ("weight", "bias")}
    dead = dict(run.dead)
    for name in arrived_zero:
        bias = f"{matrices.get(name)}.bias"
        silent = bias in arrived_zero or bias not in run.trainable
        if name in matrices and name.endswith("weight") and head_learns and silent:
            dead[matrices[name]] = 1.0
    cut = [
        name
        for name in run.no_gradient
        if not any(part in name for part in NEVER_LEARNED)
        and not (name in arrived_zero and name in matrices)
        and not ("lora_" in name and initial.adapters_dead)
        and not (name.endswith("bias") and name[: -len("bias")] + "weight" not in run.no_gradient)
    ]
    found["without_gradient"] = names([] if nothing else cut, len(run.trainable))
    explained = {f"{n}.weight" for n in (*initial.zero, *initial.constant, *initial.zero_gains)}
    if dead and not explained and not nothing and not initial.adapters_dead:
        worst = max(dead, key=lambda name: dead[name])
        found["dead_units"] = Measured(
            dead[worst], len(dead), evidence=(worst,) if dead[worst] else ()
        )
    still = [n for n in initial.zero if f"{n}.weight" in run.no_gradient + run.unchanged]
    most = len(initial.zero) > len(modules) / 2 and len(initial.zero) > 1
    found["zero_weights"] = names(initial.zero if most else still, len(modules))
    found["symmetric_units"] = names(run.symmetric, len(modules))
    if run.saturated:
        worst = max(run.saturated, key=lambda name: run.saturated[name])
        found["saturated_units"] = Measured(run.saturated[worst], evidence=(worst,))
    idle = zero_rates or any(
        found[i].value for i in ("optimizer_steps", "cleared_gradients", "backward") if i in found
    )
    outside = set(coverage.not_in_optimizer)
    still_same = [n for n in run.unchanged if n not in outside]
    if lint.low_precision:
        shares = [run.changed_share[n] for n in run.gains if n in run.changed_share]
        if shares:
            found["swallowed_updates"] = Measured(min(shares), len(shares))
    elif not idle:
        found["unchanged"] = names(still_same, len(run.trainable))
    found["frozen_changed"] = names(run.frozen_changed)


def _judge_sizes(
    found: Values,
    run: Run,
    peak_rate: float,
    called: Sequence[Any],
    zero_rates: bool,
    last: str | None,
) -> None:
    highest = max((rate for r in called for rate in r.learning_rates), default=0.0)
    if run.update_ratios and highest > 0 and not zero_rates:
        ratios = sorted(run.update_ratios.values())
        middle = ratios[len(ratios) // 2] * max(peak_rate / highest, 1.0)
        if middle > 0:
            found["update_ratio"] = Measured(middle, len(ratios))
    norms = [norm for norm in run.gradient_norms.values() if math.isfinite(norm)]
    if norms:
        found["exploding_gradient"] = Measured(math.hypot(*norms), len(norms))
    matrices = [
        n
        for n in run.gradient_norms
        if n.endswith("weight") and n in run.matrices and "lora_" not in n
    ]
    if len(matrices) > 1:
        first, final = run.gradient_norms[matrices[0]], run.gradient_norms[matrices[-1]]
        if first > 0 and final > 0:
            found["vanishing_gradient"] = Measured(first / final, evidence=(matrices[0],))


def judge_dependency(dependency: Dependency, causal: bool) -> Values:
    found: Values = {"eval_repeatable": flag(not dependency.repeatable)}
    if not dependency.repeatable:
        return found
    found["sample_independence"] = unless_none(dependency.samples)
    found["input_used"] = unless_none(dependency.own_input)
    if causal:
        found["causal"] = unless_none(dependency.future)
        found["context_used"] = unless_none(dependency.past)
    if dependency.padding is not None:
        found["padding_ignored"] = unless_none(dependency.padding)
    if dependency.order is not None:
        found["order_used"] = unless_none(dependency.order)
    if dependency.linear is not None and dependency.own_input:
        found["nonlinear"] = Measured(dependency.linear)
    return found


def judge_evaluation(seen: Evaluation, matters: bool, mode_kept: bool | None) -> Values:
    """mode_kept: is the step after an evaluation in training mode, None where not measured."""
    if seen.error is not None:
        return {"evaluation_runs": flag(True, seen.error)}
    found: Values = {"evaluation_runs": flag(False)}
    found["eval_uses_loader"] = flag(seen.batches_read == 0)
    found["eval_uses_model"] = flag(seen.calls == 0)
    if seen.calls == 0 or seen.batches_read == 0:
        return found
    if seen.batches is not None:
        found["eval_reads_all"] = Measured(max(seen.batches - seen.batches_read, 0), seen.batches)
    found["eval_mode"] = flag(seen.training and matters)
    found["eval_pure"] = flag(seen.changed is not None, seen.changed or "")
    if mode_kept is not None:
        found["mode_restored"] = flag(not mode_kept)
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


def judge_range(outputs: OutputRange, targets: tuple[float, float] | None) -> Measured:
    """targets: what regression is to reach; None for classes."""
    low, high, zeros = outputs.low, outputs.high, outputs.zeros
    if targets is None:
        return flag(low == 0 and zeros > 0.1, f"{zeros:.0%} of the outputs are 0")
    within = ((a, b) for a, b in ((0.0, 1.0), (-1.0, 1.0)) if low >= a and high <= b)
    bounds = next(within, None) if outputs.at_bounds > 0.5 else None
    if bounds is None and low >= 0 and zeros > 0.1:
        bounds = (0.0, math.inf)
    wrong = bounds is not None and (targets[0] < bounds[0] - 0.05 or targets[1] > bounds[1] + 0.05)
    note = f"outputs within {low:.3g} and {high:.3g}, targets {targets[0]:.3g} to {targets[1]:.3g}"
    return flag(wrong, note)


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
