"""How much memory does a training step need at its peak, by kind?

The peak is the start of the last backward pass of an optimizer step: weights, optimizer state and
the gradients of earlier micro-batches are there, and so is all that the forward pass has saved.

What a layer saves is counted tensor by tensor, after Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models" (2022, arXiv 2205.05198), section 4, for what
transformers and PEFT do here: RMSNorm in float32, a gated MLP, grouped queries that are repeated
where there is a mask, no activation that only a frozen weight would ask for, and one copy of its
input for every adapted matrix under autocast. Tests hold it against what autograd really saves.

Left out: work space of kernels, what the allocator loses between blocks, temporaries of the
optimizer's step, and the context of CUDA. `usable_share` of conf/hardware/ leaves room for them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..config.schema import HubModel, Model, Params
from ..training.order import tokens_per_micro_batch
from .architecture import Architecture, Linear

FLOAT32 = 4
HALF = 2
NF4 = 4 / 8 + 0.127 / 8
"""Bytes of a 4-bit weight: 0.127 bits more for its block's constants, which are quantised too
(Dettmers et al., QLoRA, 2023, arXiv 2305.14314, section 3)."""
SIZES = {"float32": FLOAT32, "bfloat16": HALF, "float16": HALF}
KINDS = ("weights", "adapters", "gradients", "optimizer", "activations", "logits")
BLOCK_8BIT = 256
"""Moments that share a scale in bitsandbytes 0.50 (optim/optimizer.py, `blocksize`)."""
LOSS_COPIES = 3
"""Of the logits in float32 while the loss goes backward: log-probabilities, and two gradients."""


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters, adapters included; a tied one counts once, a 4-bit one as one."""

    total: int
    trainable: int


@dataclass(frozen=True)
class Precision:
    """Bytes of a number. weights: of the base model beside what is packed; computed: of a matmul's
    inputs and outputs; trained: of what is trained and of its gradient. autocast: does it copy
    what is multiplied? packed: are the matrices of the layers held in 4 bits?"""

    weights: int
    computed: int
    trained: int
    autocast: bool
    packed: bool = False


def precision_of(params: Params) -> Precision:
    """PEFT keeps adapters in float32, and `prepare_model_for_kbit_training` turns all that is not
    packed to 4 bits into float32 too."""
    model, autocast = params.model, params.run.precision != "fp32"
    computed = HALF if autocast else FLOAT32
    if not isinstance(model, HubModel):
        return Precision(FLOAT32, computed, FLOAT32, autocast)
    packed = model.adapter == "qlora"
    weights = FLOAT32 if packed else SIZES[model.dtype]
    trained = weights if model.adapter == "none" else FLOAT32
    return Precision(weights, min(computed, weights), trained, autocast, packed)


def estimate_memory(
    params: Params, parameters: Parameters, architecture: Architecture | None
) -> dict[str, int]:
    """Bytes at the peak, by kind; without an architecture only what parameters decide.

    Every row is taken to have data.max_length tokens, and every micro-batch to be full.
    """
    size = precision_of(params)
    adapted = has_adapter(params.model)
    adapters = parameters.trainable if adapted else 0
    packed = architecture.layer_weights if size.packed and architecture else 0
    plain = parameters.total - adapters - packed
    found = {
        "weights": round(plain * size.weights + packed * NF4),
        "adapters": adapters * size.trained,
        "gradients": parameters.trainable * size.trained,
        "optimizer": round(2 * moments(params, parameters, architecture, size.trained)),
    }
    if architecture:
        tokens = tokens_per_micro_batch(params.train, params.data.max_length)
        found["activations"] = round(activations(params, architecture) * tokens)
        found["activations"] += weight_copies(params, parameters, architecture)
        found["logits"] = tokens * architecture.vocabulary * logits_size(size)
    return found


def moments(
    params: Params, parameters: Parameters, architecture: Architecture | None, trained: int
) -> float:
    """Bytes of one of AdamW's two moments over all that is trained.

    In 8 bits, bitsandbytes keeps a float32 for each block, and an embedding's moments whole.
    """
    if params.train.optim == "adamw_torch":
        return parameters.trainable * trained
    whole = 0
    if architecture and not has_adapter(params.model):
        whole = min(architecture.head_weights, parameters.trainable)
    return FLOAT32 * whole + (1 + FLOAT32 / BLOCK_8BIT) * (parameters.trainable - whole)


def logits_size(size: Precision) -> int:
    """Bytes of a logit at the peak: itself, and what the loss makes of it in float32."""
    return size.computed + LOSS_COPIES * FLOAT32


def has_adapter(model: Model) -> bool:
    return isinstance(model, HubModel) and model.adapter != "none"


def is_adapted(linear: Linear, model: Model) -> bool:
    """Does PEFT add its matrices to this one?"""
    if not isinstance(model, HubModel) or model.adapter == "none":
        return False
    targets = model.lora.target_modules
    names = [targets] if isinstance(targets, str) else targets
    return targets == "all-linear" or any(linear.name in name for name in names)


def activations(params: Params, architecture: Architecture) -> float:
    """Bytes a token of what autograd saves between the embedding and the logits."""
    size, model = precision_of(params), params.model
    layer = sum(layer_activations(params, architecture).values())
    scaled = 0 if has_adapter(model) else size.weights
    norm = FLOAT32 * (architecture.hidden + 1) + scaled * architecture.hidden
    outside = norm + size.computed * architecture.hidden
    outside += architecture.embedding_norms * norm
    if params.train.gradient_checkpointing:
        # one layer is computed again, and two gradients of its widest features with it, when what
        # the loss needed beside the logits is gone
        widest = max(linear.inputs for linear in architecture.linears)
        layer += 2 * FLOAT32 * widest
        again = max(0, layer - LOSS_COPIES * FLOAT32 * architecture.vocabulary)
        return architecture.layers * size.weights * architecture.hidden + again + outside
    return architecture.layers * layer + outside


def layer_activations(params: Params, architecture: Architecture) -> Mapping[str, float]:
    """Bytes a token that one layer saves, by what saves them."""
    size, model = precision_of(params), params.model
    adapted = has_adapter(model)
    scaled = 0 if adapted else size.weights  # the gain of a frozen norm asks for nothing
    norms = 2 * (FLOAT32 * (architecture.hidden + 1) + scaled * architecture.hidden)
    if architecture.norms_of_heads:
        heads = architecture.query + architecture.key
        norms += FLOAT32 * (heads + architecture.heads + architecture.kv_heads)
        norms += 0 if adapted else size.computed * heads
    return {
        "norms": norms,
        "attention": _attention(params, architecture, size.computed),
        "mlp": size.computed * architecture.elementwise,
        "inputs of matrices": sum(_inputs(params, architecture, size)),
        "adapters": sum(
            size.computed * _rank(model) for one in architecture.linears if is_adapted(one, model)
        ),
    }


def _attention(params: Params, architecture: Architecture, computed: int) -> float:
    """Query, key, value and output, what normalises the scores, and the mask."""
    query, heads, length = architecture.query, architecture.heads, params.data.max_length
    kind = getattr(params.model, "attn_implementation", "sdpa")
    if kind == "flash_attention_2":
        return computed * (2 * query + 2 * architecture.key) + FLOAT32 * heads
    if kind == "eager":  # the probabilities in float32, and again as they are multiplied
        scores = FLOAT32 + (computed if computed == HALF else 0)
        return computed * 3 * query + scores * heads * length
    kept = 4 * query + 2 * query * architecture.fused
    return computed * (kept + length) + FLOAT32 * heads


def _inputs(params: Params, architecture: Architecture, size: Precision) -> Iterator[float]:
    """The inputs that matrices save, where their weights or their adapters are trained."""
    model, adapted = params.model, has_adapter(params.model)
    # autocast copies an input for every matrix, and so does PEFT where an adapter is wider
    wider = adapted and size.weights < FLOAT32
    own = wider or (size.autocast and (adapted or size.weights == FLOAT32))
    width = FLOAT32 if wider and not size.autocast else size.computed
    # attention has saved its output, but for the eager one, and for one that is flattened anew
    eager = isinstance(model, HubModel) and model.attn_implementation == "eager"
    mixed_is_kept = not architecture.fused and not eager
    seen = set()
    for linear in architecture.linears:
        if adapted and not is_adapted(linear, model):
            continue
        if linear.reads == "mixed" and mixed_is_kept and not (own and adapted):
            continue
        if own or linear.reads not in seen:
            yield width * linear.inputs
        seen.add(linear.reads)


def _rank(model: Model) -> int:
    return model.lora.r if isinstance(model, HubModel) else 0


def weight_copies(params: Params, parameters: Parameters, architecture: Architecture) -> int:
    """Bytes of the half-precision copies that autocast makes of float32 matrices for a pass.

    With checkpointing only those of one layer, beside the head's, are there at once.
    """
    size = precision_of(params)
    if not size.autocast:
        return 0
    adapters = parameters.trainable if has_adapter(params.model) else 0
    layers = adapters + (0 if size.packed or size.weights == HALF else architecture.layer_weights)
    if params.train.gradient_checkpointing:
        layers //= architecture.layers
    head = 0 if size.weights == HALF else architecture.head_weights
    return HALF * (layers + head)
