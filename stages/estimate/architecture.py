"""The sizes of a model that decide what it costs, without its weights.

Known for `tiny_gpt` from params, and for a model of the hub from its config.json on this machine,
else from conf/architecture/, which holds facts of models that the presets name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import UserError, read_yaml
from ..config.schema import HubModel, Model, TinyGPTModel
from ..provenance.base_model import is_reference, resolve_file
from ..provenance.records import read_json

FACTS = Path("conf/architecture")
NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


@dataclass(frozen=True)
class Linear:
    """A matrix of every layer. reads: what its input is; linears of one letter share theirs."""

    name: str
    inputs: int
    outputs: int
    reads: str

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Architecture:
    """A decoder-only Transformer.

    query, key: features of all heads. elementwise: features that the MLP keeps per token beside the
    inputs of its linears. norms_of_heads: RMSNorm over queries and keys, as Qwen3 has it.
    fused: one matrix for query, key and value, whose views keep all of it alive.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    query: int
    key: int
    vocabulary: int
    elementwise: int
    linears: tuple[Linear, ...]
    tied: bool
    norms_of_heads: bool = False
    fused: bool = False
    embedding_norms: int = 0

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of all layers, which 4-bit quantisation packs."""
        return self.layers * sum(linear.weights for linear in self.linears)

    @property
    def head_weights(self) -> int:
        """Weights of the matrix that makes logits, be it the embedding's own or another."""
        return self.vocabulary * self.hidden


def tiny_architecture(params: TinyGPTModel, vocabulary: int) -> Architecture:
    """The sizes of TinyGPT (see models/tiny_gpt.py)."""
    wide = params.d_model
    return Architecture(
        hidden=wide,
        layers=params.n_layers,
        heads=params.n_heads,
        kv_heads=params.n_heads,
        query=wide,
        key=wide,
        vocabulary=vocabulary,
        elementwise=4 * wide,
        linears=(
            Linear("qkv", wide, 3 * wide, "attention norm"),
            Linear("out", wide, wide, "mixed"),
            Linear("up", wide, 4 * wide, "mlp norm"),
            Linear("down", 4 * wide, wide, "mlp"),
        ),
        tied=params.tie_word_embeddings,
        fused=True,
        embedding_norms=1,
    )


def architecture_of(config: Mapping[str, Any], name: str) -> Architecture:
    """The sizes that a config of transformers gives to a dense model with a gated MLP.

    name: of the model, for the sentence. Raises UserError for another kind of model.
    """
    missing = [key for key in NEEDED if not isinstance(config.get(key), int)]
    experts = any("expert" in key and value for key, value in config.items())
    if missing or experts:
        why = "it is a mixture of experts" if experts else f"its config has no {missing[0]}"
        raise UserError(
            f"{name} cannot be budgeted: {why}; only dense decoders with a gated MLP (Llama, "
            "Mistral, Qwen2, Qwen3, SmolLM2 and their like) can"
        )
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or hidden // heads
    query, key, wide = heads * head, kv_heads * head, config["intermediate_size"]
    return Architecture(
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        query=query,
        key=key,
        vocabulary=config["vocab_size"],
        elementwise=3 * wide,
        linears=(
            Linear("q_proj", hidden, query, "attention norm"),
            Linear("k_proj", hidden, key, "attention norm"),
            Linear("v_proj", hidden, key, "attention norm"),
            Linear("o_proj", query, hidden, "mixed"),
            Linear("gate_proj", hidden, wide, "mlp norm"),
            Linear("up_proj", hidden, wide, "mlp norm"),
            Linear("down_proj", wide, hidden, "mlp"),
        ),
        tied=bool(config.get("tie_word_embeddings")),
        norms_of_heads=config.get("model_type") == "qwen3",
    )


def hub_config(params: HubModel) -> dict[str, Any]:
    """config.json of a model, as it lies on this machine, else as conf/architecture/ gives it.

    Never asks the network. Raises UserError where neither is there.
    """
    if is_reference(params.reference):
        path = resolve_file(f"{params.reference}/config.json")
        if path.is_file():
            found = read_json(path, "bring the files of the model again")
            if isinstance(found, dict):
                return found
            raise UserError(f"{path} holds no object; bring the files of the model again")
    facts = FACTS / f"{params.name_or_path.replace('/', '--')}.yaml"
    if facts.is_file():
        return read_yaml(facts)
    raise UserError(
        f"the sizes of {params.name_or_path} are not known: this machine has no config.json of it "
        f"at {params.revision}, and there is no {facts}; write its config.json there as YAML"
    )


def find_architecture(model: Model, vocabulary: int) -> Architecture | None:
    """The sizes of the model; None for one of your own. vocabulary: ids of the tokenizer.

    Raises UserError for a model of the hub whose config is not here or is of another kind.
    """
    if isinstance(model, HubModel):
        return architecture_of(hub_config(model), model.name_or_path)
    return tiny_architecture(model, vocabulary) if isinstance(model, TinyGPTModel) else None
