"""Which targets does the training step train on, with which weight, and with which loss?"""

from ...verdict.judging import Rule

RULES = (
    Rule("loss_kind", "the loss fits the outputs", "zero", "give cross-entropy the logits"),
    Rule("softmax_before_loss", "cross-entropy gets logits", "zero", "give the loss raw logits"),
    Rule("output_activation", "outputs are not clipped by a last activation", "zero", "remove it"),
    Rule(
        "loss_sign",
        "the gradient lowers the loss of the label",
        "zero",
        "minimise the loss, not its negative",
    ),
    Rule(
        "gradient_reaches_logits",
        "the loss has a gradient at every supervised output",
        "zero",
        "do not clamp or detach the loss",
    ),
    Rule(
        "targets_aligned",
        "the loss trains each output on its own label (share)",
        "at_least",
        "see what the training step does to labels and shapes between loader and loss",
        ("sanity.min_alignment",),
    ),
    Rule(
        "targets_local",
        "each output is trained on its own label alone",
        "zero",
        "squeeze the outputs, or unsqueeze the targets",
    ),
    Rule(
        "missing_targets",
        "every label that counts is trained on",
        "zero",
        "mend the masking",
        unit="positions",
    ),
    Rule("ignored_class", "no class is ignored", "zero", "ignore_index=-100", unit="positions"),
    Rule(
        "extra_targets",
        "masked labels are not trained on",
        "zero",
        "ignore_index=-100 in the loss",
        unit="positions",
    ),
    Rule(
        "token_shift",
        "language modelling predicts the next token",
        "zero",
        "shift once: logits[:, :-1] against labels[:, 1:], or labels shifted already",
        unit="positions off",
    ),
    Rule(
        "label_shift",
        "labels belong to their own position",
        "zero",
        "do not shift labels of a tagging task",
        unit="positions off",
    ),
    Rule(
        "lm_labels",
        "labels of language modelling are the input's tokens",
        "zero",
        "labels = input_ids",
    ),
    Rule("loss_summed", "the loss is a mean", "zero", "reduction='mean'"),
    Rule(
        "accumulation_scale",
        "accumulated gradients are averaged",
        "zero",
        "divide each micro-batch's loss by their number",
    ),
    Rule(
        "loss_scale",
        "the loss has the scale of a mean (error)",
        "at_most",
        "remove the factor; change the learning rate instead",
        ("sanity.max_scale_error",),
    ),
    Rule(
        "accumulation_weights",
        "each position of a step weighs the same (ratio)",
        "at_most",
        "divide the summed loss by the number of labels of the whole step",
        ("sanity.max_uneven_calls",),
    ),
    Rule(
        "label_smoothing",
        "label smoothing is as declared (error)",
        "at_most",
        "label_smoothing=0, or declare it",
        ("sanity.max_smoothing_error",),
    ),
    Rule(
        "rows_used",
        "the training step uses every row of the batch",
        "zero",
        "use the last, smaller micro-batch too",
        unit="rows",
    ),
)
