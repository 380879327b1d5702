"""Every limit of the sanity check, with its source. Rules name them by key.

"Healthy runs" are those of tests/sanity: what none of them reaches, with room.
"""

LIMITS: dict[str, float] = {
    # AutoTrainer's "abnormal data": mean |input| above 10
    "sanity.max_input_mean": 10.0,
    # images divided by 255 twice have a maximum of 0.004
    "sanity.min_input_largest": 0.02,
    # healthy runs; targets beyond it need thousands of steps to be reached by a bias
    "sanity.max_target_rms": 100.0,
    "sanity.min_label_kinds": 2,
    # "95:5" is the usual example of an imbalance that a constant answer satisfies
    "sanity.max_majority": 0.9,
    "sanity.max_duplicates": 0.1,
    "sanity.max_conflicts": 0.02,
    "sanity.max_overlap": 0.01,
    # share of the spread by which training and validation inputs may be apart, and its ratio
    "sanity.max_mean_difference": 0.3,
    "sanity.max_spread_ratio": 1.5,
    # standard errors above chance: 1 in 700 by luck
    "sanity.min_label_sigmas": 3.0,
    "sanity.max_label_noise": 0.04,
    # target probe: alignment, normaliser, smoothing
    "sanity.min_alignment": 0.99,
    "sanity.max_scale_error": 0.05,
    "sanity.max_smoothing_error": 0.02,
    "sanity.max_uneven_calls": 1.05,
    # TheDeepChecker: the initial loss is off by ln K or more
    "sanity.max_initial_share": 2.0,
    # a pretrained language model must start well below ln K
    "sanity.max_pretrained_share": 0.9,
    "sanity.max_untouched": 0.5,
    # a quarter of what can be learned of one batch, at the user's rate or at the harness's own
    "sanity.min_learned": 0.25,
    # where most weights are frozen: adapters and heads cannot learn all by heart
    "sanity.min_learned_adapted": 0.1,
    "sanity.min_progress": 0.02,
    "sanity.max_blanked_ratio": 0.9,
    # betas: decay rates below 0.9 or means over more than 100 steps are not in use; eps 1e-8 is
    # the default, and 1e-3 the largest in common use
    "sanity.min_beta2": 0.5,
    "sanity.max_beta1": 0.99,
    "sanity.max_optimizer_eps": 1e-2,
    "sanity.max_weight_decay": 1.0,
    "sanity.max_momentum": 0.995,
    # UMLAUT warns of dropout above 0.5; 0.8 is beyond what is in use
    "sanity.max_dropout": 0.75,
    "sanity.min_batch_norm_momentum": 0.005,
    "sanity.max_batch_norm_momentum": 0.9,
    "sanity.max_norm_eps": 1e-2,
    # std times the root of fan-in: 0.58 for torch's default, 1.4 for He's, 0.16 for 0.02 at 64
    "sanity.min_init_gain": 0.01,
    "sanity.max_init_gain": 3.9,
    # SageMaker Debugger's DeadRelu and SaturatedActivation: half of a layer
    "sanity.max_dead": 0.5,
    "sanity.max_saturated": 0.5,
    # healthy runs learn with updates of 1e-6 to 1 of the weights
    "sanity.min_update_ratio": 1e-6,
    "sanity.max_update_ratio": 3.0,
    "sanity.max_clip_excess": 100.0,
    "sanity.max_rate_collapse": 0.05,
    "sanity.max_gradient_norm": 1000.0,
    "sanity.min_gradient_share": 1e-6,
    # a gain of a pure bfloat16 model changes in 0 to 43 % of its elements, in float32 in all
    "sanity.min_changed_share": 0.9,
    "sanity.max_metric_error": 5e-4,
    "sanity.min_superposition_error": 1e-4,
}
