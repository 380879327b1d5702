"""A language model small enough to learn the demonstration data from scratch on a CPU.

`TinyGPT` is a decoder-only Transformer with rotary positions and RMSNorm before each branch. Its
first block looks back a few tokens only, so that it binds words that stand together (which level is
this service's?) before later blocks search the whole context.

Shapes: B sequences, T tokens, V vocabulary entries, D features, H heads of size D / H.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

ROPE_BASE = 10_000.0
INIT_STD = 0.02


class CausalLMOutput(NamedTuple):
    """`logits`: FloatTensor[B, T, V]; position t scores the token at t + 1."""

    logits: Tensor


class TinyGPT(nn.Module):
    """Decoder-only Transformer, trained from scratch.

    Args:
        vocab_size: V, number of token ids.
        d_model: D, features per token; a multiple of 2 * `n_heads`.
        n_layers: number of Transformer blocks.
        n_heads: H, attention heads per block.
        max_length: longest T that `forward` accepts.
        local_window: tokens that the first block sees, the current one included; 0 means all.
        dropout: probability of zeroing a feature of the embedding or of a block's branch.
        tie_word_embeddings: share one matrix between input embedding and output head.

    Raises:
        ValueError: `d_model` cannot be split into `n_heads` heads of even size.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 64,
        n_layers: int = 2,
        n_heads: int = 4,
        max_length: int = 256,
        local_window: int = 8,
        dropout: float = 0.0,
        tie_word_embeddings: bool = False,
    ) -> None:
        super().__init__()
        if d_model % (2 * n_heads):
            raise ValueError(
                f"d_model={d_model} must be a multiple of 2 * n_heads={2 * n_heads}, "
                "so that every head has an even number of features to rotate."
            )
        self.max_length = max_length
        self.local_window = local_window
        self.head_size = d_model // n_heads
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(d_model, n_heads, dropout) for _ in range(n_layers))
        self.final_norm: nn.Module = nn.RMSNorm(d_model, eps=1e-6)
        self.embedding_norm = nn.RMSNorm(d_model, eps=1e-6)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        self._init_weights()
        if tie_word_embeddings:
            self.lm_head.weight = self.embedding.weight

    def _init_weights(self) -> None:
        """Small normal weights; branch outputs smaller still, so that depth adds no variance."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        nn.init.normal_(self.lm_head.weight, std=INIT_STD)
        for module in self.modules():
            if isinstance(module, Block):
                for last in (module.attention.out, module.mlp.down):
                    nn.init.normal_(
                        last.weight, std=(last.in_features * 2 * len(self.blocks)) ** -0.5
                    )

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> CausalLMOutput:
        """Score the next token at every position.

        Args:
            input_ids: LongTensor[B, T].
            attention_mask: LongTensor[B, T], 1 for a token and 0 for padding on either side; None
                means no padding. Logits at padded positions are finite and without meaning.
            position_ids: LongTensor[B, T]; None means 0 .. T - 1. Only differences matter. Without
                an attention_mask, a document of its own begins where they do not count on.

        Raises:
            ValueError: T exceeds `max_length`.
        """
        length = input_ids.shape[1]
        if length > self.max_length:
            raise ValueError(f"{length} tokens exceed the model's max_length of {self.max_length}.")
        visible = None if attention_mask is None else visible_keys(attention_mask)
        if attention_mask is None and position_ids is not None:
            visible = visible_in_document(position_ids)
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device)[None]
        x = self.dropout(self.embedding_norm(self.embedding(input_ids)))
        rotation = rotary(position_ids, self.head_size, x.dtype)
        nearby = visible
        if self.local_window:
            nearby = within(self.local_window, length, visible, input_ids.device)
        for number, block in enumerate(self.blocks):
            x = block(x, rotation, visible if number else nearby)
        return CausalLMOutput(self.lm_head(self.final_norm(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); FloatTensor[B, T, D] in and out."""

    def __init__(self, d_model: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(d_model, eps=1e-6)
        self.attention = Attention(d_model, n_heads)
        self.mlp_norm = nn.RMSNorm(d_model, eps=1e-6)
        self.mlp = MLP(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], visible: Tensor | None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation, visible))
        change: Tensor = self.dropout(self.mlp(self.mlp_norm(x)))
        return x + change


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], visible: Tensor | None) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        query, key = rotate(query, rotation), rotate(key, rotation)
        mixed = scaled_dot_product_attention(
            query, key, value, attn_mask=visible, is_causal=visible is None
        )
        output: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return output


class MLP(nn.Module):
    """Position-wise network with a hidden layer of 4 D features."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.activation = nn.GELU()
        self.down = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self.activation(self.up(x)))
        return output


def visible_keys(attention_mask: Tensor) -> Tensor:
    """BoolTensor[B, 1, T, T]: may query t look at key s? Only at tokens, and never ahead.

    Every position also sees itself: a padded query without any key would give NaN.
    """
    length = attention_mask.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=attention_mask.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=attention_mask.device)
    return (causal & attention_mask[:, None, None, :].bool()) | itself


def visible_in_document(position_ids: Tensor) -> Tensor:
    """BoolTensor[B, 1, T, T]: may query t look at key s? Only in its document, and never ahead.

    A document begins where position_ids, LongTensor[B, T], do not count on, as transformers' models
    have it.
    """
    length = position_ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=position_ids.device).tril()
    document = (position_ids.diff(prepend=position_ids[:, :1] - 1) != 1).cumsum(-1)
    return causal & (document[:, None, :, None] == document[:, None, None, :])


def within(window: int, length: int, visible: Tensor | None, device: torch.device) -> Tensor:
    """`visible` without the keys that lie `window` tokens or more back: BoolTensor[.., T, T]."""
    band = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    band = band.triu(1 - window)
    return band if visible is None else visible & band


def rotary(position_ids: Tensor, head_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotation angles, each [B, 1, T, head_size / 2].

    Source: Su et al., RoFormer (arXiv 2104.09864). Angles are computed in float32.
    """
    exponents = torch.arange(0, head_size, 2, device=position_ids.device).float() / head_size
    angles = position_ids[:, None, :, None].float() * ROPE_BASE**-exponents
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of features of [B, H, T, head_size] by its angle."""
    cosine, sine = rotation
    left, right = heads.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
