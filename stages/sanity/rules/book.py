"""All rules, in the order in which a report lists them."""

from ...verdict.judging import Rule
from . import data, evaluation, memorising, model, steps, targets, wiring

RULES: tuple[Rule, ...] = (
    Rule(
        "step_runs",
        "a training step runs on the first batch",
        "zero",
        "read the error; see label range, shapes and devices",
        unit="errors",
    ),
    Rule("evaluation_runs", "the evaluation runs", "zero", "read the error", unit="errors"),
    *data.RULES,
    *model.RULES,
    *targets.RULES,
    *steps.RULES,
    *wiring.RULES,
    *evaluation.RULES,
    *memorising.RULES,
)
