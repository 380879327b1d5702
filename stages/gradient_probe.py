"""Are gradients, updates and the learning rate of the first real training steps sound?

Reads artifacts/tokens/. Takes the first gates.gradient.steps steps of the training, with its own
batches, rate, schedule, clipping and precision, and watches them from outside. Stops the training
at a checkpoint, resumes it in a fresh process and compares the bits. Writes the verdict and
reports/gradient_probe/ (steps.csv, parameters.csv, activations.csv and a page).

    python -m stages.gradient_probe
"""

from .config.launch import pin_process, run_stage

pin_process(__name__, "gradient_probe")

import math
from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd

from .chat.token_store import TOKENS
from .config import Params
from .config.schema import GradientGate, Train
from .models.build import is_pretrained
from .models.hub import base_inputs
from .probes.gradients import GradientProbe, run_gradient_probe
from .probes.learning_rate import expected_rate, trace_error
from .probes.observe import StepRecord
from .probes.precision import DTYPES
from .probes.recipe import Recipe
from .probes.resume import ResumeCheck, check_resume
from .probes.targets import TargetRecord
from .provenance.environment import compute_environment
from .provenance.hashing import sha256_tree
from .provenance.records import read_metrics
from .report.page import Section, Table, report_directory
from .report.plots import Chart, draw
from .report.publish import publish, publish_blocked
from .report.terminal import console
from .verdict.judging import Measured, judge_all, overall_status, rank_causes
from .verdict.record import bind, make_verdict
from .verdict.rules.gradient_probe import NOT_COVERED, RULES, causes_of

NORM_ROUNDING = 2**-6
"""A norm of gradients in bfloat16 is off by no more."""
FIRST_UPDATES = 4
"""Updates whose ratio to the weights is told. Weights grow with a rate that is too high: after 20
updates at 100 times a good rate the ratio is a third, as after 20 at 3 times that rate."""


def excessive_update(measured: Mapping[str, Measured], gates: GradientGate) -> float | None:
    """The first update over the weights, where it is more than is allowed."""
    for name, limit in (
        ("update_ratio", gates.max_update_ratio),
        ("pretrained_update_ratio", gates.max_pretrained_update_ratio),
    ):
        value = measured[name].value
        if isinstance(value, float) and value > limit:
            return value
    return None


def scaled_update_ratios(
    probe: GradientProbe, peak: float, updates: int = FIRST_UPDATES
) -> dict[str, float]:
    """Median over the first `updates` of each matrix's update ratio, scaled to the peak rate.

    Steps at a rate of 0 change nothing and are left out.
    """
    by_matrix: dict[str, list[float]] = {}
    moving = [record for record in probe.records if record.learning_rate > 0 and not record.skipped]
    for record in moving[:updates]:
        for name, ratio in record.update_ratios.items():
            by_matrix.setdefault(name, []).append(ratio * peak / record.learning_rate)
    return {name: median(ratios) for name, ratios in by_matrix.items()}


def measure_targets(targets: TargetRecord) -> dict[str, Measured]:
    """What the rules ask of the classes that the first step trains on."""
    judged = f"{targets.learned} learned already" if targets.learned else ""
    low, high = targets.weights
    shift = targets.shift
    kept = "" if shift is None else f"most are the token {shift} ahead, not 1"

    def places(found: list[str], note: str = judged) -> Measured:
        return Measured(len(found), targets.asked, note, tuple(found))

    return {
        "targets_untrained": places(targets.untrained),
        "targets_unasked": places(targets.unasked),
        "targets_wrong": places(targets.wrong, kept or judged),
        "targets_raised": places(targets.raised),
        "target_weight_error": Measured(
            targets.weight_error,
            targets.asked,
            f"weights from {low:.4g} to {high:.4g} of 1 / {targets.asked}",
        ),
    }


def measure_wiring(probe: GradientProbe, precision: str) -> dict[str, Measured]:
    """What the rules ask of the forward pass: what it depends on, its mode and its precision."""
    found, names = probe.forward.dependencies, ("sees_future", "sees_others", "ignores_input")
    unknown = Measured(None, note="no module embeds the tokens")
    charted = dict.fromkeys(names, unknown)
    if found is not None:
        lists = (found.on_future, found.on_others, found.without_input)
        charted = {
            name: Measured(len(places), found.asked, evidence=tuple(places))
            for name, places in zip(names, lists, strict=True)
        }
    half = precision != "fp32"
    step = probe.first_step
    modules, applied = sum(step.dtypes.values()), step.dtypes[DTYPES[precision]]
    share, vector = probe.half_change
    return {
        **charted,
        "dropout_off": Measured(len(step.dropout_off), evidence=tuple(sorted(step.dropout_off))),
        "evaluation_differs": Measured(probe.forward.evaluation_difference, 2),
        "precision_not_applied": Measured(
            int(half and modules > 0 and not applied),
            modules,
            f"{applied} of {modules} matrix products gave {precision}" if half else "",
        ),
        "half_change": Measured(share, note=vector or "no vector is kept in half precision"),
        "affine_feed_forwards": Measured(
            len(probe.forward.affine),
            probe.forward.feed_forwards,
            evidence=tuple(probe.forward.affine),
        ),
    }


def measure_recipe(recipe: Recipe) -> dict[str, Measured]:
    """What the rules ask of the numbers of the recipe."""
    dropout, module = recipe.dropout
    vectors = recipe.decayed_vectors
    epsilon = recipe.epsilon_share
    return {
        "epsilon_share": Measured(
            0.0 if epsilon is None else epsilon,
            note="the optimizer has no epsilon, or no gradient" if epsilon is None else "",
        ),
        "decay_per_step": Measured(recipe.decay_per_step),
        "decayed_vectors": Measured(len(vectors), evidence=tuple(vectors)),
        "dropout": Measured(dropout, note=module),
        "answers_cut_off": Measured(
            len(recipe.cut_off), recipe.asked, evidence=tuple(recipe.cut_off)
        ),
    }


def typical_ratio(ratios: Mapping[str, float]) -> Measured:
    """The median over matrices, and those at the ends."""
    extremes = sorted(ratios, key=ratios.__getitem__)
    return Measured(
        median(ratios.values()) if ratios else None,
        len(ratios),
        "" if ratios else "no step changed a matrix",
        tuple(f"{name}: {ratios[name]:.3g}" for name in (*extremes[:2], *extremes[-2:])),
    )


def measure(
    probe: GradientProbe,
    resume: ResumeCheck,
    train: Train,
    precision: str,
    *,
    pretrained: bool,
) -> dict[str, Measured]:
    """What the rules ask of the steps."""
    records = [record for record in probe.records if not record.skipped] or probe.records
    peak = train.learning_rate
    steps = len(records)
    norms = [record.grad_norm for record in records]
    missing = [f"step {n}" for n, record in enumerate(records) if record.optimizer_calls != 1]
    rates = [record.learning_rate for record in records]
    error, worst = (math.inf, 0)
    if not any(map(math.isnan, rates)):
        error, worst = trace_error(rates, peak, train.lr_scheduler_type, probe.warmup, probe.steps)
    expected = expected_rate(worst, peak, train.lr_scheduler_type, probe.warmup, probe.steps)
    without = [n for n in probe.changed if not any(r.grad_norms.get(n, 0) for r in records)]
    stale = sorted({name for record in records for name in record.stale_gradients})
    few, first = scaled_update_ratios(probe, peak), scaled_update_ratios(probe, peak, 1)
    # The very first tells most of the rate, but moves no A of an adapter, whose B is still 0.
    largest = {name: max(ratio, first.get(name, 0.0)) for name, ratio in few.items()}
    highest = max(range(steps), key=norms.__getitem__)
    rectifying = [a for a in probe.activations if a.dead is not None]
    bounded = [a for a in probe.activations if a.saturated is not None]
    dead = max(rectifying, key=lambda a: a.dead or 0.0, default=None)
    saturated = max(bounded, key=lambda a: a.saturated or 0.0, default=None)
    differences = [difference.text for difference in resume.differences]

    def names(found: list[str], of: int) -> Measured:
        return Measured(len(found), of, evidence=tuple(found))

    return {
        **measure_targets(probe.first_step.targets),
        **measure_wiring(probe, precision),
        **measure_recipe(probe.recipe),
        "non_finite": names(find_non_finite(probe), steps),
        "optimizer_calls_missing": names(missing, steps),
        "learning_rate_error": Measured(
            error,
            steps,
            f"worst at step {worst}: applied {rates[worst]:.6g}, closed form {expected:.6g}",
        ),
        "loss_unscaled": names(
            [f"step {n}" for n, record in enumerate(records) if record.loss_unscaled], steps
        ),
        "stale_gradients": names(stale, len(probe.changed)),
        "not_in_optimizer": names(probe.not_in_optimizer, len(probe.changed)),
        "undeclared_frozen": names(probe.undeclared_frozen, len(probe.weight_norms)),
        "without_gradient": names(without, len(probe.changed)),
        "reentrant_over_frozen": names(
            probe.reentrant if without and probe.frozen else [], len(probe.reentrant)
        ),
        "unchanged": names(
            [n for n, share in probe.changed.items() if not share], len(probe.changed)
        ),
        "frozen_changed": names(probe.frozen_changed, len(probe.frozen)),
        "median_norm": Measured(median(norms), steps),
        "smallest_norm": Measured(min(norms), steps, f"at step {norms.index(min(norms))}"),
        "largest_norm": Measured(norms[highest], steps, f"at step {highest}"),
        "clip_ratio": Measured(worst_clip_ratio(records, train.max_grad_norm), steps),
        "clip_excess": Measured(min(norms) / train.max_grad_norm, steps),
        "update_ratio": typical_ratio(largest),
        "pretrained_update_ratio": typical_ratio(few)
        if pretrained
        else Measured(0.0, len(few), "asked of pretrained models only"),
        "dead_fraction": Measured(
            dead.dead if dead else 0.0,
            len(rectifying),
            dead.module if dead and dead.dead else "",
        ),
        "saturated_fraction": Measured(
            saturated.saturated if saturated else 0.0,
            len(bounded),
            saturated.module if saturated and saturated.saturated else "",
        ),
        "resume_differs": Measured(
            len(differences),
            len(resume.uninterrupted.steps),
            f"first difference: {differences[0]}" if differences else "",
            tuple(differences),
        ),
    }


def worst_clip_ratio(records: Sequence[StepRecord], max_norm: float) -> float:
    """The norm that the optimizer gets over `max_norm`; where clipping would leave more of it than
    the optimizer gets, how much more.
    """
    ratios = []
    for record in records:
        applied, clipped = record.applied_norm, min(record.grad_norm, max_norm)
        ratio = applied / max_norm
        if applied < clipped * (1 - NORM_ROUNDING):
            ratio = clipped / applied if applied else math.inf
        ratios.append(ratio)
    return math.nan if any(map(math.isnan, ratios)) else max(ratios)


def find_non_finite(probe: GradientProbe) -> list[str]:
    """Names of what is NaN or infinite, in the order in which it appeared."""
    found = []
    for step, (record, loss) in enumerate(zip(probe.records, probe.losses, strict=True)):
        if not math.isfinite(loss):
            found.append(f"step {step}: loss {loss}")
        if not record.skipped:
            found += [f"step {step}: {name}" for name in record.non_finite]
    found += [f"activation of {a.module}" for a in probe.activations if a.non_finite]
    return found


def write_tables(probe: GradientProbe, train: Train) -> None:
    """steps.csv (DVC plots it), parameters.csv and activations.csv."""
    directory = report_directory("gradient_probe")
    ratios = scaled_update_ratios(probe, train.learning_rate)
    steps = pd.DataFrame(
        {
            "loss": probe.losses,
            "grad_norm": [record.grad_norm for record in probe.records],
            "learning_rate": [record.learning_rate for record in probe.records],
            "clipped": [record.grad_norm > train.max_grad_norm for record in probe.records],
            "update_ratio": [
                median(record.update_ratios.values()) if record.update_ratios else 0.0
                for record in probe.records
            ],
        }
    )
    names = list(probe.weight_norms)
    parameters = pd.DataFrame(
        {
            "parameter": names,
            "trainable": [name in probe.changed for name in names],
            "median_grad_norm": [
                median(record.grad_norms.get(name, 0.0) for record in probe.records)
                for name in names
            ],
            "update_ratio_at_peak": [ratios.get(name) for name in names],
            "changed": [
                probe.changed.get(name, float(name in probe.frozen_changed)) for name in names
            ],
            "weight_norm_before": [probe.weight_norms[name][0] for name in names],
            "weight_norm_after": [probe.weight_norms[name][1] for name in names],
        }
    )
    activations = pd.DataFrame([vars(record) for record in probe.activations])
    steps.to_csv(directory / "steps.csv", index_label="step", lineterminator="\n")
    parameters.to_csv(directory / "parameters.csv", index=False, lineterminator="\n")
    activations.to_csv(directory / "activations.csv", index=False, lineterminator="\n")


def describe_resume(resume: ResumeCheck) -> Section:
    """The steps after the break, without the break and resumed, to the last digit."""
    if resume.resumed is None:
        return Section("Resume", f"Not resumed: {resume.differences[0].text}.")

    def both(one: float, other: float) -> str:
        return repr(one) if one.hex() == other.hex() else f"{one!r}, resumed {other!r}"

    first = resume.uninterrupted.first
    pairs = zip(resume.uninterrupted.steps, resume.resumed.steps, strict=True)
    rows = [
        (
            step,
            f"{len(set(one.rows) & set(other.rows))} of {len(set(one.rows))} the same",
            both(one.learning_rate, other.learning_rate),
            both(one.loss, other.loss),
            both(one.grad_norm, other.grad_norm),
        )
        for step, (one, other) in enumerate(pairs, first)
    ]
    return Section(
        "Resume",
        f"A fresh process went on from a checkpoint after {first} steps. The tensors of the steps "
        "and the state before and after them (weights, optimizer, scheduler, random state, "
        "telemetry) were compared too.",
        table=Table(("step", "rows", "learning rate", "loss", "gradient norm"), rows),
    )


def describe(params: Params, probe: GradientProbe, resume: ResumeCheck) -> list[Section]:
    """The sections of the page below the checks."""
    train, limits = params.train, params.gates.gradient
    steps = list(range(len(probe.records)))
    form = (train.learning_rate, train.lr_scheduler_type, probe.warmup, probe.steps)
    norms = Chart(
        "Gradient norm before clipping",
        steps,
        {"norm": [record.grad_norm for record in probe.records]},
        y_label="global L2",
        log_y=True,
        limits={"clip": train.max_grad_norm, "min": limits.min_norm, "max": limits.max_norm},
    )
    rate = Chart(
        "Learning rate of the whole training",
        list(range(probe.steps)),
        {"closed form": [expected_rate(step, *form) for step in range(probe.steps)]},
    )
    loss = Chart("Loss", steps, {"loss": probe.losses}, y_label="nats per token")
    ratios = scaled_update_ratios(probe, train.learning_rate)
    matrices = sorted(ratios.items(), key=lambda item: item[1])
    columns = ("module", "mean", "std", "largest", "non-finite", "dead", "saturated")
    activations = [tuple(vars(record).values()) for record in probe.activations]
    return [
        Section("Steps", charts=[draw(norms), draw(rate), draw(loss)]),
        Section("Update over weight at the peak rate", table=Table(("matrix", "ratio"), matrices)),
        Section("Activations in the last probed step", table=Table(columns, activations)),
        describe_resume(resume),
    ]


def main(params: Params) -> None:
    run = params.run
    environment = compute_environment(run.device, run.precision, run.cpu_threads)
    binding = bind("gradient_probe", environment)
    if not read_metrics("mask_report")["passed"]:
        publish_blocked(binding, __doc__, "mask_report")
        return
    with console.status("probing the first training steps"):
        probe = run_gradient_probe(params)
    with console.status("resuming from a checkpoint in a fresh process"):
        resume = check_resume(params)
    measured = measure(
        probe, resume, params.train, run.precision, pretrained=is_pretrained(params.model)
    )
    targets = probe.first_step.targets
    checks = judge_all(RULES, measured, binding.params, run.seed)
    causes = causes_of(
        resume.first_part,
        targets.shift,
        loss_is_silent=targets.loss_is_silent,
        excessive_update=excessive_update(measured, params.gates.gradient),
    )
    verdict = make_verdict(
        binding,
        overall_status(checks, RULES),
        checks,
        causes=rank_causes(checks, causes),
        not_covered=NOT_COVERED,
        inputs=sha256_tree([TOKENS]) | base_inputs(params.model),
    )
    write_tables(probe, params.train)
    norms = [record.grad_norm for record in probe.records]
    numbers = {
        "median_norm": median(norms),
        "largest_norm": max(norms),
        "clipped_fraction": sum(norm > params.train.max_grad_norm for norm in norms) / len(norms),
        "update_ratio": measured["update_ratio"].value,
        "steps": probe.steps,
        "warmup_steps": probe.warmup,
        **probe.parameters,
    }
    publish(verdict, __doc__, numbers=numbers, sections=describe(params, probe, resume))


if __name__ == "__main__":
    run_stage("gradient_probe", main)
