"""Where do two trainings part? The first step and column, and the first tensor of the weights."""

import csv
import io
import tempfile
from collections.abc import Container, Iterator
from itertools import zip_longest
from pathlib import Path

import torch
from safetensors import safe_open

from ..provenance.drift import ABSENT, MISSING, Drift
from .record import Record, same_output

TELEMETRY = "reports/full_train/telemetry.csv"
MODEL = "models/final"
WEIGHTS = ".safetensors"
STEP = "step"


def first_step(then: str, now: str, limit: int | None = None) -> Drift | None:
    """The first line and column in which two telemetries differ, cell by cell as they were written.

    limit: look at so many steps.
    """
    old, new = (list(csv.DictReader(io.StringIO(text)))[:limit] for text in (then, now))
    for before, after in zip_longest(old, new):
        if before is None or after is None:
            step = (before or after)[STEP]
            there, gone = ("computed", MISSING), (ABSENT, "computed")
            return Drift("step", step, *(there if before else gone), "another run")
        for column in dict.fromkeys([*before, *after]):
            one, other = before.get(column, ABSENT), after.get(column, MISSING)
            if one != other:
                name = f"{before[STEP]}, {column}"
                return Drift("step", name, one or "(empty)", other or "(empty)", "another run")
    return None


def first_tensor(then: Path, now: Path, name: str) -> Drift | None:
    """The first tensor that differs between two safetensors files, and where it differs most.

    name: of the file.
    """
    with safe_open(then, "pt") as old, safe_open(now, "pt") as new:
        before, after = set(old.keys()), set(new.keys())
        for key in sorted({*before, *after}):
            title = f"{key} of {name}"
            if key not in before:
                return Drift("tensor", title, ABSENT, _shape(new.get_tensor(key)), "another run")
            one = old.get_tensor(key)
            if key not in after:
                return Drift("tensor", title, _shape(one), MISSING, "another run")
            other = new.get_tensor(key)
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                return Drift("tensor", title, _shape(one), _shape(other), "another run")
            if not torch.equal(_bits(one), _bits(other)):
                return _largest_difference(title, one, other)
    return None


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _largest_difference(title: str, one: torch.Tensor, other: torch.Tensor) -> Drift:
    difference = (other.double() - one.double()).abs().nan_to_num(nan=torch.inf)
    place = int(difference.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), one.shape)]
    largest = float(difference.flatten()[place])
    return Drift(
        "tensor",
        f"{title}, {_shape(one)}, largest difference {largest:.3g} at {index}",
        repr(float(one.flatten()[place])),
        repr(float(other.flatten()[place])),
        "another run",
    )


def one_sided(name: str, then: Container[str], now: Container[str]) -> Drift | None:
    """The drift of a weight file that only one of two models has."""
    if name in then and name in now:
        return None
    sides = ("(there)", MISSING) if name in then else (ABSENT, "(there)")
    return Drift("weights", name, *sides, "another run")


def compare_weights(then: Record, now: Record, unknown: list[str]) -> Iterator[Drift]:
    """The first differing tensor of the first weight file that differs.

    unknown: gets what could not be compared.
    """
    if same_output(then.lock, now.lock, MODEL):
        return
    old, new = then.files(MODEL), now.files(MODEL)
    if not (old and new):
        unknown.append(f"the tensors: {MODEL} of {(now if old else then).name} is not to be had")
        return
    for name in sorted({*old, *new}):
        if not name.endswith(WEIGHTS) or old.get(name) == new.get(name):
            continue
        if lacking_file := one_sided(name, old, new):
            yield lacking_file
            return
        with tempfile.TemporaryDirectory() as scratch:
            before, after = (
                record.on_disk(name, Path(scratch) / side)
                for record, side in ((then, "then"), (now, "now"))
            )
            if before is None or after is None:
                lacking = then if before is None else now
                unknown.append(f"the tensors: {name} of {lacking.name} is not to be had")
                return
            if drift := first_tensor(before, after, name):
                yield drift
                return
