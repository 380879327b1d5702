"""Where two trainings part is named: the step and its column, the tensor and its place."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from stages.provenance.drift import Drift
from stages.revisions.record import Record
from stages.revisions.training import compare_weights, first_step, first_tensor

TELEMETRY = "step,loss,grad_norm\n0,6.5,1.0\n1,6.25,1.5\n2,6.0,1.25\n"


def test_the_same_steps_part_nowhere() -> None:
    assert first_step(TELEMETRY, TELEMETRY) is None


def test_the_first_step_and_column_are_named() -> None:
    other = TELEMETRY.replace("1.5", "1.5000000000000002").replace("6.0", "7.0")
    drift = first_step(TELEMETRY, other)
    assert drift == Drift("step", "1, grad_norm", "1.5", "1.5000000000000002", "another run")
    assert first_step(TELEMETRY, other, limit=1) is None
    assert first_step(TELEMETRY, other, limit=2) == drift


def test_a_step_or_a_column_that_is_not_there_is_named() -> None:
    shorter = TELEMETRY.rpartition("2,")[0]
    missing = first_step(TELEMETRY, shorter)
    assert missing == Drift("step", "2", "computed", "(missing)", "another run")
    more = first_step(shorter, TELEMETRY)
    assert more == Drift("step", "2", "(not there then)", "computed", "another run")
    column = first_step("step,loss\n0,6.5\n", "step\n0\n")
    assert column == Drift("step", "0, loss", "6.5", "(missing)", "another run")


def saved(path: Path, **tensors: torch.Tensor) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path


def test_the_first_tensor_is_named_with_its_largest_difference(tmp_path: Path) -> None:
    weight = torch.zeros(2, 3)
    other = weight.clone()
    other[1, 2], other[0, 1] = 0.5, -0.25
    then = saved(tmp_path / "then", a=torch.ones(2), b=weight, c=torch.ones(1))
    now = saved(tmp_path / "now", a=torch.ones(2), b=other, c=torch.zeros(1))
    assert first_tensor(then, then, "model") is None
    assert first_tensor(then, now, "model") == Drift(
        "tensor",
        "b of model, float32 [2, 3], largest difference 0.5 at [1, 2]",
        "0.0",
        "0.5",
        "another run",
    )


def test_bits_are_compared_not_values(tmp_path: Path) -> None:
    then = saved(tmp_path / "then", a=torch.tensor([0.0, torch.nan]))
    same = saved(tmp_path / "same", a=torch.tensor([0.0, torch.nan]))
    now = saved(tmp_path / "now", a=torch.tensor([-0.0, torch.nan]))
    assert first_tensor(then, same, "model") is None
    drift = first_tensor(then, now, "model")
    assert drift is not None


def test_a_tensor_of_another_form_or_name_is_named(tmp_path: Path) -> None:
    then = saved(tmp_path / "then", a=torch.ones(2, dtype=torch.bfloat16))
    wider = saved(tmp_path / "wider", a=torch.ones(3, dtype=torch.bfloat16))
    renamed = saved(tmp_path / "renamed", b=torch.ones(2))
    drifts = [first_tensor(then, now, "model") for now in (wider, renamed)]
    assert [drift and (drift.then, drift.now) for drift in drifts] == [
        ("bfloat16 [2]", "bfloat16 [3]"),
        ("bfloat16 [2]", "(missing)"),
    ]
    added = first_tensor(
        then, saved(tmp_path / "more", a=torch.ones(2), **{"0": torch.ones(1)}), ""
    )
    assert added is not None
    assert (added.then, added.now) == ("(not there then)", "float32 [1]")


def test_weights_are_compared_file_by_file_where_they_are_to_be_had(tmp_path: Path) -> None:
    then, now = (Record.of_directory(tmp_path / name, name) for name in ("then", "now"))
    unknown: list[str] = []
    saved(tmp_path / "now/models/final/model.safetensors", a=torch.ones(2))
    assert list(compare_weights(now, now, unknown)) == []
    assert list(compare_weights(then, now, unknown)) == []
    assert unknown == ["the tensors: models/final of then is not to be had"]
    saved(tmp_path / "then/models/final/model.safetensors", a=torch.zeros(2))
    (tensor,) = compare_weights(then, now, unknown)
    assert (tensor.kind, tensor.then, tensor.now) == ("tensor", "0.0", "1.0")
    saved(tmp_path / "then/models/final/adapter.safetensors", a=torch.zeros(2))
    (weights,) = compare_weights(then, now, unknown)
    assert (weights.kind, weights.name, weights.now) == (
        "weights",
        "models/final/adapter.safetensors",
        "(missing)",
    )
    assert len(unknown) == 1
