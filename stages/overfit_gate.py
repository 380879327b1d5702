"""Can the model, with the production step, learn a handful of rows by heart, twice the same?

Reads artifacts/tokens/. Overfits gates.overfit.num_samples rows here, once more with blanked
inputs, and in fresh processes under this seed and the next. Writes the verdict and
reports/overfit_gate/.

    python -m stages.overfit_gate
"""

from .config.launch import pin_process, run_stage

pin_process(__name__, "overfit_gate")

import math
from collections.abc import Sequence

import pandas as pd

from .chat.token_store import TOKENS
from .config import Params
from .config.schema import Model, TinyLoRAModel
from .models.build import is_pretrained
from .models.hub import base_inputs
from .probes.fingerprint import RunTrace, begins_alike, first_difference
from .probes.initial_loss import InitialLoss
from .probes.overfit import (
    STEPS_OF_OTHER_SEED,
    OverfitRun,
    replay_in_fresh_processes,
    run_overfit,
    steps_to_learn,
)
from .provenance.environment import compute_environment
from .provenance.hashing import sha256_tree
from .provenance.records import read_metrics
from .report.page import Section, Table, report_directory
from .report.plots import Chart, draw
from .report.publish import publish, publish_blocked
from .report.terminal import console
from .verdict.judging import Measured, judge_all, overall_status, rank_causes
from .verdict.record import bind, make_verdict
from .verdict.rules.overfit_gate import NOT_COVERED, RULES, causes_of


def lowest_loss(losses: Sequence[float]) -> float:
    """The lowest of the losses; NaN when any is: a run that breaks has learned nothing."""
    return min(losses) if all(map(math.isfinite, losses)) else math.nan


def measure(
    run: OverfitRun,
    blanked: OverfitRun,
    rerun: RunTrace,
    other_seed: RunTrace,
    *,
    pretrained: bool,
) -> dict[str, Measured]:
    """What the rules ask of the runs."""
    initial = run.initial
    lowest, without_inputs = lowest_loss(run.losses), lowest_loss(blanked.losses)
    step = run.losses.index(lowest) if lowest in run.losses else 0
    difference = first_difference(run.trace, rerun)
    same = begins_alike(run.trace, other_seed)
    return {
        "loss_error": Measured(
            initial.error_to_reference,
            initial.tokens,
            f"loss {initial.loss:.6g}, cross-entropy {initial.reference:.6g} nats; on confident "
            f"logits {initial.confident[0]:.6g} and {initial.confident[1]:.6g}",
        ),
        **judge_start(initial, pretrained=pretrained),
        "overfit_loss": Measured(
            lowest,
            len(run.rows),
            f"lowest after {step} steps, {run.losses[-1]:.4g} after {len(run.losses) - 1}",
            tuple(run.rows),
        ),
        "blanked_ratio": Measured(
            lowest / without_inputs if without_inputs else math.inf,
            len(run.rows),
            f"{lowest:.4g} nats with inputs, {without_inputs:.4g} without",
        ),
        "adapters_off": Measured(len(run.adapters_off), evidence=tuple(run.adapters_off)),
        "stop_row_alike": Measured(
            len(run.stop_row.alike),
            run.stop_row.compared,
            "" if run.stop_row.compared else "asked of a head that does not train",
            tuple(run.stop_row.alike),
        ),
        "frozen_changed": Measured(
            len(run.frozen_changed), run.frozen, evidence=tuple(run.frozen_changed)
        ),
        "rerun_differs": Measured(
            int(difference is not None), 2, f"first difference: {difference}" if difference else ""
        ),
        "other_seed_same": Measured(int(same), 2),
    }


def judge_start(initial: InitialLoss, *, pretrained: bool) -> dict[str, Measured]:
    """An untrained model must guess evenly, a pretrained one must not; the other asks nothing."""
    losses = (
        f"cross-entropy {initial.reference:.4g}, entropy {initial.entropy:.4g}, ln K "
        f"{initial.uniform:.4g} nats"
    )
    unasked = Measured(0.0, initial.tokens, "asked of other models only")
    if pretrained:
        share = Measured(initial.reference / initial.uniform, initial.tokens, losses)
        return {"initial_loss_error": unasked, "pretrained_loss_share": share}
    error = Measured(initial.error_to_uniform, initial.tokens, losses)
    return {"initial_loss_error": error, "pretrained_loss_share": unasked}


def write_curve(run: OverfitRun, blanked: OverfitRun) -> None:
    """curve.csv: the loss after each number of steps, and the gradient norm of the next step."""
    norms = [*run.trace.grad_norms, None]
    columns = {"loss": run.losses, "blanked_loss": blanked.losses, "grad_norm": norms}
    curve = pd.DataFrame(columns).rename_axis("step")
    curve.to_csv(report_directory("overfit_gate") / "curve.csv", lineterminator="\n")


def describe(params: Params, run: OverfitRun, blanked: OverfitRun) -> list[Section]:
    """The sections of the page below the checks."""
    steps = list(range(len(run.losses)))
    chart = Chart(
        f"Overfitting {len(run.rows)} rows",
        steps,
        {"inputs as they are": run.losses, "inputs blanked": blanked.losses},
        y_label="loss, nats per token",
        log_y=True,
        limits={"limit": params.gates.overfit.max_loss, "ln K": run.initial.uniform},
    )
    rows = Table(("row",), [(row,) for row in run.rows])
    return [Section("Curve", charts=[draw(chart)]), Section("Rows", table=rows)]


def frozen_on_purpose(model: Model) -> list[str]:
    """Patterns of what the user froze; what lies under adapters always is."""
    return [] if isinstance(model, TinyLoRAModel) else model.frozen


def main(params: Params) -> None:
    run = params.run
    environment = compute_environment(run.device, run.precision, run.cpu_threads)
    binding = bind("overfit_gate", environment)
    if not read_metrics("mask_report")["passed"]:
        publish_blocked(binding, __doc__, "mask_report")
        return
    with console.status("overfitting a handful of rows, four times"):
        real = run_overfit(params, run.seed)
        steps = len(real.trace.losses)
        blanked = run_overfit(params, run.seed, blank=True, steps=steps)
        other_seed = (run.seed + 1) % 2**32
        again, other = replay_in_fresh_processes(
            [(run.seed, steps), (other_seed, min(steps, STEPS_OF_OTHER_SEED))]
        )
    measured = measure(real, blanked, again, other, pretrained=is_pretrained(params.model))
    checks = judge_all(RULES, measured, binding.params, run.seed)
    needed = steps_to_learn(params, real)
    verdict = make_verdict(
        binding,
        overall_status(checks, RULES),
        checks,
        causes=rank_causes(
            checks, causes_of(real.initial.guesses_evenly, needed, frozen_on_purpose(params.model))
        ),
        not_covered=NOT_COVERED,
        inputs=sha256_tree([TOKENS]) | base_inputs(params.model),
    )
    write_curve(real, blanked)
    numbers = {
        "initial_loss": real.initial.reference,
        "lowest_loss": lowest_loss(real.losses),
        "final_loss": real.losses[-1],
        "blanked_loss": lowest_loss(blanked.losses),
    }
    publish(verdict, __doc__, numbers=numbers, sections=describe(params, real, blanked))


if __name__ == "__main__":
    run_stage("overfit_gate", main)
