"""What do outputs depend on?"""

from ...verdict.judging import Rule

RULES = (
    Rule(
        "sample_independence",
        "samples do not depend on each other in evaluation mode",
        "zero",
        "see view, reshape, mean and softmax axes, batch_first",
    ),
    Rule(
        "input_used",
        "outputs depend on the input",
        "zero",
        "find where the input is lost or overwritten",
    ),
    Rule(
        "causal",
        "outputs do not depend on later tokens",
        "zero",
        "mask positions above the diagonal",
    ),
    Rule(
        "context_used",
        "outputs depend on earlier tokens",
        "zero",
        "see the mask and the axes of attention",
    ),
    Rule("padding_ignored", "outputs do not depend on padding", "zero", "pass attention_mask on"),
    Rule(
        "order_used",
        "the order of tokens matters",
        "zero",
        "add position embeddings",
        severity="warn",
    ),
    Rule(
        "nonlinear",
        "the model is not linear (distance from superposition)",
        "at_least",
        "add an activation",
        ("sanity.min_superposition_error",),
    ),
    Rule("eval_repeatable", "evaluation mode is deterministic", "zero", "training=self.training"),
)
