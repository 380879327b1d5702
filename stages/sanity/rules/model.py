"""The model and its optimizer before they train: settings, weights, first loss."""

from ...verdict.judging import Rule

RULES = (
    Rule("maximize", "the optimizer minimises", "zero", "maximize=False"),
    Rule(
        "betas",
        "Adam's betas are in their range and order",
        "zero",
        "betas=(0.9, 0.999)",
        unit="groups",
    ),
    Rule("optimizer_eps", "the optimizer's eps is small", "zero", "eps=1e-8", unit="groups"),
    Rule("weight_decay", "weight decay is in its range", "zero", "0 to 0.1", unit="groups"),
    Rule("momentum", "momentum is below 1", "zero", "0.9", unit="groups"),
    Rule("dropout", "dropout leaves most units", "zero", "0 to 0.5", unit="modules"),
    Rule(
        "batch_norm_momentum",
        "batch normalisation updates its statistics at a usual pace",
        "zero",
        "0.1 (torch's convention: the weight of the new batch)",
        unit="modules",
    ),
    Rule("norm_eps", "the eps of normalisation layers is small", "zero", "1e-5", unit="modules"),
    Rule(
        "half_weights",
        "trained weights are not float16",
        "zero",
        "keep float32 weights, use autocast with a GradScaler",
        unit="parameters",
    ),
    Rule(
        "not_in_optimizer",
        "every trainable parameter is in the optimizer",
        "zero",
        "build the optimizer from model.parameters() after the last change to the model",
        unit="parameters",
    ),
    Rule(
        "foreign_parameters",
        "the optimizer holds the model's parameters and no others",
        "zero",
        "build the optimizer after the last change to the model",
        unit="parameters",
    ),
    Rule(
        "twice_in_optimizer",
        "no parameter is in the optimizer twice",
        "zero",
        "list each parameter once",
        unit="parameters",
    ),
    Rule(
        "frozen_undeclared",
        "every frozen parameter is frozen on purpose",
        "zero",
        "train them, or name them in intended_frozen",
        unit="parameters",
    ),
    Rule(
        "frozen_trains",
        "what is meant to be frozen is",
        "zero",
        "requires_grad_(False) on the named parameters",
        unit="parameters",
    ),
    Rule(
        "base_trains", "below adapters the base is frozen", "zero", "freeze the base", unit="models"
    ),
    Rule(
        "registered",
        "every layer is registered in the model",
        "zero",
        "use nn.ModuleList or nn.ModuleDict",
        unit="modules",
    ),
    Rule(
        "weights_tied",
        "weights that are tied are one tensor",
        "zero",
        "assign the same Parameter again after replacing one",
        unit="pairs",
    ),
    Rule(
        "constant_weights",
        "weights differ between units",
        "zero",
        "use torch's own initialisation",
        unit="modules",
    ),
    Rule(
        "zero_weights",
        "weights are not zero",
        "zero",
        "use torch's own initialisation",
        unit="modules",
    ),
    Rule(
        "zero_gains", "normalisation passes its input", "zero", "start gains at 1", unit="modules"
    ),
    Rule(
        "adapters_dead",
        "a LoRA adapter has one matrix that is not zero",
        "zero",
        "A random, B zero",
        unit="adapters",
    ),
    Rule(
        "small_init",
        "weights are not tiny",
        "zero",
        "use torch's own initialisation",
        unit="modules",
    ),
    Rule(
        "large_init",
        "weights are not huge",
        "zero",
        "use torch's own initialisation (std near 1/sqrt(fan_in))",
        unit="modules",
    ),
    Rule(
        "weights_loaded",
        "a pretrained model does not look freshly initialised (share of its parts)",
        "at_most",
        "load with strict=True and look at the missing keys; no init after loading",
        ("sanity.max_untouched",),
    ),
    Rule(
        "initial_loss",
        "an untrained model guesses evenly (initial loss over ln K)",
        "at_most",
        "scale the last layer down",
        ("sanity.max_initial_share",),
    ),
    Rule(
        "pretrained_loss",
        "a pretrained model starts well below ln K",
        "at_most",
        "load with strict=True; use the model's own tokenizer",
        ("sanity.max_pretrained_share",),
    ),
)
