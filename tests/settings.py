"""Params for unit tests: the repository's own, made small; and Python in a process of its own."""

import copy
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.config.load import parse_params, read_yaml
from stages.config.schema import Params

ROOT = Path(__file__).parent.parent

SMALL: dict[str, Any] = {
    "model__d_model": 16,
    "model__n_layers": 1,
    "model__n_heads": 2,
    "model__max_length": 64,
    "model__frozen": [],
    "data__max_length": 64,
    "data__collator": None,
    "gates__overfit__num_samples": 4,
    "gates__overfit__max_steps": 3,
    "gates__gradient__steps": 4,
    "train__learning_rate": 0.01,
    "train__lr_scheduler_type": "cosine",
    "train__warmup_ratio": 0.1,
    "train__warmup_steps": 0,
    "train__max_steps": 20,
    "train__num_train_epochs": 3.0,
    "train__per_device_train_batch_size": 2,
    "train__per_device_eval_batch_size": 4,
    "train__gradient_accumulation_steps": 2,
    "train__weight_decay": 0.1,
    "train__max_grad_norm": 1.0,
    "train__step": None,
    "train__loss": None,
    "run__seed": 42,
    "run__device": "cpu",
    "run__precision": "fp32",
    "run__cpu_threads": 1,
}
_COMMITTED = read_yaml(ROOT / "params.yaml")


def committed_tree(values: Mapping[str, Any]) -> dict[str, Any]:
    """The repository's params.yaml with `values`; `__` in a name stands for a dot."""
    tree = copy.deepcopy(_COMMITTED)
    for key, value in values.items():
        *groups, leaf = key.split("__")
        group = tree
        for name in groups:
            group = group[name]
        group[leaf] = value
    return tree


def params_tree(**values: Any) -> dict[str, Any]:
    """The repository's params.yaml made small, with `values`."""
    return committed_tree({**SMALL, **values})


def make_params(**values: Any) -> Params:
    return parse_params(params_tree(**values))


def committed_params(**values: Any) -> Params:
    """The repository's own params, as large as they are, with `values`."""
    return parse_params(committed_tree(values))


def run_python(
    source: str, *arguments: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `source` in a Python of its own that can import `stages`."""
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
