"""Gate 2: can the model learn a handful of rows by heart, twice the same?

Sources: Karpathy, "A Recipe for Training Neural Networks" (loss at initialisation, overfit one
batch, input-independent baseline). Limits are the protocol's: a loss below 0.05 within 35 steps.
"""

from collections.abc import Sequence

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
        "follow the causes; if all else passes, try gates.overfit.learning_rate in 1e-3 to 5e-2, "
        "or raise gates.overfit.max_steps where the causes say that more steps do",
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
        "adapters_off",
        "every adapter takes part in the training step",
        "zero",
        "enable the adapters of the named layers: look for disable_adapter() or merge_adapter() "
        "in your code",
        unit="layers",
    ),
    Rule(
        "stop_row_alike",
        "a head that does not train has a row for the stop token that is like no other",
        "zero",
        "train the head (model.lora.modules_to_save: [lm_head]), or use a chat template whose stop "
        "token the base model knows, as its instruction-tuned variant has it",
        unit="rows",
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

ADAPTERS_OFF = "adapters are switched off or merged while the model trains: they learn nothing"
STOP_UNKNOWN = (
    "the base model never learned the stop token, and the head, which does not train, cannot tell "
    "it from other tokens: the model would stop by chance"
)
NOT_PRETRAINED = {
    True: "the model guesses evenly, as a random one does: its weights are not loaded",
    False: "the model is sure of other tokens: the tokenizer is not its own, or the chat template "
    "is one that it does not know",
}
"""By whether the model guesses evenly."""
LEARNS_SLOWLY = (
    "the model learns the rows, but takes {} steps, more than gates.overfit.max_steps; a small "
    "model from scratch may need them"
)
TOO_MUCH_FROZEN = "what model.frozen keeps from training ({}) is needed to learn the rows by heart"

CAUSES = (
    ({"rerun_differs"}, "something is not seeded or has no deterministic kernel"),
    ({"other_seed_same"}, "the weights do not depend on the seed"),
    (
        {"loss_error"},
        "the loss is not the mean cross-entropy over supervised tokens (scaled, reduced "
        "otherwise, shifted, or of something else)",
    ),
    ({"adapters_off", "overfit_loss", "blanked_ratio"}, ADAPTERS_OFF),
    ({"adapters_off", "overfit_loss"}, ADAPTERS_OFF),
    ({"adapters_off"}, ADAPTERS_OFF),
    ({"stop_row_alike", "overfit_loss"}, STOP_UNKNOWN),
    ({"stop_row_alike"}, STOP_UNKNOWN),
    ({"frozen_changed"}, "the optimizer or a buffer update reaches frozen parameters"),
    (
        {"overfit_loss", "blanked_ratio"},
        "the model does not see its input, or nothing trains: no "
        "gradient reaches the weights, or no step is applied",
    ),
    ({"pretrained_loss_share"}, NOT_PRETRAINED[True]),
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


def causes_of(
    guesses_evenly: bool, steps_to_learn: int | None = None, frozen: Sequence[str] = ()
) -> list[tuple[set[str], str]]:
    """CAUSES, where that of `pretrained_loss_share` says what the model does instead.

    steps_to_learn: after how many steps the rows are learned, where more are taken than the gate
    allows; frozen: the patterns of model.frozen.
    """
    named = {frozenset({"pretrained_loss_share"}): NOT_PRETRAINED[guesses_evenly]}
    if steps_to_learn is not None:
        named[frozenset({"overfit_loss"})] = LEARNS_SLOWLY.format(steps_to_learn)
    elif frozen:
        by_frozen = TOO_MUCH_FROZEN.format(", ".join(frozen))
        named[frozenset({"overfit_loss"})] = by_frozen
        named[frozenset({"overfit_loss", "blanked_ratio"})] = by_frozen
    return [(ids, named.get(frozenset(ids), cause)) for ids, cause in CAUSES]
