"""Every preset is budgeted without a network, and a run that does not fit is refused by name."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.config import UserError
from stages.estimate.architecture import architecture_of
from stages.estimate.budget import (
    Budget,
    adapter_training_config,
    make_budget,
    table_of,
    too_large,
)
from stages.estimate.hardware import DIRECTORY, read_hardware
from stages.estimate.memory import KINDS, Parameters

from ..project import Project
from ..settings import ROOT
from .measured import CONFIG, hub, tiny

PRESETS = sorted(path.stem for path in (ROOT / "conf/experiment").glob("*.yaml"))
OFFLINE = {"HF_HUB_OFFLINE": "1", "HOLDSHORT_MODELS": "/nowhere"}


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def budget(**values: Any) -> Budget:
    architecture = architecture_of(CONFIG, "small")
    return make_budget(hub(**values), Parameters(200_000, 200_000), architecture, 10)


def holdshort(project: Project, *arguments: str) -> tuple[int, str]:
    done = project.run(sys.executable, "-m", "stages.cli", *arguments, **OFFLINE)
    return done.returncode, done.stdout


def test_the_presets_are_these() -> None:
    assert PRESETS == [
        "llama31_8b_lora",
        "qwen3_8b_qlora",
        "smollm2_135m_full",
        "smollm2_135m_lora",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_composes_and_is_budgeted_without_a_network_and_without_weights(
    fresh: Project, preset: str
) -> None:
    code, said = holdshort(fresh, "budget", f"+experiment={preset}", "--output", "out/it.json")
    assert code == 0, said
    assert "memory: at the peak" in said
    record = fresh.json("out/it.json")
    assert record["budget"]["fits"] is True
    assert set(record["budget"]["memory_bytes"]) == {*KINDS, "peak"}
    assert record["budget"]["usd_at_most"] > 0
    before = fresh.read("params.yaml")
    composed = holdshort(fresh, "compose", f"+experiment={preset}")
    assert composed[0] == 0, composed[1]
    assert fresh.read("params.yaml") != before


@pytest.mark.slow
def test_the_4_bit_preset_is_what_it_says(fresh: Project) -> None:
    options = ("budget", "+experiment=qwen3_8b_qlora", "--output")
    for name in ("one.json", "two.json"):
        assert holdshort(fresh, *options, name)[0] == 0
    assert fresh.read("one.json") == fresh.read("two.json")
    record = fresh.json("one.json")
    assert record["base_model"] == {
        "name": "Qwen/Qwen3-8B",
        "revision": "b968826d9c46dd6066d109eabc6255188de91218",
        "dtype": "bfloat16",
        "quantisation": "nf4, double",
        "weights_sha256": None,
    }
    assert record["adapter"]["r"] == 16
    assert record["trainable_parameters"] == 43_646_976
    assert 12 < record["budget"]["memory_bytes"]["peak"] / 2**30 < 18


@pytest.mark.slow
def test_a_run_that_does_not_fit_ends_with_1_and_names_its_largest_part(fresh: Project) -> None:
    code, said = holdshort(
        fresh, "budget", "+experiment=qwen3_8b_qlora", "model.adapter=lora", "model.dtype=float32"
    )
    assert code == 1
    assert "the largest part is weights" in said
    assert "set model.dtype=bfloat16 or model.adapter=qlora" in said


def test_params_are_budgeted_as_they_are_without_overrides(fresh: Project) -> None:
    code, said = holdshort(fresh, "budget")
    assert (code, "run.hardware names no machine" in said) == (0, True), said
    assert "193,408 (100.000%)" in said


def test_unknown_hardware_is_answered_with_what_there_is(fresh: Project) -> None:
    code, said = holdshort(fresh, "budget", "run.hardware=a100_80g")
    assert code == 2
    assert said == (
        "error: params.yaml: 'run.hardware' is 'a100_80g'; conf/hardware/ has a100_80gb, "
        "cpu_2_cores, h100_80gb, rtx4090_24gb; did you mean 'a100_80gb'?\n"
    )


def test_steps_that_only_the_data_tells_are_asked_for(fresh: Project) -> None:
    code, said = holdshort(fresh, "budget", "train.max_steps=-1")
    assert code == 2
    assert "budget with train.max_steps=N" in said


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / DIRECTORY).glob("*.yaml")))
def test_every_machine_is_read_and_names_its_source(name: str) -> None:
    assert len(read_hardware(name).source) > 20


def test_a_machine_with_a_wrong_fact_is_refused_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / DIRECTORY).mkdir(parents=True)
    text = (ROOT / DIRECTORY / "a100_80gb.yaml").read_text().replace("mfu: 0.35", "mfu: 35")
    (tmp_path / DIRECTORY / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^conf/hardware/mine\.yaml: .* `\$\.mfu`"):
        read_hardware("mine")


def test_hours_and_cost_follow_from_operations_peak_and_price() -> None:
    found = budget(run__hardware="h100_80gb")
    assert found.flops is not None
    assert found.hours is not None
    assert found.hours == pytest.approx(found.flops / (67e12 * 0.35) / 3600)
    assert found.usd == pytest.approx(found.hours * 3)
    assert found.tokens == 10 * 4 * 2 * 64


def test_micro_batches_that_are_filled_by_tokens_cost_what_they_hold() -> None:
    by_rows, by_tokens = budget(), budget(train__max_tokens_per_batch=64)
    assert (by_rows.tokens, by_tokens.tokens) == (10 * 4 * 2 * 64, 10 * 2 * 64)
    assert by_tokens.memory["logits"] * 4 == by_rows.memory["logits"]


def test_more_processes_see_more_tokens_in_the_same_hours_and_cost_more() -> None:
    one, two = (budget(run__hardware="h100_80gb", train__num_processes=count) for count in (1, 2))
    assert two.tokens == 2 * one.tokens
    assert two.hours == one.hours
    assert one.usd and two.usd == pytest.approx(2 * one.usd)


def test_without_hardware_nothing_is_said_of_hours() -> None:
    found = budget()
    assert (found.hours, found.usd, found.fits) == (None, None, True)
    assert table_of(found)[-1] == ("hours and cost", "run.hardware names no machine")


def test_what_is_not_known_of_a_model_of_ones_own_is_said() -> None:
    found = make_budget(tiny(), Parameters(100, 100), None, 10)
    assert found.record()["not_estimated"] == ["activations", "logits"]
    assert ("FLOPs, at most", "not estimated") in table_of(found)


@pytest.mark.parametrize(
    ("part", "values", "remedy"),
    [
        ("weights", {}, "set model.dtype=bfloat16 or model.adapter=qlora"),
        ("optimizer", {}, "train an adapter (model.adapter=lora)"),
        ("optimizer", {"adapter": "lora"}, "lower model.lora.r"),
        ("activations", {}, "set train.gradient_checkpointing=true, or lower"),
        ("activations", {"train__gradient_checkpointing": True}, "lower train.per_device_train"),
        ("logits", {}, "lower train.per_device_train_batch_size"),
        ("logits", {"train__max_tokens_per_batch": 64}, "lower train.max_tokens_per_batch"),
    ],
)
def test_the_remedy_is_for_the_largest_part(part: str, values: Any, remedy: str) -> None:
    params = hub(run__hardware="rtx4090_24gb", **values)
    found = make_budget(params, Parameters(10, 10), architecture_of(CONFIG, "small"), 1)
    grown = Budget(**{**vars(found), "memory": {**found.memory, part: 10**12}})
    assert not grown.fits
    said = too_large(grown, params)
    assert f"the largest part is {part} (931.323 GiB): {remedy}" in said
    assert "\n" not in said


def test_without_an_adapter_the_config_says_so() -> None:
    params = tiny()
    found = make_budget(params, Parameters(100, 100), None, 10)
    config = adapter_training_config(params, found, weights_sha256=None)
    assert config["adapter"] is None
    assert config["base_model"]["name"] == "tiny_gpt"
    assert config["training"]["steps"] == 10
    assert json.dumps(config) == json.dumps(
        adapter_training_config(params, found, weights_sha256=None)
    )
