"""Sound runs of many kinds, which gates 2 and 3 must not refuse: how often do they?

Models of every family, precisions, batches, schedules and rates, on the demonstration data with the
limits that conf/ has, but for the rate and the number of steps of the overfit run, which depend on
the model. The gates' own measurements and rules and all their steps; left out are the reruns of
gate 2 and the resume check, which need fresh processes.

python -m tests.faults.healthy_zoo [NAME ...]   writes healthy_zoo.json anew, or tells of some runs
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import stages.plugins
from stages.chat.collator import collate
from stages.chat.labels import IGNORE_INDEX
from stages.chat.token_store import TokenStore, read_meta
from stages.config.schema import Params
from stages.faults.fault import GATES
from stages.faults.rates import tell_rate
from stages.faults.running import run_gates
from stages.provenance.base_model import keep
from stages.provenance.records import write_json
from stages.training.loss import causal_lm_loss, count_targets
from stages.training.setup import Parts

from ..conftest import ROOT
from ..models.llama import hub_tree
from ..parts import pinned_process
from ..project import Project, copy_repository
from ..settings import committed_params
from .families import build

RECORD = Path(__file__).parent / "healthy_zoo.json"
PRETRAINING = 150
"""Steps that a base model takes before it is kept, on whole conversations as base models do."""

Values = dict[str, Any]
SMALL: Values = {"gates__overfit__max_steps": 150, "gates__overfit__learning_rate": 0.004}
"""For models of 64 features that are initialised as large ones are: 30 to 120 steps at any rate."""
ADAPTED: Values = {
    **SMALL,
    "gates__overfit__learning_rate": 0.003,
    "gates__gradient__min_norm": 0.01,  # adapters get an eighth of the norm of whole weights
    "train__learning_rate": 0.0005,
    "train__weight_decay": 0.0,
}
FULL: Values = {**SMALL, "gates__overfit__learning_rate": 0.002, "train__learning_rate": 0.0001}

OWN: dict[str, Values] = {
    "as_committed": {},
    "tied": {"model__tie_word_embeddings": True, "gates__overfit__max_steps": 60},
    "all_global": {"model__local_window": 0},
    "dropout": {"model__dropout": 0.1},
    "much_dropout": {"model__dropout": 0.3},
    "deep": {"model__n_layers": 8},
    "frozen_embedding": {"model__frozen": ["embedding.weight"]},
    "bf16": {"run__precision": "bf16"},
    "fp16": {"run__precision": "fp16"},
    "single_rows": {
        "train__per_device_train_batch_size": 1,
        "train__gradient_accumulation_steps": 16,
    },
    "packed": {"train__packing": True},
    "by_length": {"train__group_by_length": True},
    "constant": {"train__lr_scheduler_type": "constant_with_warmup", "train__weight_decay": 0.0},
    "high_rate": {"train__learning_rate": 0.01},
    "no_clip": {"train__max_grad_norm": 1000.0},
    "tiny_lora": {"model": "tiny_lora", "gates__overfit__learning_rate": 0.016},
}
SCRATCH: dict[str, Values] = {
    "bloom": {},
    "falcon": {},
    "gemma2": {},
    "gpt2": {},
    "gpt2 bf16": {"run__precision": "bf16"},
    "gpt2 untied": {"model__tie_word_embeddings": False},
    "gpt_neox": {},
    "gpt_neox fp16": {"run__precision": "fp16"},
    "gru": {},
    "llama": {},
    "llama checkpointed": {"train__gradient_checkpointing": True},
    "llama packed": {"train__packing": True},
    "llama reentrant": {
        "train__gradient_checkpointing": True,
        "train__gradient_checkpointing_kwargs__use_reentrant": True,
    },
    "lstm": {},
    "lstm bf16": {"run__precision": "bf16"},
    "mamba": {},
    "mistral": {},
    "mixtral": {},
    "mixtral by_length": {"train__group_by_length": True},
    "olmo2": {},
    "opt": {},
    "opt bf16": {"run__precision": "bf16"},
    "phi": {},
    "qwen2": {},
    "qwen2 packed": {"train__packing": True, "run__precision": "bf16"},
    "qwen2 untied": {"model__tie_word_embeddings": False},
    "qwen3": {},
    "rwkv": {},
    "stablelm": {},
}
LORA_16: Values = {"r": 16, "lora_alpha": 32}
PRETRAINED: dict[str, Values] = {
    "llama lora": ADAPTED,
    "llama lora bf16_base": {**ADAPTED, "run__precision": "bf16", "model__dtype": "bfloat16"},
    "llama lora dora": {**ADAPTED, "model__lora__use_dora": True},
    "llama lora dropout": {**ADAPTED, "model__lora__lora_dropout": 0.1},
    "llama lora packed": {**ADAPTED, "train__packing": True},
    "llama full": FULL,
}
WIDTH = 256
"""Of base models: adapters of narrower ones cannot make a frozen head sure of an answer."""
SEEDED = "tiny_gpt as_committed"
SEEDS = (1, 2, 3, 4, 5)


def zoo() -> dict[str, Values]:
    """Name of a run -> what it changes in the committed params."""
    runs = {f"tiny_gpt {name}": values for name, values in OWN.items()}
    for name, values in SCRATCH.items():
        runs[f"scratch {name}"] = {"model": ("scratch", name.split()[0]), **SMALL, **values}
    for name, values in PRETRAINED.items():
        adapter = "none" if "full" in name else "lora"
        runs[f"pretrained {name}"] = {
            "model": ("pretrained", name.split()[0]),
            "model__adapter": adapter,
            **values,
        }
    runs |= {f"{SEEDED} seed {seed}": {**runs[SEEDED], "run__seed": seed} for seed in SEEDS}
    return runs


def values_of(values: Values) -> Values:
    """`values` with the whole `model` group for which they give its kind and family."""
    match values.get("model"):
        case ("scratch", family):
            model = {
                "_target_": "stages.plugins.families.build",
                "name": family,
                "tokenizer": "data/tokenizer",
                "frozen": [],
                "family": family,
            }
        case ("pretrained", family):
            model = hub_tree(pretrain(family), lora=LORA_16)
            model |= {"name_or_path": family, "tokenizer": "data/tokenizer"}
        case "tiny_lora":
            from stages.config.load import read_yaml

            model = read_yaml(ROOT / "conf/model/tiny_lora.yaml")
        case _:
            return values
    return {**values, "model": model}


_KEPT: dict[str, str] = {}


def pretrain(family: str) -> str:
    """The revision of a model of `family` that has seen the training rows for a while."""
    if family not in _KEPT:
        torch.manual_seed(0)
        store, meta = TokenStore("train"), read_meta()
        model: Any = build(meta.vocab_size, family, hidden_size=WIDTH)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
        for step in range(PRETRAINING):
            rows = [store[(8 * step + row) % len(store)] for row in range(8)]
            batch = collate(rows, meta.pad_token_id)
            del batch["labels"]
            texts = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORE_INDEX)
            loss: Any = causal_lm_loss(model(**batch).logits, texts, count_targets(texts))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        with TemporaryDirectory() as scratch:
            model.save_pretrained(scratch)
            _KEPT[family] = keep(Path(scratch), family)
    return _KEPT[family]


@contextmanager
def demonstration(directory: Path) -> Iterator[None]:
    """The demonstration data's tokens in the current directory, and the families as plugins."""
    project = copy_repository(ROOT, directory / "project")
    project.commit("Start")
    project.repro("mask_report")
    with inside(project, directory / "models"):
        yield


@contextmanager
def inside(project: Project, models: Path) -> Iterator[None]:
    before, where = Path.cwd(), list(stages.plugins.__path__)
    os.chdir(project.path)
    stages.plugins.__path__.append(str(Path(__file__).parent))
    try:
        with pinned_process():
            os.environ["HOLDSHORT_MODELS"] = str(models)
            yield
    finally:
        os.chdir(before)
        stages.plugins.__path__[:] = where


def judge(params: Params) -> Values:
    """By gate, the checks that refuse the run, and those that warn."""
    found = run_gates(params, Parts.of(params), probed=None).found
    failed = [
        f"{gate}: {c}" for gate in GATES for c in found[gate].checks if c not in found[gate].warned
    ]
    return {
        "alarms": failed,
        "warnings": [f"{gate}: {check}" for gate in GATES for check in found[gate].warned],
    }


def measure(names: list[str]) -> Values:
    runs, told = zoo(), {}
    for name in names or runs:
        began = time.monotonic()
        told[name] = judge(committed_params(**values_of(runs[name])))
        print(f"{name}: {told[name]} ({time.monotonic() - began:.1f} s)", flush=True)
    return told


def count(record: Values) -> tuple[int, int]:
    """Runs that a gate refused, and runs."""
    return sum(bool(told["alarms"]) for told in record.values()), len(record)


def read_record() -> Values:
    record: Values = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def main(names: list[str]) -> None:
    with TemporaryDirectory() as scratch, demonstration(Path(scratch)):
        told = measure(names)
    print(f"false alarms: {tell_rate(*count(told))}")
    if not names:
        write_json(RECORD, told)


if __name__ == "__main__":
    main(sys.argv[1:])
