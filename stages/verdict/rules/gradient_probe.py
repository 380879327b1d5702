"""Gate 3: are gradients, updates and the learning rate of the first real steps sound?

Limits are the protocol's: a global L2 norm before clipping in [0.1, 5.0], below 1e-5 vanishing,
above 10 or NaN exploding; an update-to-weight ratio about 1e-3 a matrix at the peak rate. A single
step out of range warns; the median over the probed steps is judged. Those of targets, of changed
elements and of updates come from healthy runs: a norm's gains all change in float32, 43 % of them
in bfloat16; a first update is 0.05 to 0.6 of the weights in models from scratch at rates of 0.003
to 0.01, and below 0.1 in pretrained ones at rates that do not undo what they know.
Dropout above one half is UMLAUT's warning; gains and biases are not decayed in nanoGPT. Adam whose
epsilon is as large as the gradients, or decay that takes a hundredth of the weights at each step,
learns something else than what the loss asks for.
"""

from ..judging import Rule

RULES = (
    Rule(
        "targets_untrained",
        "the first step trains on every supervised token of its rows",
        "zero",
        "see which rows and labels reach the loss: data.collator, train.step, train.loss, a loss "
        "that ignores a class",
        unit="tokens",
    ),
    Rule(
        "targets_unasked",
        "the first step trains on no other position",
        "zero",
        "see which rows and labels reach the loss: data.collator, train.step, train.loss",
        unit="positions",
    ),
    Rule(
        "targets_wrong",
        "each position is trained on the token that comes next",
        "zero",
        "shift labels once: in the collator or in the loss, not in both or neither",
        unit="tokens",
    ),
    Rule(
        "targets_raised",
        "the loss raises one class at each position and lowers all others",
        "zero",
        "look for a flipped sign, label smoothing, softmax before the loss, or a loss that is no "
        "cross-entropy",
        unit="tokens",
    ),
    Rule(
        "target_weight_error",
        "each supervised token of the step weighs the same: 1 / their number",
        "at_most",
        "divide by the supervised tokens of the whole step, once: not by those of a micro-batch, "
        "and by no other factor",
        ("gates.gradient.max_target_weight_error",),
    ),
    Rule(
        "sees_future",
        "no output depends on a later token",
        "zero",
        "mend the causal mask, its diagonal, and the order of axes of the heads",
        unit="outputs",
    ),
    Rule(
        "sees_others",
        "no output depends on another row, or on another document of its row",
        "zero",
        "look for a reduction or a view over the batch; in packed rows, reset attention and all "
        "state where positions restart, or set train.packing to false",
        unit="outputs",
    ),
    Rule(
        "ignores_input",
        "each output depends on its own token",
        "zero",
        "find where the input is lost: detach, no_grad, an overwritten tensor",
        unit="outputs",
    ),
    Rule(
        "dropout_off",
        "dropout is on while the model trains",
        "zero",
        "call model.train() before the steps, and after each evaluation",
        unit="modules",
    ),
    Rule(
        "evaluation_differs",
        "two passes in evaluation mode give the same logits",
        "zero",
        "pass training=self.training to functional dropout; seed nothing in forward",
        unit="logits",
    ),
    Rule(
        "precision_not_applied",
        "matrix products run in run.precision",
        "zero",
        "enter autocast() around the forward pass in train.step",
    ),
    Rule(
        "half_change",
        "weights in half precision take their updates (least changed vector)",
        "at_least",
        "keep trained weights in float32 (model.dtype) and use run.precision bf16; or raise the "
        "rate: a step below 1/256 of a bfloat16 weight is lost",
        ("gates.gradient.min_changed_fraction",),
    ),
    Rule(
        "affine_feed_forwards",
        "feed-forward networks have an activation (superposition does not hold)",
        "zero",
        "put the activation back between the layers of the named module",
        unit="modules",
    ),
    Rule(
        "epsilon_share",
        "the optimizer's epsilon is small beside the gradients (median over matrices)",
        "at_most",
        "lower train.optimizer.adam_epsilon (1e-8 is usual): above the gradients it takes the "
        "place of their own scale, and steps shrink with them",
        ("gates.gradient.max_epsilon_share",),
    ),
    Rule(
        "decay_per_step",
        "weight decay takes little of the weights at each step (train.weight_decay times the rate)",
        "at_most",
        "lower train.weight_decay (0.01 to 0.1 is usual) or train.learning_rate",
        ("gates.gradient.max_decay_per_step",),
    ),
    Rule(
        "decayed_vectors",
        "gains and biases are not decayed",
        "zero",
        "give the optimizer a group without weight decay for parameters of one dimension",
        unit="parameters",
        severity="warn",
    ),
    Rule(
        "dropout",
        "dropout leaves enough to learn from (largest probability)",
        "at_most",
        "lower the named probability: 0 to 0.1 is usual for language models",
        ("gates.gradient.max_dropout",),
    ),
    Rule(
        "answers_cut_off",
        "the answers that evaluation asks for fit train.max_new_tokens",
        "zero",
        "raise train.max_new_tokens: until then these answers count as wrong and as never stopped",
        unit="answers",
        severity="warn",
    ),
    Rule(
        "non_finite",
        "no loss, gradient, activation or weight is NaN or infinite",
        "zero",
        "lower the rate, warm up, clip; look at the named tensor: a log of 0, an overflow",
        unit="tensors",
    ),
    Rule(
        "optimizer_calls_missing",
        "every training step calls the optimizer once",
        "zero",
        "mend train.step: it must call optimizer.step() once for all its micro-batches",
        unit="steps",
    ),
    Rule(
        "learning_rate_error",
        "the applied learning rate follows the schedule's closed form",
        "at_most",
        "mend train.step: it must call scheduler.step() exactly once a step, after the optimizer",
        ("gates.gradient.max_learning_rate_error",),
    ),
    Rule(
        "loss_unscaled",
        "in float16 the loss is scaled before the backward pass",
        "zero",
        "mend train.step: scaler.scale(loss).backward(), unscale, clip, scaler.step, "
        "scaler.update; or use run.precision bf16",
        unit="steps",
    ),
    Rule(
        "stale_gradients",
        "no gradient is left over after a step",
        "zero",
        "mend train.step: it must call optimizer.zero_grad()",
        unit="parameters",
    ),
    Rule(
        "not_in_optimizer",
        "every trainable parameter is in the optimizer",
        "zero",
        "build the optimizer after the last change to the model (wrapping, casting, resizing)",
        unit="parameters",
    ),
    Rule(
        "undeclared_frozen",
        "every frozen parameter is frozen on purpose",
        "zero",
        "train the named parameters, or add a pattern for them to model.frozen",
        unit="parameters",
    ),
    Rule(
        "without_gradient",
        "a gradient reaches every trainable parameter",
        "zero",
        "find what cuts the graph: an unused module, detach, no_grad, reentrant checkpointing "
        "over a frozen base",
        unit="parameters",
    ),
    Rule(
        "reentrant_over_frozen",
        "activation checkpointing lets gradients through a frozen base",
        "zero",
        "set train.gradient_checkpointing_kwargs.use_reentrant: false",
        unit="modules",
    ),
    Rule(
        "unchanged",
        "every trainable parameter changes",
        "zero",
        "see that the parameter is in the optimizer, has a gradient, and that the rate is not 0",
        unit="parameters",
    ),
    Rule(
        "frozen_changed",
        "no frozen parameter changes",
        "zero",
        "keep frozen parameters out of the optimizer",
        unit="parameters",
    ),
    Rule(
        "median_norm",
        "the gradient norm before clipping is healthy (median over the steps)",
        "between",
        "too small: look for a scaled loss or a cut graph (adapters on a base that fits the data "
        "have small ones: lower gates.gradient.min_norm); too large: for a summed loss, a hot "
        "initialisation, outliers in the data",
        ("gates.gradient.min_norm", "gates.gradient.max_norm"),
    ),
    Rule(
        "smallest_norm",
        "no step's gradient vanishes",
        "at_least",
        "look for a step without supervised tokens or with a dead path",
        ("gates.gradient.vanishing_norm",),
        severity="warn",
    ),
    Rule(
        "largest_norm",
        "no step's gradient explodes",
        "at_most",
        "warm up longer; look at the rows of that step",
        ("gates.gradient.exploding_norm",),
        severity="warn",
    ),
    Rule(
        "clip_ratio",
        "the optimizer gets gradients clipped to train.max_grad_norm",
        "at_most",
        "mend train.step: clip after the last backward, and after unscaling",
        ("gates.gradient.max_clip_ratio",),
    ),
    Rule(
        "clip_excess",
        "clipping does not rescale every step (smallest norm over train.max_grad_norm)",
        "at_most",
        "raise train.max_grad_norm or find why gradients are large: clipping hides a wrong scale",
        ("gates.gradient.max_clip_excess",),
        severity="warn",
    ),
    Rule(
        "update_ratio",
        "the first update at the peak rate is smaller than the weights (median over matrices)",
        "between",
        "change train.learning_rate by the factor by which this is off: updates of 1e-3 of the "
        "weights are usual, from scratch up to 0.1; `holdshort lr-range` suggests a rate",
        ("gates.gradient.min_update_ratio", "gates.gradient.max_update_ratio"),
    ),
    Rule(
        "pretrained_update_ratio",
        "first updates of a pretrained model are about a thousandth of the weights",
        "at_most",
        "scale train.learning_rate by what is missing to 1e-3: larger updates undo what the model "
        "has learned",
        ("gates.gradient.max_pretrained_update_ratio",),
    ),
    Rule(
        "dead_fraction",
        "few units never fire (worst module)",
        "at_most",
        "lower the rate or mend the initialisation of the named module",
        ("gates.gradient.max_dead_fraction",),
    ),
    Rule(
        "saturated_fraction",
        "few bounded units are saturated (worst module)",
        "at_most",
        "mend the initialisation or the scale of the inputs of the named module",
        ("gates.gradient.max_saturated_fraction",),
    ),
    Rule(
        "resume_differs",
        "a training that stops and goes on in a fresh process gives the same bits",
        "zero",
        "keep all state in the model's state_dict, the optimizer, the schedule or torch's, numpy's "
        "and Python's generators: a checkpoint holds these",
        unit="differences",
    ),
)

NOT_COVERED = (
    "steps after the probed ones: a loss may spike thousands of steps later",
    "the learning rate beyond the probed steps, but for the schedule's closed form",
    "a resume later in the training, or in another epoch",
    "wiring that computes something else without a leak, such as attention without its scale",
    "dropout by functional calls with a fixed `training`: only its absence in evaluation is seen",
    "activations that are missing from gated networks, which without one still are no line",
)

NOT_IN_OPTIMIZER = "parameters are trainable, but the optimizer lacks them"
ROUNDED_AWAY = "updates are lost to rounding: trained weights are in half precision"
REENTRANT = "reentrant checkpointing over a frozen base cuts the graph: its inputs need no gradient"
RATE_UNFIT = "the learning rate does not fit the size of the weights"
RATE_TOO_HIGH = (
    "the learning rate is too high, or the weights start too small: the first update is {:.3g} "
    "times the weights, and what else fails may follow from it"
)
CUT = "the graph is cut: no gradient reaches the named parameters"

SILENT = (
    {"targets_untrained", "without_gradient", "unchanged"},
    "no gradient leaves the loss: supervised tokens are not trained on, because all are masked or "
    "the loss is constant there (clamped, detached)",
)

CAUSES = (
    (
        {"non_finite"},
        "a number overflows or is undefined; the first named tensor is where it begins",
    ),
    ({"evaluation_differs"}, "something is random in evaluation mode: dropout that never ends"),
    ({"dropout_off"}, "the model trains in evaluation mode: its dropout is off"),
    ({"reentrant_over_frozen", "without_gradient", "targets_untrained", "unchanged"}, REENTRANT),
    ({"without_gradient", "targets_untrained", "unchanged"}, CUT),
    ({"targets_raised", "targets_wrong"}, "the loss has the wrong sign, or is no cross-entropy"),
    ({"targets_wrong"}, "positions are trained on another token than the next"),
    ({"targets_raised"}, "the loss raises several classes: label smoothing, or no cross-entropy"),
    (
        {"targets_untrained", "targets_unasked"},
        "the labels that reach the loss are not those of the token store",
    ),
    (
        {"targets_untrained", "target_weight_error"},
        "some of the step's tokens are not trained on: they are masked, or micro-batches or rows "
        "are left out",
    ),
    ({"targets_unasked", "target_weight_error"}, "masked tokens are trained on"),
    ({"targets_unasked"}, "masked tokens are trained on"),
    ({"targets_untrained"}, "supervised tokens are not trained on: masked, or ignored as a class"),
    (
        {"target_weight_error"},
        "the loss is scaled: summed, divided by the tokens of each micro-batch, not divided by "
        "their number, multiplied by a factor, or smoothed",
    ),
    ({"sees_future"}, "the model sees the tokens that it shall predict: its mask is not causal"),
    ({"sees_others"}, "rows or documents see each other: an operation mixes them"),
    ({"optimizer_calls_missing", "unchanged"}, "the training step never calls the optimizer"),
    ({"learning_rate_error", "unchanged"}, "the schedule stays at 0: nothing is ever learned"),
    ({"learning_rate_error"}, "the schedule is stepped too often, too seldom or not at all"),
    ({"not_in_optimizer", "unchanged", "stale_gradients"}, NOT_IN_OPTIMIZER),
    ({"stale_gradients"}, "gradients of earlier steps are never cleared"),
    ({"undeclared_frozen"}, "parameters are frozen that nobody declared frozen"),
    ({"not_in_optimizer", "unchanged"}, NOT_IN_OPTIMIZER),
    ({"optimizer_calls_missing"}, "the optimizer is not called once a step: once a micro-batch?"),
    ({"not_in_optimizer"}, "the optimizer was built before parameters were added or replaced"),
    ({"reentrant_over_frozen", "without_gradient", "unchanged"}, REENTRANT),
    ({"loss_unscaled"}, "float16 without a scaled loss: small gradients become 0"),
    ({"reentrant_over_frozen"}, REENTRANT),
    ({"without_gradient", "unchanged"}, CUT),
    ({"without_gradient"}, CUT),
    ({"half_change", "unchanged"}, ROUNDED_AWAY),
    ({"half_change"}, ROUNDED_AWAY),
    ({"unchanged"}, "updates are lost: a rate of 0, or steps too small for the precision"),
    ({"frozen_changed"}, "the optimizer holds frozen parameters, or decays them"),
    ({"clip_ratio"}, "gradients are not clipped, or before they are complete"),
    (
        {"median_norm"},
        "the gradient has the wrong scale: a scaled or summed loss, or an unhealthy initialisation",
    ),
    ({"update_ratio", "pretrained_update_ratio"}, RATE_UNFIT),
    ({"update_ratio"}, RATE_UNFIT),
    ({"pretrained_update_ratio"}, RATE_UNFIT),
    ({"ignores_input"}, "the model does not see its own input"),
    ({"affine_feed_forwards"}, "the activation is missing: two layers do what one matrix could"),
    ({"epsilon_share"}, "Adam's epsilon is larger than the gradients: steps are as good as none"),
    ({"dropout"}, "dropout takes nearly all that the model computes"),
    ({"decay_per_step"}, "weight decay outweighs the loss: weights shrink faster than they learn"),
    ({"precision_not_applied"}, "run.precision is not applied: the step does not enter autocast"),
    ({"dead_fraction"}, "units are dead: they never fire on a whole batch"),
    ({"saturated_fraction"}, "units are saturated: they pass no gradient"),
    ({"resume_differs"}, "a resumed training is not the one that was stopped"),
)

RESUME_CAUSES = {
    "start": "the training does not repeat from its start: something is not seeded, or code of "
    "your own keeps state outside the model",
    "checkpoint": "a training cannot go on from its checkpoint",
    "position": "a resumed run gets other rows: the data position is not restored",
    "model": "a resumed run has other weights: they are not restored, or loading changes them",
    "optimizer": "optimizer state is not restored",
    "scheduler": "learning rate differs: the scheduler is not restored",
    "scaler": "the loss scaler is not restored",
    "rng": "random state is not restored",
    "telemetry": "the telemetry of the steps before is not restored",
    "batch": "a resumed run gets other batches of the same rows: the collator keeps state that no "
    "checkpoint holds",
    "learning_rate": "learning rate differs: it follows from what no checkpoint holds",
    "step": "a resumed run computes otherwise from the same state and batch: code of your own "
    "keeps state that no checkpoint holds, or an operation is not deterministic",
}


SHIFT_CAUSES = {
    0: "labels are not shifted: each position is trained on the token that it sees",
    2: "labels are shifted twice: each position is trained on the token after the next",
}


def causes_of(
    resume_difference: str | None,
    shift: int | None = None,
    *,
    loss_is_silent: bool = False,
    excessive_update: float | None = None,
) -> list[tuple[set[str], str]]:
    """CAUSES, where those of `resume_differs` and `targets_wrong` say what differs.

    resume_difference: the part of the state that differs first; shift: how far ahead of its
    position most wrong targets are; loss_is_silent: no gradient comes from the loss;
    excessive_update: the first update over the weights, where it is beyond its limit.
    """
    named = {frozenset({"resume_differs"}): RESUME_CAUSES.get(str(resume_difference))}
    if resume_difference is not None and resume_difference not in RESUME_CAUSES:
        named[frozenset({"resume_differs"})] = f"the {resume_difference} is not restored"
    if shift is not None:
        named[frozenset({"targets_wrong"})] = SHIFT_CAUSES.get(shift)
    first = [SILENT] if loss_is_silent else []
    if excessive_update is not None:
        too_high = RATE_TOO_HIGH.format(excessive_update)
        first += [({"update_ratio", "pretrained_update_ratio"}, too_high)]
        first += [({"update_ratio"}, too_high), ({"pretrained_update_ratio"}, too_high)]
    return [*first, *((ids, named.get(frozenset(ids)) or cause) for ids, cause in CAUSES)]
