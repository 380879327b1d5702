"""Does the evaluation measure the model that it is given, the right way round?"""

from ...verdict.judging import Rule

RULES = (
    Rule(
        "eval_mode", "evaluation runs in evaluation mode", "zero", "model.eval() before evaluating"
    ),
    Rule(
        "mode_restored",
        "training mode is back after evaluation",
        "zero",
        "model.train() after evaluating",
    ),
    Rule(
        "eval_same_twice",
        "two evaluations give the same",
        "zero",
        "evaluate in evaluation mode, without random choices",
    ),
    Rule(
        "eval_pure",
        "evaluation changes no weights, buffers or gradients",
        "zero",
        "no_grad, eval mode, no step",
    ),
    Rule(
        "eval_uses_model",
        "evaluation runs the model that it is given",
        "zero",
        "evaluate the model that is trained",
    ),
    Rule(
        "eval_uses_loader",
        "evaluation reads the loader that it is given",
        "zero",
        "iterate over the loader that is passed",
    ),
    Rule(
        "eval_reads_all",
        "evaluation reads every batch",
        "zero",
        "no break; no return inside of the loop",
        unit="batches left",
    ),
    Rule(
        "metric_aggregation",
        "the metric does not depend on batches (relative error)",
        "at_most",
        "sum over rows, divide once",
        ("sanity.max_metric_error",),
    ),
    Rule(
        "metric_direction",
        "right answers score higher than wrong ones",
        "zero",
        "see its sign, axis and alignment with labels",
    ),
    Rule(
        "metric_scale",
        "right answers score 1 (error)",
        "at_most",
        "divide by the number of rows that were counted",
        ("sanity.max_metric_error",),
    ),
)
