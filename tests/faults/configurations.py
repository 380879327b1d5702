"""Small runs that pass both gates, in which each fault of the catalogue can be planted.

python -m tests.faults.configurations   writes matrix.json anew
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from stages.chat.token_store import TOKENS
from stages.config.schema import Params
from stages.faults.catalogue import FAULTS
from stages.faults.fault import DoesNotApply, Fault, Gate
from stages.faults.running import Found, Run, Seen, judge_seen, observe_gates, plant, run_fault
from stages.provenance.base_model import keep
from stages.provenance.records import write_json

from ..models.llama import hub_tree, tiny_llama
from ..parts import VOCABULARY, make_batch, make_rows, pinned_process, write_store
from ..settings import make_params

MATRIX = Path(__file__).parent / "matrix.json"
LEARNS = {
    "model__d_model": 32,
    "gates__overfit__max_steps": 35,
    "gates__overfit__learning_rate": 0.02,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"model__dropout": 0.1},
    "bf16": {"run__precision": "bf16"},
    "fp16": {"run__precision": "fp16"},
    "packed": {"train__packing": True},
    "frozen": {"model__frozen": ["embedding.weight"]},
}


def configured(name: str) -> Params:
    return make_params(**LEARNS, **CONFIGURATIONS[name])


def run_where_it_applies(fault: Fault) -> Run:
    """The verdicts in the first configuration that the fault can be planted in."""
    runs = (run_fault(fault, configured(name)) for name in CONFIGURATIONS)
    return next(run for run in runs if isinstance(run, Run))


@contextmanager
def small_project(directory: Path) -> Iterator[None]:
    """Tokens of twelve rows in `directory`, which is then the current one, and a store beside."""
    before = Path.cwd()
    os.chdir(directory)
    try:
        with pinned_process():
            os.environ["HOLDSHORT_MODELS"] = str(directory / "models")
            write_store(TOKENS, "train", make_rows(12))
            write_store(TOKENS, "validation", make_rows(4))
            yield
    finally:
        os.chdir(before)


def pretrained(scratch: Path) -> Params:
    """LoRA over a Llama that has seen the rows."""
    model, batch = tiny_llama(VOCABULARY), make_batch(12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(scratch / "llama")
    revision = keep(scratch / "llama", "llama")
    rest = {name: value for name, value in LEARNS.items() if not name.startswith("model")}
    return make_params(model=hub_tree(revision), **rest)


@dataclass(frozen=True)
class Observed:
    """What both gates measured with a fault planted in a configuration."""

    configuration: str
    params: Params
    seen: tuple[Seen, Seen]

    def judge(self, without: str = "") -> dict[Gate, list[str]]:
        """By gate, the checks that do not pass, as if the rule `without` were not there."""
        found: dict[Gate, Found] = {one.gate: judge_seen(one, self.params) for one in self.seen}
        return {g: [check for check in one.checks if check != without] for g, one in found.items()}


def observe(fault: Fault, params: Params, configuration: str) -> Observed | None:
    planted = plant(fault, params)
    if isinstance(planted, str):
        return None
    parts, changed, twice = planted
    try:
        return Observed(configuration, changed, observe_gates(changed, parts, twice=twice))
    except DoesNotApply:
        return None


def observe_all(scratch: Path) -> dict[str, Observed]:
    """Every fault, in the first configuration that it can be planted in. Takes a minute."""
    configurations = {name: configured(name) for name in CONFIGURATIONS}
    configurations["pretrained"] = pretrained(scratch)
    found: dict[str, Observed] = {}
    for fault in FAULTS:
        for name, params in configurations.items():
            if observed := observe(fault, params, name):
                found[fault.name] = observed
                break
    return found


ROUNDED = (("constant_init", "gradient_probe", "ignores_input"),)


def matrix_of(observed: dict[str, Observed], without: str = "") -> dict[str, Any]:
    """Fault -> the configuration, and by gate the checks that do not pass.

    Less what rounding decides: under the same constant in every weight the gradient at the inputs
    is 0 on one processor and 1e-9 on another.
    """
    matrix: dict[str, Any] = {
        name: {"configuration": one.configuration, **one.judge(without)}
        for name, one in observed.items()
    }
    for fault, gate, check in ROUNDED:
        found = matrix[fault][gate]
        matrix[fault][gate] = [one for one in found if one != check]
    return matrix


def read_matrix() -> dict[str, Any]:
    matrix: dict[str, Any] = json.loads(MATRIX.read_text(encoding="utf-8"))
    return matrix


if __name__ == "__main__":
    with TemporaryDirectory() as scratch, small_project(Path(scratch)):
        write_json(MATRIX, matrix_of(observe_all(Path(scratch))))
