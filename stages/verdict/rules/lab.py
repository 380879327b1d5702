"""The lab: does a known model learn known sequences by heart, with the training step of this code?

Sources: Karpathy, "A Recipe for Training Neural Networks" (loss at initialisation, overfit one
batch); Hu et al., LoRA. Limits are the protocol's: a loss below 0.05 within 35 steps.
"""

from ..judging import Rule

MASK = "mend the labels or the collator: look at the named tokens"

RULES = (
    Rule(
        "prompt_supervised",
        "nothing but answers is supervised: no prompt, no padding",
        "zero",
        MASK,
        unit="tokens",
    ),
    Rule("answer_masked", "every answer token is its own label", "zero", MASK, unit="tokens"),
    Rule("stop_masked", "every stop token is its own label", "zero", MASK, unit="tokens"),
    Rule(
        "loss_error",
        "the training loss equals the mean cross-entropy of the supervised tokens",
        "at_most",
        "mend the loss: look for a factor, another reduction, a second shift",
        ("gates.overfit.max_loss_error",),
    ),
    Rule(
        "initial_loss_error",
        "the untrained model guesses evenly: its loss is ln(vocabulary)",
        "at_most",
        "mend the initialisation: the frozen head decides the size of the first logits",
        ("gates.overfit.max_initial_loss_error",),
    ),
    Rule(
        "overfit_loss",
        "the sequences are learned by heart within the protocol's steps",
        "below",
        "follow the causes; the model and the data are known to be learnable",
        ("gates.overfit.max_loss",),
        "nats",
    ),
    Rule(
        "frozen_changed",
        "everything that is not a LoRA matrix is bit-identical afterwards",
        "zero",
        "keep frozen parameters out of the optimizer, and freeze all but the adapters",
        unit="tensors",
    ),
    Rule(
        "adapter_unchanged",
        "every LoRA matrix has changed",
        "zero",
        "find where the gradient of the named matrices is lost, or what keeps them out of the "
        "optimizer",
        unit="matrices",
    ),
    Rule(
        "rerun_differs",
        "a second run in a fresh process gives the same bits",
        "zero",
        "look for what is not seeded: threads, or an operation without a deterministic kernel",
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
    "your data, model and settings: the lab brings its own, the gates take yours",
    "GPUs and bfloat16: the lab runs on the CPU in float32",
)

CAUSES = (
    ({"prompt_supervised", "answer_masked"}, "the labels are inverted or belong to other rows"),
    ({"prompt_supervised"}, "the labels are not masked: the prompt or the padding is supervised"),
    ({"stop_masked"}, "the stop token is masked: the model would never stop"),
    ({"answer_masked"}, "parts of the answers are masked"),
    ({"rerun_differs"}, "something is not seeded or has no deterministic kernel"),
    ({"other_seed_same"}, "the weights do not depend on the seed"),
    ({"loss_error"}, "the loss is not the mean cross-entropy over supervised tokens"),
    ({"frozen_changed"}, "frozen weights are trained, or something else writes to them"),
    (
        {"overfit_loss", "adapter_unchanged"},
        "adapters do not train: no gradient reaches them, or the optimizer does not hold them",
    ),
    ({"adapter_unchanged"}, "some adapters do not train"),
    ({"initial_loss_error"}, "the initialisation is far from even guessing"),
    ({"overfit_loss"}, "the training step does not learn what it has been seen to learn"),
)
