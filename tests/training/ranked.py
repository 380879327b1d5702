"""A small training as one rank of two: run in processes of its own, its measurements on disk."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.spawn import spawn

from stages.chat.collator import Batch, collate
from stages.chat.token_store import TokenStore, read_meta
from stages.config import Refusal
from stages.config.launch import PINNED_VARIABLES, end_rank
from stages.config.schema import HubModel, Params
from stages.models.hub import add_adapter
from stages.models.tiny_gpt import TinyGPT
from stages.training.determinism import make_deterministic
from stages.training.parallel import (
    ALONE,
    Team,
    check_replicas,
    is_sharded,
    join,
    load_model_state,
    load_optimizer_state,
    model_state,
    optimizer_state,
    seed_rank,
    whole,
)
from stages.training.ranks import (
    first_rank_first,
    gather,
    largest_over_ranks,
    leave,
    on_first_rank,
    rank,
    sum_over_ranks,
    wait,
    world_size,
)
from stages.training.setup import Trainer, TrainingBatches, build_trainer

from ..models.llama import hub_tree, tiny_llama
from ..parts import VOCABULARY
from ..settings import make_params

RANKS = 2
STEPS = 6
ROWS = 29
Work = Callable[[Path, str], dict[str, Any]]


def run_ranks(work: Work, directory: Path, name: str, kind: str = "ddp") -> list[dict[str, Any]]:
    """What `work` measured on each of two ranks, which gloo connects."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    spawn(  # type: ignore[no-untyped-call]
        _be_rank, (port, work, directory, name, kind), nprocs=RANKS
    )
    return [torch.load(directory / f"{name}-{number}.pt") for number in range(RANKS)]


def _be_rank(number: int, port: int, work: Work, directory: Path, name: str, kind: str) -> None:
    os.environ.update(dict.fromkeys(PINNED_VARIABLES, "1"), CUBLAS_WORKSPACE_CONFIG=":4096:8")
    os.environ.update(
        LOCAL_RANK=str(number),
        RANK=str(number),
        WORLD_SIZE=str(RANKS),
        LOCAL_WORLD_SIZE=str(RANKS),
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
        TORCH_CPP_LOG_LEVEL="ERROR",
    )
    torch.save(work(directory, kind), directory / f"{name}-{number}.pt")
    leave()
    end_rank(None)


def params_for(ranks: int, kind: str = "ddp") -> Params:
    """Four micro-batches of two rows a step, however many ranks share them.

    kind: ddp, fsdp2, or replicas of another training: packed (rows), budget (micro-batches filled
    by tokens) or adapter (over a base).
    """
    values = {"model": hub_tree("0" * 64)} if kind == "adapter" else {}
    return make_params(
        **values,
        train__packing=kind == "packed",
        train__max_tokens_per_batch=64 if kind == "budget" else None,
        train__num_processes=ranks,
        train__gradient_accumulation_steps=4 // ranks,
        train__distributed="fsdp2" if kind == "fsdp2" else "ddp",
        train__warmup_steps=2,
        train__max_steps=STEPS,
    )


def build(params: Params, team: Team = ALONE) -> Trainer:
    make_deterministic(params.run)
    model: nn.Module
    if isinstance(params.model, HubModel):
        model = add_adapter(tiny_llama(VOCABULARY), params.model).train()
    else:
        model = TinyGPT(vocab_size=VOCABULARY, d_model=16, n_layers=2, n_heads=2, max_length=64)
    trainer = build_trainer(params, model, STEPS, team.wrap)
    seed_rank(params.run.seed)
    return trainer


def batches_for(params: Params, directory: Path) -> TrainingBatches:
    store, meta = TokenStore("train", directory), read_meta(directory)
    return TrainingBatches(store, meta, collate, params.train, params.run.seed, torch.device("cpu"))


def take_steps(trainer: Trainer, batches: TrainingBatches) -> dict[str, Any]:
    """Results, gradients, rows and weights of all steps."""
    gradients: list[torch.Tensor] = []
    seen: list[list[list[int]]] = []
    results, replicas_equal = [], []
    hook = trainer.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(whole_gradient(trainer.model))
    )
    for step in range(STEPS):
        micro_batches = batches.of_step(step)
        seen.append([row for batch in micro_batches for row in rows_of(batch)])
        results.append(vars(trainer.step(micro_batches)))
        if not is_sharded(trainer.model):
            replicas_equal.append(
                all(same_bits(one, state_of(trainer)) for one in gather(state_of(trainer)))
            )
    hook.remove()
    return {
        "results": results,
        "gradients": gradients,
        "rows": seen,
        "replicas_equal": replicas_equal,
        "scheduler_steps": trainer.scheduler.last_epoch,
        "weights": {name: tensor.clone() for name, tensor in state_of(trainer).items()},
    }


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return model_state(trainer.model)


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(t.equal(other[name]) for name, t in one.items())


def whole_gradient(model: nn.Module) -> torch.Tensor:
    gradients = [whole(p.grad).flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(gradients).clone()


def rows_of(batch: Batch) -> list[list[int]]:
    """The tokens of each row of a batch without its padding."""
    ids = batch["input_ids"]
    lengths = batch.get("attention_mask", torch.ones_like(ids)).sum(1).tolist()
    rows = zip(ids.tolist(), lengths, strict=True)
    return [ids[:length] for ids, length in rows]


def train_alone(directory: Path, kind: str = "ddp") -> dict[str, Any]:
    params = params_for(1, kind)
    return take_steps(build(params), batches_for(params, directory))


def train_together(directory: Path, kind: str) -> dict[str, Any]:
    """The training as one rank, then what ranks agree on and a replica that goes astray."""
    params = params_for(RANKS, kind)
    trainer = build(params, team := join(params.train, params.run))
    found = take_steps(trainer, batches_for(params, directory))
    found |= {"drawn": torch.rand(3), "resumed": resume(trainer, params, team, directory)}
    number = rank()
    found["agreed"] = [
        world_size(),
        sum_over_ranks(0.1 + number),
        largest_over_ranks(-number),
        gather({"rank": number, "keys": torch.arange(2).to(torch.uint32)}),
        on_first_rank(lambda: f"said by {number}"),
        first_rank_first(lambda: number),
    ]
    if kind == "ddp":
        check_replicas(trainer.model, STEPS)
        if number == 1:
            weight = next(trainer.model.parameters()).data.view(-1)
            weight[:1] = weight[:1].nextafter(torch.tensor(9.0))
        try:
            check_replicas(trainer.model, STEPS)
        except Refusal as refusal:
            found["refusal"] = str(refusal)
    return found


def resume(trainer: Trainer, params: Params, team: Team, directory: Path) -> bool:
    """Does a fresh trainer with the state of `trainer` take the same step, to the bit?"""
    model, optimizer = model_state(trainer.model), optimizer_state(trainer.model, trainer.optimizer)
    if rank() == 0:
        torch.save([model, optimizer], directory / "state.pt")
    wait()
    schedule = trainer.scheduler.state_dict()
    batches = batches_for(params, directory).of_step(STEPS)
    expected = trainer.step(batches)
    fresh = build(params, team)
    model, optimizer = torch.load(directory / "state.pt", weights_only=True)
    load_model_state(fresh.model, model)
    load_optimizer_state(fresh.model, fresh.optimizer, optimizer)
    fresh.scheduler.load_state_dict(schedule)
    same_result = fresh.step(batches) == expected
    return same_result and same_bits(state_of(fresh), state_of(trainer))
