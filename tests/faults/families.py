"""Small language models of other families, with random weights, as code of your own builds them.

Initialised as transformers has it for the family, recurrent ones as torch has it.
"""

from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM

SIZES: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "gemma2": {"head_dim": 16, "sliding_window": 64},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": {},
    "llama": {},
    "mamba": {"hidden_size": 64, "state_size": 8, "num_hidden_layers": 2},
    "mistral": {"sliding_window": 64},
    "mixtral": {"num_local_experts": 4},
    "olmo2": {},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "phi": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "rwkv": {"hidden_size": 64, "num_hidden_layers": 2, "attention_hidden_size": 64},
    "stablelm": {},
}
"""Keys of transformers' configs beside COMMON; family -> keys."""
COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
CELLS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Output(NamedTuple):
    logits: torch.Tensor


class Recurrent(nn.Module):
    """Embedding, two layers of an LSTM or a GRU, a head."""

    def __init__(
        self, vocab_size: int, cell: type[nn.GRU] | type[nn.LSTM], features: int = 256
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, features)
        self.cells = cell(features, features, num_layers=2, batch_first=True)
        self.head = nn.Linear(features, vocab_size)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> Output:
        states, _ = self.cells(self.embedding(input_ids))
        return Output(self.head(states))


def build(vocab_size: int, family: str, **keys: Any) -> nn.Module:
    """A model of `family`; keys: of its config, in the place of those that it has here."""
    if family in CELLS:
        return Recurrent(vocab_size, CELLS[family], **keys)
    known = transformers.AutoConfig.for_model(family).to_dict()
    common = {key: value for key, value in COMMON.items() if key in known}
    config = transformers.AutoConfig.for_model(
        family,
        **{**common, **SPECIAL, "use_cache": False, **SIZES[family], **keys},
        vocab_size=vocab_size,
    )
    model: nn.Module = AutoModelForCausalLM.from_config(config)
    return model
