"""Is one batch learned by heart?"""

from ...verdict.judging import Rule

RULES = (
    Rule(
        "overfit",
        "one batch can be learned by heart (share of its loss that goes)",
        "at_least",
        "follow the other causes; else too little capacity",
        ("sanity.min_learned",),
    ),
    Rule(
        "overfit_adapted",
        "with most weights frozen one batch is learned in part (share of its loss that goes)",
        "at_least",
        "follow the other causes; else too few weights are trained",
        ("sanity.min_learned_adapted",),
    ),
    Rule(
        "rate_learns",
        "the user's own step lowers the loss of one batch (share)",
        "at_least",
        "change the learning rate",
        ("sanity.min_progress",),
    ),
    Rule(
        "input_independence",
        "real inputs are learned better than zeroed ones (ratio of final losses)",
        "at_most",
        "find where the input is lost; or the batch is learned too slowly to tell",
        ("sanity.max_blanked_ratio",),
        severity="warn",
    ),
)
