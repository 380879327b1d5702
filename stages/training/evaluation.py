"""How good is a model on rows that it did not see? Loss, greedy answers, and whether it stops."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from ..chat.collator import Batch, Collator
from ..chat.labels import supervised_runs
from ..chat.token_store import TokenMeta, TokenRow, TokenStore
from .loss import LossFunction, count_targets
from .ranks import sum_over_ranks
from .step import Autocast, forward


@torch.no_grad()
def mean_loss(
    model: nn.Module, batches: Iterable[Batch], loss_fn: LossFunction, autocast: Autocast
) -> tuple[float, int]:
    """(nats per supervised token over all batches, supervised tokens); not a mean of means.

    NaN when nothing is supervised. The batches are those of all ranks together.
    """
    was_training = model.training
    model.eval()
    total, tokens = 0.0, 0
    for batch in batches:
        count = count_targets(batch["labels"])
        if count:
            with autocast():
                total += float(loss_fn(forward(model, batch), batch["labels"], 1))
            tokens += count
    model.train(was_training)
    total, tokens = sum_over_ranks(total), int(sum_over_ranks(tokens))
    return total / tokens if tokens else math.nan, tokens


def store_batches(
    store: TokenStore, collator: Collator, pad_token_id: int, size: int, device: torch.device
) -> Iterable[Batch]:
    """All rows of a store in order, collated, on the device."""
    for start in range(0, len(store), size):
        rows = store.rows(range(start, min(start + size, len(store))))
        yield to_device(collator(rows, pad_token_id), device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


@dataclass(frozen=True)
class Turn:
    """One supervised turn of a row: the tokens before it and those it should be, stop included."""

    source: str
    prompt: list[int]
    answer: list[int]


def supervised_turns(row: TokenRow) -> list[Turn]:
    """The supervised stretches of a row, each with all that comes before it."""
    ids = row.input_ids.tolist()
    return [
        Turn(row.source, ids[:start], ids[start:end]) for start, end in supervised_runs(row.labels)
    ]


def first_turns(rows: Iterable[TokenRow], most: int) -> list[Turn]:
    """The turns of the first rows that the model answers in an evaluation, `most` at the most."""
    return list(islice((turn for row in rows for turn in supervised_turns(row)), most))


@dataclass(frozen=True)
class Answer:
    """What the model said for a turn. stopped: it ended by itself; tokens: stop included."""

    turn: Turn
    tokens: list[int]
    stopped: bool

    @property
    def exact(self) -> bool:
        return self.tokens == self.turn.answer


def share_exact(answers: Sequence[Answer]) -> float:
    """0 where nothing was asked."""
    return sum(answer.exact for answer in answers) / max(len(answers), 1)


def share_stopped(answers: Sequence[Answer]) -> float:
    """0 where nothing was asked."""
    return sum(answer.stopped for answer in answers) / max(len(answers), 1)


def answer_turns(
    model: nn.Module,
    turns: Sequence[Turn],
    *,
    meta: TokenMeta,
    max_new_tokens: int,
    batch_size: int,
    device: torch.device,
) -> list[Answer]:
    """Let the model answer each turn greedily, given the true history, in the order of `turns`."""
    answers: list[Answer] = []
    for start in range(0, len(turns), batch_size):
        chunk = turns[start : start + batch_size]
        prompts = [turn.prompt for turn in chunk]
        for turn, tokens in zip(
            chunk, generate_greedily(model, prompts, meta, max_new_tokens, device), strict=True
        ):
            answers.append(Answer(turn, tokens, tokens[-1:] == [meta.stop_token_id]))
    return answers


def longest_input(model: nn.Module) -> int:
    """Tokens that the model takes at once, by its own word; 2**31 when it does not say."""
    config = getattr(model, "config", None)
    limit = getattr(model, "max_length", None) or getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) else 2**31


@torch.no_grad()
def generate_greedily(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    meta: TokenMeta,
    max_new_tokens: int,
    device: torch.device,
) -> list[list[int]]:
    """The most likely next token, again and again, until the stop token (kept) or a limit.

    The limits are max_new_tokens and the longest sequence that the model takes.
    Prompts are padded on the left; the model gets input_ids, attention_mask and position_ids, each
    int64 [B, T], as transformers' models take them.
    """
    was_training = model.training
    model.eval()
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    ids = torch.tensor(
        [
            [meta.pad_token_id] * pad + list(prompt)
            for pad, prompt in zip(pads, prompts, strict=True)
        ],
        device=device,
    )
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads], device=device)
    limit = min(max_new_tokens, longest_input(model) - longest + 1)
    if hasattr(model, "generate"):
        said = _generate_with_cache(model, ids, mask, meta, limit)
    else:
        said = _generate_anew(model, ids, mask, meta, limit)
    model.train(was_training)
    return [
        tokens[: tokens.index(meta.stop_token_id) + 1] if meta.stop_token_id in tokens else tokens
        for tokens in said
    ]


def _generate_with_cache(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, meta: TokenMeta, limit: int
) -> list[list[int]]:
    """By transformers' own generation, which keeps keys and values."""
    from transformers import GenerationConfig

    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=limit,
        eos_token_id=meta.stop_token_id,
        pad_token_id=meta.pad_token_id,
    )
    whole = model.generate(
        input_ids=ids, attention_mask=mask, generation_config=settings, use_cache=True
    )
    said: list[list[int]] = whole[:, ids.shape[1] :].tolist()
    return said


def _generate_anew(
    model: nn.Module, ids: torch.Tensor, mask: torch.Tensor, meta: TokenMeta, limit: int
) -> list[list[int]]:
    """For models without a cache: the whole text again for every token."""
    longest = ids.shape[1]
    running = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(limit):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -1]
        chosen = torch.where(running, logits.argmax(-1), meta.pad_token_id)
        ids = torch.cat((ids, chosen[:, None]), dim=1)
        mask = torch.cat((mask, running.long()[:, None]), dim=1)
        running &= chosen != meta.stop_token_id
        if not bool(running.any()):
            break
    said: list[list[int]] = ids[:, longest:].tolist()
    return said
