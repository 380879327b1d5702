"""Does the trained model compute the numbers that are recorded of it?

Builds the run that params.yaml describes, puts the weights of models/final/ into it, and evaluates
it on artifacts/tokens/ as full_train did. Writes nothing.

    holdshort verify --deep
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..config import Params, UserError
from ..full_train import answer
from ..models.load import load_trained
from ..models.record import MODEL
from ..provenance.drift import Drift
from ..provenance.records import read_metrics
from ..training.evaluation import first_turns, share_exact, share_stopped
from ..training.run import start_run, validation_loss

TOLERANCE = 1e-3
"""Relative, for losses that other processors compute; a share may move by one answer."""


def recompute(params: Params, directory: Path = MODEL) -> dict[str, float]:
    """The numbers of metrics/full_train.json that the weights decide, as they are now.

    Raises UserError when there is no model, or another one.
    """
    if not directory.is_dir():
        raise UserError(f"{directory} is missing; run `dvc checkout` or `dvc repro`")
    run = start_run(params)
    load_trained(run.trainer.model, directory, params.model)
    turns = first_turns(run.validation, params.train.eval_generations)
    answers = answer(run, params, turns)
    return {
        "validation_loss": validation_loss(run, params),
        "exact_match": share_exact(answers),
        "stop_rate": share_stopped(answers),
        "answers": len(answers),
    }


def compare_numbers(
    recorded: Mapping[str, float], found: Mapping[str, float], *, same_bits: bool
) -> Iterator[Drift]:
    """same_bits: this is the environment of the training, so that every digit must be the same."""
    for name, now in found.items():
        then = recorded.get(name)
        allowed = 0.0
        if not same_bits:
            per_answer = 1 / max(found["answers"], 1)
            allowed = TOLERANCE * abs(now) if name == "validation_loss" else per_answer
        if then is None or not abs(then - now) <= allowed:
            yield Drift("model", f"{name}, computed again", str(then), str(now), "another run")


def find_other_numbers(params: Params, drifts: list[Drift]) -> list[Drift]:
    """What the model computes otherwise. drifts: what else differs from the record."""
    recorded = read_metrics("full_train")
    found = recompute(params)
    same_bits = not any(drift.kind == "environment" for drift in drifts)
    there = {name: recorded[name] for name in found}
    return list(compare_numbers(there, found, same_bits=same_bits))
