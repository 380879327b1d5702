"""Small runs that pass both gates, in which each fault of the catalogue can be planted."""

from typing import Any

from stages.config.schema import Params
from stages.faults.fault import Fault
from stages.faults.running import Found, Run, run_fault

from ..settings import make_params

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


def run_where_it_applies(fault: Fault) -> tuple[str, Run] | None:
    """The name of the first configuration that the fault can be planted in, and its verdicts."""
    for name in CONFIGURATIONS:
        run = run_fault(fault, configured(name))
        if isinstance(run, Run):
            return name, run
    return None


def of_its_gate(fault: Fault, run: Run) -> Found:
    return run.found[fault.gate]
