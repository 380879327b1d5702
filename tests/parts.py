"""Small true parts for unit tests: rows, batches, a model, a trainer, a token store."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from stages.chat.collator import Batch, collate
from stages.chat.labels import IGNORE_INDEX, Labelled
from stages.chat.token_store import TokenMeta, TokenRow, TokenWriter, write_meta
from stages.config.launch import PINNED_VARIABLES
from stages.training.loss import causal_lm_loss
from stages.training.setup import Trainer
from stages.training.step import TrainStep, train_step

VOCABULARY = 32
PAD, STOP = 0, 1


def make_row(ids: Sequence[int], first_supervised: int, source: str = "rows.jsonl:1") -> TokenRow:
    """A row whose tokens are supervised from `first_supervised` on."""
    input_ids = np.array(ids, np.int32)
    labels = input_ids.copy()
    labels[:first_supervised] = IGNORE_INDEX
    return TokenRow(source, input_ids, labels, np.zeros(len(ids), np.uint8))


def make_rows(count: int, seed: int = 0) -> list[TokenRow]:
    """Rows of 4 to 13 random tokens that end with the stop token, unequally supervised."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        length = int(generator.integers(4, 14))
        ids = [*generator.integers(2, VOCABULARY, length - 1).tolist(), STOP]
        rows.append(make_row(ids, int(generator.integers(1, length)), f"rows.jsonl:{number + 1}"))
    return rows


def make_batch(count: int, seed: int = 0) -> Batch:
    return collate(make_rows(count, seed), PAD)


def write_store(directory: Path, split: str, rows: Sequence[TokenRow]) -> TokenMeta:
    """Write rows as the token store of one split, and the store's meta.json."""
    with TokenWriter(split, directory) as writer:
        for row in rows:
            edges = np.zeros(0, np.int64)
            writer.append(row.source, Labelled(row.input_ids, row.labels, row.roles, edges))
    meta = TokenMeta(VOCABULARY, PAD, STOP, 64, "all", {"sha256": "0" * 64})
    write_meta(meta, directory)
    return meta


class Output(NamedTuple):
    logits: torch.Tensor


class Bigram(nn.Module):
    """Scores the next token from the present one alone: Embedding, LayerNorm, Linear."""

    def __init__(self, features: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, features)
        self.norm = nn.LayerNorm(features)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(features, VOCABULARY)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> Output:
        return Output(self.head(self.dropout(self.norm(self.embedding(input_ids)))))


def make_trainer(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    step: TrainStep = train_step,
    max_grad_norm: float = 1.0,
) -> Trainer:
    """A trainer at a constant rate; AdamW at 0.01 where no optimizer is given."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    return Trainer(
        model=model,
        optimizer=optimizer,
        scheduler=LambdaLR(optimizer, lambda step: 1.0),
        step_fn=step,
        loss_fn=causal_lm_loss,
        max_grad_norm=max_grad_norm,
        autocast=nullcontext,
        scaler=GradScaler("cpu", enabled=False),
    )


def flat_gradient(model: nn.Module) -> torch.Tensor:
    """All gradients of a model in one vector."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients])


@contextmanager
def pinned_process() -> Iterator[None]:
    """As if `pin_process` had started this process; torch's flags are put back at the end."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(PINNED_VARIABLES, "1"), CUBLAS_WORKSPACE_CONFIG=":4096:8")
    threads = torch.get_num_threads()
    enabled = torch.are_deterministic_algorithms_enabled()
    cudnn = torch.backends.cudnn
    benchmark, deterministic = cudnn.benchmark, cudnn.deterministic
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(enabled)
        cudnn.benchmark, cudnn.deterministic = benchmark, deterministic
