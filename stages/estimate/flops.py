"""How many floating-point operations does the training take?

A matrix takes 2 operations a weight and token forward, 2 backward for its input and 2 for its
weights: 6 in all (Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1;
Hoffmann et al., 2022, appendix F), and 4 where it is frozen below an adapter. The product of
queries with keys and of scores with values takes 12 a layer, feature and position (Chowdhery et
al., PaLM, 2022, appendix B), whether causal or not. Activation checkpointing runs the layers
forward once more. Lookups, norms, the gates, evaluation and generation are left out.
"""

from ..config.schema import Params
from .architecture import Architecture
from .memory import Parameters, has_adapter


def training_flops(
    params: Params, parameters: Parameters, architecture: Architecture, tokens: int
) -> float:
    """Operations over all `tokens`, every row taken to have data.max_length of them."""
    adapters = parameters.trainable if has_adapter(params.model) else 0
    matrices = architecture.layer_weights + architecture.head_weights
    scores = architecture.layers * architecture.query * params.data.max_length
    each = (4 if adapters else 6) * matrices + 6 * adapters + 12 * scores
    if params.train.gradient_checkpointing:
        each += 2 * (architecture.layer_weights + adapters) + 4 * scores
    return float(each) * tokens
