"""Gate 2: can the model learn a handful of rows by heart, twice the same?

Sources: Karpathy, "A Recipe for Training Neural Networks" (loss at initialisation, overfit one
batch, input-independent baseline). Limits are the protocol's: a loss below 0.05 within 35 steps.
"""

from ..judging import Rule

RULES = (
    Rule(
        "loss_error",
        "the training loss equals the mean cross-entropy of the supervised tokens",
        "at_most",
        "mend train.loss: look for a factor, another reduction, softmax before cross-entropy, a "
        "second shift, label smoothing",
        ("gates.overfit.max_loss_error",),
    ),
    Rule(
        "initial_loss_error",
        "an untrained model guesses evenly: its loss is ln(vocabulary)",
        "at_most",
        "mend the initialisation (a hot head shows as a loss far above ln K)",
        ("gates.overfit.max_initial_loss_error",),
    ),
    Rule(
        "pretrained_loss_share",
        "a pretrained model starts well below ln(vocabulary)",
        "at_most",
        "see that the weights were loaded, that the tokenizer is the model's own, and that the "
        "chat template is one that it knows",
        ("gates.overfit.max_pretrained_loss_share",),
    ),
    Rule(
        "overfit_loss",
        "a handful of rows is learned by heart",
        "below",
        "follow the causes; if all else passes, try gates.overfit.learning_rate in 1e-3 to 5e-2",
        ("gates.overfit.max_loss",),
        "nats",
    ),
    Rule(
        "blanked_ratio",
        "the model uses its input: with blanked inputs it learns worse",
        "at_most",
        "find where the input is lost: an overwritten tensor, a constant, a detached embedding",
        ("gates.overfit.max_blanked_ratio",),
    ),
    Rule(
        "frozen_changed",
        "frozen weights are bit-identical afterwards",
        "zero",
        "keep frozen parameters out of the optimizer, and modules with statistics in eval mode",
        unit="parameters",
    ),
    Rule(
        "rerun_differs",
        "a second run in a fresh process gives the same bits",
        "zero",
        "seed what is not seeded; look for time, sets, threads or an operation without a "
        "deterministic kernel",
        unit="runs",
    ),
    Rule(
        "other_seed_same",
        "a run with another seed gives other bits (or the comparison compares nothing)",
        "zero",
        "let the model draw its initial weights from torch's generator",
        unit="runs",
    ),
)

NOT_COVERED = (
    "whatever can be memorised: wrong labels, a mask that is off by one, a leak of the future; the "
    "mask report and the gradient probe take those",
    "the fine-tuning learning rate and its schedule: the gradient probe takes those",
    "dropout and weight decay, which are off here",
)

CAUSES = (
    ({"rerun_differs"}, "something is not seeded or has no deterministic kernel"),
    ({"other_seed_same"}, "the weights do not depend on the seed"),
    (
        {"loss_error"},
        "the loss is not the mean cross-entropy over supervised tokens (scaled, reduced "
        "otherwise, shifted, or of something else)",
    ),
    ({"frozen_changed"}, "the optimizer or a buffer update reaches frozen parameters"),
    (
        {"overfit_loss", "blanked_ratio"},
        "the model does not see its input, or nothing trains: no "
        "gradient reaches the weights, or no step is applied",
    ),
    (
        {"pretrained_loss_share"},
        "the model knows no more than a random one: its weights are not loaded, or the tokenizer "
        "is not its own",
    ),
    ({"initial_loss_error"}, "the initialisation is far from even guessing"),
    (
        {"overfit_loss"},
        "the model cannot fit what it sees: a rate out of range, parameters without "
        "gradient or outside the optimizer, or too little capacity",
    ),
    (
        {"blanked_ratio"},
        "the targets can be had without the input: it leaks, or all rows are alike",
    ),
)
