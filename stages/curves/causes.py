"""Which causes does a signature have, and what is to be tried first?

The diagnostic matrix. A curve alone decides little (a gate that looks into the model decides more),
so causes are hypotheses: in the order in which they are worth a try, and those first that another
signature of the same log supports.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A hypothesis and what to try. supported_by: ids of signatures that speak for it."""

    text: str
    remedy: str
    supported_by: frozenset[str] = frozenset()


def _cause(text: str, remedy: str, *supported_by: str) -> Cause:
    return Cause(text, remedy, frozenset(supported_by))


LOWER_RATE = "lower it 3 to 10 times"
WARM_UP = "warm up linearly over the first 5 % of the steps"
NO_WARMUP = _cause("no warm-up", WARM_UP, "no_warmup")
RATE_TOO_HIGH = _cause("the learning rate is too high", LOWER_RATE, "rate_constant")
NOT_CLIPPED = _cause(
    "gradients are not clipped", "clip at a norm of 1", "norm_explodes", "norm_not_finite"
)
CAUSES: dict[str, tuple[Cause, ...]] = {
    "nan_early": (
        _cause("float16 overflows", "train in bfloat16, or scale the loss"),
        _cause(RATE_TOO_HIGH.text, LOWER_RATE),
        NO_WARMUP,
        NOT_CLIPPED,
        _cause("bad initial weights", "look at the loss before step 1: it should be near ln K"),
        _cause("inputs hold NaN, or all labels of a batch are masked", "check each batch for both"),
    ),
    "nan_late": (
        _cause(
            "a bad batch: NaN in its inputs, or nothing in it supervised",
            "run the batches of that step by themselves",
        ),
        _cause("gradients burst", "clip at a norm of 1", "norm_explodes", "spike", "divergence"),
        _cause(
            "the learning rate is too high for this late", LOWER_RATE, "divergence", "long_rise"
        ),
        _cause("float16 overflows", "train in bfloat16"),
        _cause("log, sqrt or a division of 0", "torch.autograd.detect_anomaly() names the place"),
    ),
    "hidden_nan": (
        _cause(
            "transformers logs 0 for a NaN loss (logging_nan_inf_filter)",
            "set logging_nan_inf_filter=False, and treat it as a loss of NaN",
            "norm_not_finite",
            "validation_not_finite",
        ),
        _cause("float16 overflows", "train in bfloat16; lower the rate 3 to 10 times"),
        _cause("no token of the batches is supervised", "read the mask report"),
    ),
    "zero_at_start": (
        _cause("nothing is supervised: all labels are -100", "read the mask report"),
        _cause("the targets stand in the inputs", "look at a batch, and that labels are shifted"),
        _cause(
            "NaN is logged as 0",
            "set transformers' logging_nan_inf_filter=False",
            "norm_not_finite",
            "validation_not_finite",
        ),
    ),
    "flat": (
        _cause(
            "the learning rate is 0 or too low",
            "look at the schedule; a learning-rate range test",
            "rate_zero",
            "rate_ends_early",
            "rate_steps_twice",
            "warmup_too_long",
        ),
        _cause(
            "no gradient reaches a trainable parameter",
            "check requires_grad, and that the optimizer holds the model's parameters",
            "norm_vanishes",
            "repeated_losses",
        ),
        _cause("clipping takes nearly all of it", "raise the limit", "always_clipped"),
        _cause("the mask covers what should be learned", "read the mask report"),
        _cause("units are dead, or targets constant", "the gradient probe; look at targets"),
        _cause("the model knows the data already", "compare with the base model"),
    ),
    "at_prior": (
        _cause("inputs do not reach the loss", "train on blanked inputs: is the loss the same?"),
        _cause(
            "no gradient reaches the trainable parameters",
            "check requires_grad and the optimizer's parameters",
            "flat",
            "norm_vanishes",
            "rate_zero",
        ),
        _cause("the learning rate is too high: the model fell back to the prior", LOWER_RATE,
               "early_spike", "norm_explodes"),
        _cause("labels are shuffled against inputs", "look at batches as they reach the model"),
    ),
    "spike": (
        _cause("bad batches", "look at the batches of these steps; clip at a norm of 1"),
        _cause("the learning rate is too high for this late", LOWER_RATE),
        _cause(
            "Adam's second moment lags behind the gradients",
            "set beta2 to 0.95",
            "norm_explodes",
        ),
    ),
    "early_spike": (
        NO_WARMUP,
        _cause(RATE_TOO_HIGH.text, LOWER_RATE),
        _cause("Adam's second moment lags behind the gradients", "set beta2 to 0.95"),
    ),
    "divergence": (
        _cause("the learning rate is too high", LOWER_RATE),
        NO_WARMUP,
        NOT_CLIPPED,
        _cause("the data changed its kind along the run", "shuffle; compare batches of both ends"),
        _cause("the sign of the loss is flipped", "check the loss", "rate_constant"),
    ),
    "long_rise": (
        _cause("the learning rate is too high", LOWER_RATE),
        NO_WARMUP,
        _cause("data in an order: sorted, or one source after the other", "shuffle"),
        _cause(
            "the optimizer's state was lost when the run was resumed",
            "restore optimizer, schedule and random state",
        ),
    ),
    "oscillation": (
        NO_WARMUP,
        _cause("the learning rate is too high", LOWER_RATE),
        _cause("micro-batches are too small", "accumulate gradients over more of them", "noisy"),
        _cause("data in an order: sorted, or not shuffled", "shuffle each epoch"),
    ),
    "plateau_high": (
        _cause(
            "the schedule decayed early",
            "give it the true number of steps",
            "rate_ends_early",
            "rate_steps_twice",
        ),
        _cause("underfitting", "more capacity (a larger rank), a higher rate, a longer run"),
        _cause("softmax in front of the cross-entropy", "give the loss logits"),
        _cause("labels are noisy", "look at rows with the highest loss"),
    ),
    "overfitting": (
        _cause("too many epochs for this much data", "stop at the lowest validation loss"),
        _cause("too little data for this capacity", "more data; a smaller rank"),
        _cause("too little regularisation", "weight decay, dropout"),
    ),
    "validation_rises": (
        _cause("training diverges", "see the training loss", "divergence", "long_rise"),
        _cause("a higher rate unlearns what the model knew", LOWER_RATE),
        _cause("training and validation differ in kind", "compare their rows and their masks"),
    ),
    "validation_not_finite": (
        _cause("no token of a validation batch is supervised", "read the mask report"),
        _cause("the weights hold NaN", "see the training loss", "nan_late", "hidden_nan"),
        _cause("float16 overflows", "evaluate in bfloat16 or float32"),
    ),
    "validation_below": (
        _cause(
            "the logged training loss is a sum over accumulated micro-batches",
            "divide it by their number; update the trainer",
        ),
        _cause("validation rows stand in the training data", "look for overlap (hash_data does)"),
        _cause(
            "dropout, label smoothing or augmentation act in training only",
            "evaluate on training rows, in eval mode",
        ),
        _cause("other tokens are supervised in validation", "compare both masks"),
    ),
    "accuracy_flat_loss_rises": (
        _cause("the model grows too sure of what it gets wrong", "stop earlier; label smoothing",
               "overfitting"),
        _cause("the metric does not measure what the loss does", "compare them on single rows"),
    ),
    "negative": (
        _cause("the sign of the loss is flipped", "a cross-entropy is never below 0"),
        _cause("the loss is not a cross-entropy", "leave --classes and --prior out"),
    ),
    "rate_zero": (
        _cause("scheduler.step() is not called", "call it once after each optimizer step"),
        _cause("the schedule counts 0 steps in all", "give it the true number of steps"),
        _cause("the warm-up is longer than the run", "warm up over 5 % of the steps"),
    ),
    "rate_ends_early": (
        _cause("the schedule was given fewer steps than the run has", "count the steps again: rows "
               "/ (batch x accumulation x processes) x epochs"),
    ),
    "rate_steps_twice": (
        _cause(
            "scheduler.step() is called more than once a step: by you and by the trainer, in each "
            "process, or in each micro-batch",
            "call it once after each optimizer step",
        ),
        _cause("the schedule was given too few steps", "count the steps again"),
    ),
    "rate_rises_again": (
        _cause("a cosine schedule went on behind its end", "give it the true number of steps"),
    ),
    "warmup_too_long": (
        _cause("the warm-up is as long as the run", "warm up over 5 % of the steps"),
    ),
    "norm_explodes": (
        _cause("gradients are not clipped", "clip at a norm of 1"),
        _cause("the learning rate is too high", LOWER_RATE, "divergence", "no_warmup"),
        _cause("bad batches", "look at the batches of these steps", "spike"),
        _cause("clipping before the loss scale is taken out", "unscale first"),
    ),
    "norm_vanishes": (
        _cause("trainable parameters are cut off (detach, no_grad, reentrant checkpointing over a "
               "frozen base)", "the gradient probe names the parameters"),
        _cause("the loss is scaled down, or its mask covers all", "look at the loss; mask report"),
        _cause("units are saturated or dead", "the gradient probe"),
    ),
    "norm_not_finite": (
        _cause("float16 overflows at each step", "train in bfloat16; start from a lower scale"),
        _cause(RATE_TOO_HIGH.text, LOWER_RATE, "divergence", "nan_early", "nan_late"),
        _cause("a derivative is infinite (sqrt or log of 0)",
               "torch.autograd.detect_anomaly() names the place"),
    ),
    "always_clipped": (
        _cause("the loss is a sum, or scaled", "take the mean over supervised tokens"),
        _cause("the limit is too low for this model", "raise it above the median norm"),
    ),
    "repeated_losses": (
        _cause("weights do not change, and the data comes in one order", "check requires_grad and "
               "the rate", "flat", "rate_zero", "norm_vanishes"),
        _cause("the run was resumed from older weights than its step count says", "resume weights, "
               "optimizer and step from one checkpoint"),
        _cause("the data starts anew at each resume", "restore the position in the data"),
    ),
}  # fmt: skip


def rank(signature: str, others: Iterable[str]) -> list[Cause]:
    """The causes of a signature: those first that other signatures support."""
    seen = set(others)
    return sorted(CAUSES.get(signature, ()), key=lambda cause: not cause.supported_by & seen)
