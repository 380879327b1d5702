"""Small models of every family, written as people write them."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 32


class MLP(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, dropout: float = 0.0, norm: bool = False) -> None:
        layers: list[nn.Module] = [nn.Linear(inputs, 64)]
        layers += [nn.BatchNorm1d(64)] if norm else []
        layers += [nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 64), nn.ReLU()]
        super().__init__(*layers, nn.Linear(64, outputs))


class Squeezed(nn.Module):
    """One number a row: [B]."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(x)
        return outputs.squeeze(-1)


class CNN(nn.Module):
    def __init__(self, outputs: int, dropout: float = 0.0, norm: bool = True) -> None:
        super().__init__()

        def normalise(width: int) -> nn.Module:
            return nn.BatchNorm2d(width) if norm else nn.Identity()

        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            normalise(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            normalise(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(128, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self.dropout(self.features(x).flatten(1)))
        return logits


class Recurrent(nn.Module):
    """LSTM or GRU over ids [B, T]; logits [B, K] of the last state, or [B, T, K]."""

    def __init__(
        self, kind: str, vocab: int, outputs: int, each: bool = False, both: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, WIDTH)
        self.rnn = getattr(nn, kind)(WIDTH, 64, batch_first=True, bidirectional=both)
        self.head = nn.Linear(128 if both else 64, outputs)
        self.each = each

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(self.embedding(ids))
        logits: torch.Tensor = self.head(states if self.each else states[:, -1])
        return logits


class Encoder(nn.Module):
    """Transformer encoder over ids [B, T]; logits [B, K], [B, T, K], or causal [B, T, V]."""

    def __init__(
        self,
        vocab: int,
        outputs: int,
        length: int,
        each: bool = False,
        causal: bool = False,
        dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, WIDTH)
        self.position = nn.Embedding(length, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.05)
        nn.init.normal_(self.position.weight, std=0.05)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 64, dropout=dropout, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, outputs, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight
        self.each, self.causal = each or causal, causal

    def mask(self, length: int) -> torch.Tensor | None:
        if not self.causal:
            return None
        return torch.triu(torch.full((length, length), -math.inf), 1)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        embedded: torch.Tensor = self.embedding(ids) + self.position(places)
        return embedded

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.norm(self.layers(self.embed(ids), mask=self.mask(ids.shape[1])))
        logits: torch.Tensor = self.head(states if self.each else states.mean(1))
        return logits


class ViT(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, WIDTH, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.randn(1, 5, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 64, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), patches], 1) + self.position
        logits: torch.Tensor = self.head(self.norm(self.layers(tokens))[:, 0])
        return logits


class Attention(nn.Module):
    """Causal self-attention by hand."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        return x.view(b, t, self.heads, c // self.heads).transpose(1, 2)

    def mask(self, t: int) -> torch.Tensor:
        return torch.tril(torch.ones(t, t, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (self.split(one) for one in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~self.mask(t), -math.inf).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(b, t, c)
        out: torch.Tensor = self.proj(mixed)
        return out


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, 4)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        mixed: torch.Tensor = x + self.mlp(self.ln2(x))
        return mixed


class GPT(nn.Module):
    """nanoGPT in small; logits [B, T, V]."""

    def __init__(self, vocab: int, length: int, dropout: float = 0.0, tied: bool = True) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, dropout) for _ in range(2))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, vocab, bias=False)
        self.apply(self._init)
        if tied:
            self.lm_head.weight = self.wte.weight

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.lm_head(self.ln_f(x))
        return logits


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        update = functional.linear(functional.linear(x, self.lora_A), self.lora_B)
        out: torch.Tensor = self.base(x) + 2.0 * update
        return out


def with_lora(model: GPT) -> GPT:
    model.requires_grad_(False)
    blocks: Any = model.blocks
    for block in blocks:
        block.attn.qkv = LoRALinear(block.attn.qkv)
        block.mlp[0] = LoRALinear(block.mlp[0])
    return model


def hugging_face(kind: str, vocab: int, **settings: Any) -> nn.Module:
    """A transformers model with random weights."""
    import transformers as hf

    match kind:
        case "llama":
            config = hf.LlamaConfig(
                vocab_size=vocab,
                hidden_size=WIDTH,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                **settings,
            )
            return hf.LlamaForCausalLM(config)  # type: ignore[no-any-return]
        case "gpt2":
            config = hf.GPT2Config(
                vocab_size=vocab, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=64, **settings
            )
            return hf.GPT2LMHeadModel(config)  # type: ignore[no-any-return]
        case "bert":
            config = hf.BertConfig(
                vocab_size=vocab,
                hidden_size=WIDTH,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
                **settings,
            )
            return hf.BertForSequenceClassification(config)  # type: ignore[no-any-return]
        case "bert-tags":
            config = hf.BertConfig(
                vocab_size=vocab,
                hidden_size=WIDTH,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
                **settings,
            )
            return hf.BertForTokenClassification(config)  # type: ignore[no-any-return]
    raise AssertionError(kind)
