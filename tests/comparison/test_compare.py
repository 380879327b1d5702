"""`holdshort compare` over real tokens: what the shipped comparisons promise to show, they show."""

import re
from typing import Any

import pytest

from ..project import Project

TINY = """
question: Does it run?
base: {overrides: [train.max_steps=3, model.d_model=16, model.n_layers=1, model.n_heads=2]}
arms:
  one: {}
  stale: {plant: [zero_grad_missing]}
seeds: [1, 2]
"""


def compare(project: Project, name: str, *options: str) -> tuple[str, dict[str, Any]]:
    """What is printed, and the arms or scripts of results.json by their names."""
    done = project.holdshort("compare", name, *options)
    assert done.returncode == 0, done.stdout
    record = project.json(f"reports/compare/{name}/results.json")
    return done.stdout, {one["name"]: one for one in record.get("arms") or record["scripts"]}


def shorten(project: Project, name: str, steps: int) -> None:
    path = f"conf/experiment/compare/{name}.yaml"
    text = project.read(path)
    assert "train.max_steps=" in text
    project.write(path, re.sub(r"train.max_steps=\d+", f"train.max_steps={steps}", text))


def only_run(arms: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: arm["runs"][0] for name, arm in arms.items()}


def test_a_wrong_name_is_refused_before_anything_is_written(fresh: Project) -> None:
    done = fresh.holdshort("compare", "los_spike")
    assert done.returncode == 2
    assert done.stdout.startswith("error: there is no conf/experiment/compare/los_spike.yaml; ")
    assert "did you mean 'loss_spike'?" in done.stdout
    assert not fresh.exists("reports")


@pytest.mark.slow
def test_without_tokens_it_says_what_to_run(fresh: Project) -> None:
    done = fresh.holdshort("compare", "seed_spread")
    assert done.returncode == 2
    assert done.stdout.strip() == "error: artifacts/tokens/ is missing; run `dvc repro mask_report`"
    assert not fresh.exists("reports")


@pytest.mark.slow
def test_two_runs_of_a_comparison_write_the_same_bytes_and_nothing_else(cleared: Project) -> None:
    cleared.write("conf/experiment/compare/tiny.yaml", TINY)
    cleared.commit()
    printed, arms = compare(cleared, "tiny")
    written = {name: cleared.read(f"reports/compare/tiny/{name}") for name in FILES}
    again = cleared.holdshort("compare", "tiny", "--report", "reports/again")
    assert again.returncode == 0, again.stdout
    assert written == {name: cleared.read(f"reports/again/{name}") for name in FILES}
    assert cleared.git("status", "--porcelain") == ""
    assert [run["seed"] for run in arms["stale"]["runs"]] == [1, 2]
    losses = [run["steps"][-1]["loss"] for arm in arms.values() for run in arm["runs"]]
    assert len(set(losses)) == 4  # neither the seed nor the fault is without effect
    assert "stale_gradients (2 of 2)" in printed
    assert "±" in printed
    assert "Differences" in written["index.html"]


FILES = ("index.html", "results.json")


@pytest.mark.slow
def test_only_a_lower_rate_mends_the_spike_that_a_rate_too_high_provokes(cleared: Project) -> None:
    path = "conf/experiment/compare/loss_spike.yaml"
    cleared.write(path, cleared.read(path).replace("seeds: [1, 2, 3]", "seeds: [1, 2]"))
    printed, arms = compare(cleared, "loss_spike")
    spikes = {
        name: sum("early_spike" in run["curves"] for run in arm["runs"])
        for name, arm in arms.items()
    }
    assert spikes["provoked"] == spikes["clip_at_1"] == 2  # AdamW undoes what clipping does
    assert spikes["warmup"] == spikes["lower_rate"] == spikes["all_four"] == 0
    losses = {n: [run["validation_loss"] for run in arm["runs"]] for n, arm in arms.items()}
    mended = max(*losses.pop("lower_rate"), *losses.pop("all_four"))
    assert mended < 0.8 * min(min(values) for values in losses.values())
    assert "curves: lower_rate: without early_spike (2 of 2)" in printed


@pytest.mark.slow
def test_small_gradients_vanish_in_float16_without_a_scaler_alone(cleared: Project) -> None:
    shorten(cleared, "fp16_underflow", 16)
    runs = only_run(compare(cleared, "fp16_underflow")[1])
    lost = runs["fp16_without_scaler"]
    assert lost["zero_gradient"] > 0.5
    assert lost["validation_loss"] > runs["fp32"]["validation_loss"] + 0.2
    for name in ("fp16", "bf16"):
        assert runs[name]["zero_gradient"] == pytest.approx(runs["fp32"]["zero_gradient"], abs=0.01)
        assert runs[name]["validation_loss"] == pytest.approx(
            runs["fp32"]["validation_loss"], rel=0.02
        )
    rounded = runs.pop("bf16_weights")
    assert rounded["unmoved"] > 0.1 > 10 * max(run["unmoved"] for run in runs.values())
    assert "half_change" in rounded["gradient_probe"]["checks"]
    caught = {n for n, run in runs.items() if "loss_unscaled" in run["gradient_probe"]["checks"]}
    assert caught == {"fp16_without_scaler"}


@pytest.mark.slow
def test_large_gradients_overflow_float16_and_the_scaler_skips_them(cleared: Project) -> None:
    shorten(cleared, "fp16_overflow", 36)
    runs = only_run(compare(cleared, "fp16_overflow")[1])
    counts = {name: (run["not_finite"], run["skipped"]) for name, run in runs.items()}
    assert counts["fp32"] == counts["bf16"] == (0, 0)
    skipped = counts["fp16"][1]
    assert 0 < skipped == counts["fp16"][0] < 36
    assert counts["fp16_without_scaler"] == (36, 0)
    assert runs["fp16_without_scaler"]["last_loss"] == "nan"
    first, *_, last = [step["loss"] for step in runs["fp16"]["steps"]]
    assert last < first


@pytest.mark.slow
def test_each_broken_script_is_told_by_its_cause(cleared: Project) -> None:
    printed, scripts = compare(cleared, "digits")
    passed = {name for name, one in scripts.items() if one["sanity_check"]["passed"]}
    assert passed == {"healthy_classifier", "healthy_regressor"}
    assert scripts["healthy_classifier"]["after"] > 0.85
    assert scripts["labels_shuffled"]["after"] < 0.2
    for name, one in scripts.items():
        if name in ("zero_grad_missing", "softmax_twice", "head_times_50"):
            assert one["after"] > 0.7  # its training would have shown nothing
    assert "zero_grad is missing" in printed


@pytest.mark.slow
def test_a_difference_is_told_beside_what_another_seed_changes(cleared: Project) -> None:
    shorten(cleared, "seed_spread", 8)
    printed, arms = compare(cleared, "seed_spread")
    losses = {n: [run["last_loss"] for run in arm["runs"]] for n, arm in arms.items()}
    assert min(losses["half_the_rate"]) > max(losses["as_it_is"])
    assert all(len(set(values)) == 4 for values in losses.values())
    assert "±" in printed
