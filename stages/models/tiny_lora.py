"""The model of the protocol's lab: random frozen weights that only low-rank adapters can move.

`TinyLoRALanguageModel` is `TinyGPT` with everything frozen, embedding and head included, and a LoRA
pair beside each linear layer of its blocks. Nothing was pretrained: what it learns, the adapters
have learned.
"""

from torch import Tensor, empty, nn, zeros

from .tiny_gpt import TinyGPT

HEAD_GAIN = 2.0


class LoRALinear(nn.Module):
    """base(x) + lora_alpha / r * B A x over a frozen linear layer; at first B is 0.

    `lora_A`: float [r, in], normal with standard deviation r ** -0.5; `lora_B`: float [out, r].
    Source: Hu et al., LoRA (arXiv 2106.09685), which says Gaussian and no deviation.
    """

    def __init__(self, base: nn.Linear, r: int, lora_alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scaling = lora_alpha / r
        self.lora_A = nn.Parameter(nn.init.normal_(empty(r, base.in_features), std=r**-0.5))
        self.lora_B = nn.Parameter(zeros(base.out_features, r))

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = x @ self.lora_A.T @ self.lora_B.T * self.scaling
        output: Tensor = self.base(x) + change
        return output


class TinyLoRALanguageModel(TinyGPT):
    """Decoder-only Transformer of which only the LoRA matrices train; called as `TinyGPT` is.

    Args:
        vocab_size, d_model, n_layers, n_heads, max_length: as of `TinyGPT`.
        r: rank of each adapter.
        lora_alpha: adapters are scaled by lora_alpha / r.

    Raises:
        ValueError: `d_model` cannot be split into `n_heads` heads of even size.
    """

    def __init__(
        self,
        vocab_size: int = 64,
        d_model: int = 32,
        n_layers: int = 1,
        n_heads: int = 8,
        max_length: int = 64,
        r: int = 16,
        lora_alpha: float = 32,
    ) -> None:
        super().__init__(vocab_size, d_model, n_layers, n_heads, max_length, local_window=0)
        # a frozen head cannot sharpen its logits: what reaches it must be free to grow, and to
        # start with it must tell tokens apart by more than TinyGPT's does
        self.final_norm = nn.Identity()
        nn.init.normal_(self.lm_head.weight, std=HEAD_GAIN / d_model)
        self.requires_grad_(False)
        adapt_linear_layers(self.blocks, r, lora_alpha)


def adapt_linear_layers(module: nn.Module, r: int, lora_alpha: float) -> None:
    """Replace every linear layer below `module` by itself with an adapter."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, LoRALinear(child, r, lora_alpha))
        else:
            adapt_linear_layers(child, r, lora_alpha)


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name is a LoRA matrix."""
    return name.rpartition(".")[2] in ("lora_A", "lora_B")
