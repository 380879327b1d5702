"""params.yaml at the door: each mistake ends in one sentence that names the key."""

import datetime
import math
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from stages.config import Params, UserError, declared_values, load_params, parse_params, read_yaml
from stages.config.load import MODELS, UndeclaredParam, declared_keys, flatten, nearest, stage_deps
from stages.config.schema import CustomModel, TinyGPTModel

from ..models.llama import hub_tree
from ..settings import ROOT, make_params, params_tree

CUSTOM = {
    "_target_": "stages.plugins.mine.build",
    "name": "mine",
    "tokenizer": "data/tokenizer",
    "frozen": ["embedding.*"],
    "width": 8,
}


def refusal(tree: dict[Any, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse_params(tree)
    return str(caught.value)


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "params.yaml"
    path.write_text(text, encoding="utf-8")
    return read_yaml(path)


def unreadable(text: bytes) -> str:
    Path("params.yaml").write_bytes(text)
    with pytest.raises(UserError) as caught:
        read_yaml(Path("params.yaml"))
    return str(caught.value)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the repository's params.yaml and dvc.yaml."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def leaves() -> Iterator[tuple[str, Any]]:
    return flatten(params_tree())


def test_the_committed_params_are_valid() -> None:
    params = parse_params(read_yaml(ROOT / "params.yaml"))
    assert params.run.device in ("cpu", "cuda")


def test_values_arrive_with_their_types() -> None:
    params = make_params(train__learning_rate=1, run__seed=7, data__validation_path="held_out")
    assert (params.train.learning_rate, params.run.seed) == (1.0, 7)
    assert isinstance(params.train.learning_rate, float)
    assert params.data.validation_path == "held_out"
    assert isinstance(params.model, TinyGPTModel)


def test_a_model_with_a_target_keeps_its_other_keys_as_arguments() -> None:
    tree = {**params_tree(), "model": CUSTOM}
    assert parse_params(tree).model == CustomModel(
        name="mine",
        tokenizer="data/tokenizer",
        frozen=["embedding.*"],
        target="stages.plugins.mine.build",
        arguments={"width": 8},
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"train__learning_rat": 0.1},
            "params.yaml: unknown key 'train.learning_rat'; did you mean 'train.learning_rate'?",
        ),
        (
            {"learning_rate": 0.1},
            "params.yaml: unknown key 'learning_rate'; did you mean 'train.learning_rate'?",
        ),
        (
            {"train__d_model": 64},
            "params.yaml: unknown key 'train.d_model'; did you mean 'model.d_model'?",
        ),
        ({"run__quux": 1}, "params.yaml: unknown key 'run.quux'"),
        (
            {"train__save_steps": 0},
            "params.yaml: 'train.save_steps' is 0: expected `int` >= 1",
        ),
        (
            {"train__save_steps": True},
            "params.yaml: 'train.save_steps' is True: expected `int`, got `bool`",
        ),
        (
            {"train__save_steps": 2.5},
            "params.yaml: 'train.save_steps' is 2.5: expected `int`, got `float`",
        ),
        (
            {"train__learning_rate": "fast"},
            "params.yaml: 'train.learning_rate' is 'fast': expected `float`, got `str`",
        ),
        (
            {"train__learning_rate": None},
            "params.yaml: 'train.learning_rate' is None: expected `float`, got `null`",
        ),
        (
            {"train__learning_rate": -0.1},
            "params.yaml: 'train.learning_rate' is -0.1: expected `float` > 0.0",
        ),
        (
            {"train__optimizer__adam_beta1": 1.0},
            "params.yaml: 'train.optimizer.adam_beta1' is 1.0: expected `float` < 1.0",
        ),
        (
            {"train__optimizer__adam_beta1": 0.999, "train__optimizer__adam_beta2": 0.9},
            "params.yaml: train.optimizer.adam_beta1 (0.999) is above adam_beta2 (0.9); swap them: "
            "the second moment is the slower average",
        ),
        (
            {"model__frozen": ["embedding.*", 3]},
            "params.yaml: 'model.frozen[1]' is 3: expected `str`, got `int`",
        ),
        (
            {"train__max_steps": 0},
            "params.yaml: train.max_steps is 0; give a count >= 1, or -1 to use num_train_epochs",
        ),
        (
            {"train__warmup_steps": 30},
            "params.yaml: train.warmup_steps (30) is longer than the training "
            "(train.max_steps is 20); lower it",
        ),
        (
            {"train__num_processes": 0},
            "params.yaml: 'train.num_processes' is 0: expected `int` >= 1",
        ),
        (
            {"train__distributed": "fsdp"},
            "params.yaml: 'train.distributed' is 'fsdp': use ddp or fsdp2",
        ),
        (
            {"train__num_processes": 2, "train__step": {"_target_": "stages.plugins.mine.step"}},
            "params.yaml: train.num_processes is 2, but a step of your own (train.step) runs in "
            "one process only: it would not add up its tokens over all of them",
        ),
        (
            {
                "train__num_processes": 2,
                "train__gradient_checkpointing": True,
                "train__gradient_checkpointing_kwargs__use_reentrant": True,
            },
            "params.yaml: train.num_processes is 2, which cannot go with reentrant checkpoints; "
            "set train.gradient_checkpointing_kwargs.use_reentrant to false",
        ),
        (
            {
                "train__num_processes": 2,
                "train__distributed": "fsdp2",
                "run__precision": "fp16",
            },
            "params.yaml: 'run.precision' is fp16, whose scaler does not see the overflow of other "
            "ranks' shards (train.distributed is fsdp2); use bf16, or ddp",
        ),
        (
            {"gates__gradient__min_norm": 6.0, "gates__gradient__max_norm": 5.0},
            "params.yaml: gates.gradient.min_norm (6.0) must be below "
            "gates.gradient.max_norm (5.0)",
        ),
        (
            {"model__d_model": 18, "model__n_heads": 6},
            "params.yaml: model.d_model (18) must be a multiple of twice model.n_heads (6): "
            "each head rotates pairs of features",
        ),
        (
            {"labels__template_date": "2026-02-30"},
            "params.yaml: labels.template_date (2026-02-30): day is out of range for month",
        ),
        (
            {"run__seed": 2**32},
            "params.yaml: 'run.seed' is 4294967296: expected `int` <= 4294967295",
        ),
        (
            {"data__path": "???"},
            "params.yaml: 'data.path' is ???, which means that a value is missing",
        ),
        (
            {"data__path": "${oc.env:HOME}/rows"},
            "params.yaml: 'data.path' holds the interpolation '${oc.env:HOME}/rows', which nothing "
            "resolves here; put it into conf/ and run `holdshort compose`, or write the value",
        ),
        ({"train": 3}, "params.yaml: 'train' must be a group of keys; it is 3"),
        ({"gates__data": None}, "params.yaml: 'gates.data' must be a group of keys; it is None"),
        ({"model": None}, "params.yaml: 'model' must be a group of keys; it is None"),
    ],
)
def test_a_wrong_value_ends_in_this_sentence(values: dict[str, Any], sentence: str) -> None:
    tree = params_tree(**{key: value for key, value in values.items() if "__" in key})
    tree |= {key: value for key, value in values.items() if "__" not in key}
    assert refusal(tree) == sentence


def test_missing_keys_are_all_named() -> None:
    tree = params_tree()
    del tree["train"]["save_steps"], tree["train"]["max_steps"]
    assert refusal(tree) == (
        "params.yaml: no value for 'train.max_steps', 'train.save_steps'; add it, or run "
        "`holdshort compose` to write the file anew from conf/"
    )


def test_a_missing_group_is_named() -> None:
    tree = params_tree()
    del tree["labels"]
    assert refusal(tree) == (
        "params.yaml: the group 'labels' is missing; "
        "run `holdshort compose` to write the file anew from conf/"
    )


def test_an_unknown_model_is_told_from_the_known_ones() -> None:
    assert refusal(params_tree(model__name="tiny_gtp")) == (
        f"params.yaml: 'model.name' is 'tiny_gtp'; known models are {', '.join(MODELS)} "
        "(your own: a `_target_`); did you mean 'tiny_gpt'?"
    )


@pytest.mark.parametrize("key", [key for key, _ in leaves()])
def test_a_value_of_an_impossible_type_is_refused_by_its_key(key: str) -> None:
    message = refusal(params_tree(**{key.replace(".", "__"): [[]]}))
    assert message.startswith("params.yaml: ")
    assert key in message
    assert "\n" not in message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_no_number_may_be_infinite_or_nan(value: float) -> None:
    accepted = []
    for key in [key for key, before in leaves() if isinstance(before, float)]:
        try:
            make_params(**{key.replace(".", "__"): value})
        except UserError as error:
            assert key in str(error)
        else:
            accepted.append(key)
    assert accepted == []


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("data.on_bad_row", ("stop", "report")),
        ("data.truncation", ("drop", "keep_start")),
        ("labels.turns", ("all", "last")),
        ("train.lr_scheduler_type", ("cosine", "linear", "constant_with_warmup")),
        ("train.optim", ("adamw_torch", "adamw_bnb_8bit", "paged_adamw_8bit")),
        ("run.device", ("cpu", "cuda")),
        ("run.precision", ("fp32", "bf16", "fp16")),
    ],
)
def test_a_choice_that_does_not_exist_is_answered_with_those_that_do(
    key: str, allowed: tuple[str, ...]
) -> None:
    message = refusal(params_tree(**{key.replace(".", "__"): "sideways"}))
    assert message == f"params.yaml: '{key}' is 'sideways': use {' or '.join(allowed)}"


@pytest.mark.parametrize("key", [1, None, True], ids=str)
def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    assert refusal({**params_tree(), key: 1}) == (
        f"params.yaml: the key {key} at the top must be text; quote it"
    )


@pytest.mark.parametrize("name", [["tiny_gpt"], {"a": 1}], ids=str)
def test_a_model_name_that_is_no_text_is_refused(name: Any) -> None:
    assert "'model.name'" in refusal(params_tree(model__name=name))


def test_a_wrong_target_is_called_by_the_key_that_the_user_wrote() -> None:
    message = refusal({**params_tree(), "model": {**CUSTOM, "_target_": 5}})
    assert message == "params.yaml: 'model._target_' is 5: it must name a callable"


@pytest.mark.parametrize("group", ["model", "train.loss"])
def test_an_argument_that_is_no_name_is_refused_by_its_group(group: str) -> None:
    tree = params_tree(train__loss={"_target_": "stages.plugins.mine.loss", 3: 1})
    if group == "model":
        tree = {**params_tree(), "model": {**CUSTOM, 3: 1}}
    assert group in refusal(tree)


def test_an_argument_that_no_record_can_hold_is_refused() -> None:
    hook = {"_target_": "stages.plugins.mine.loss", "since": datetime.date(2026, 1, 1)}
    assert "train.loss.since" in refusal(params_tree(train__loss=hook))


def test_rows_longer_than_the_model_takes_are_refused() -> None:
    assert refusal(params_tree(data__max_length=65, model__max_length=64)) == (
        "params.yaml: 'data.max_length' is 65, but the model takes 64 tokens (model.max_length)"
    )
    assert make_params(data__max_length=64, model__max_length=64).data.max_length == 64


def test_a_digest_with_a_line_end_is_no_digest() -> None:
    assert "data.sha256" in refusal(params_tree(data__sha256="a" * 64 + "\n"))


def test_yes_stays_text_and_is_no_bool(tmp_path: Path) -> None:
    assert read(tmp_path, "a: yes\nb: off\nc: true\n") == {"a": "yes", "b": "off", "c": True}
    assert refusal(params_tree(model__tie_word_embeddings="yes")) == (
        "params.yaml: 'model.tie_word_embeddings' is 'yes': expected `bool`, got `str`"
    )


def test_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = "rate: 1e-3\nsteps: 010\nclock: 1:30\noctal: 0o17\n"
    assert read(tmp_path, text) == {"rate": 0.001, "steps": 10, "clock": "1:30", "octal": 15}


def test_an_empty_file_holds_no_mapping(elsewhere: Path) -> None:
    assert unreadable(b"") == ("params.yaml must hold a mapping of keys to values; it holds None")


def test_a_list_is_no_mapping(elsewhere: Path) -> None:
    assert unreadable(b"- a\n- b\n") == (
        "params.yaml must hold a mapping of keys to values; it holds ['a', 'b']"
    )


def test_an_alias_inside_of_what_it_names_is_refused(elsewhere: Path) -> None:
    assert unreadable(b"run: &run\n  seed: *run\n") == (
        "params.yaml: an alias stands inside of what it names, or aliases multiply what they name "
        "to more than 100000 values; write the values out"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            b"run:\n  seed: 1\n  device: [cpu\n",
            "params.yaml:4: not valid YAML (expected ',' or ']', but got '<stream end>')",
        ),
        (
            b"run:\n\tseed: 1\n",
            "params.yaml:2: not valid YAML (found character '\\t' that cannot start any token)",
        ),
        (
            b"a: 1\nb: !!python/name:os.system\n",
            "params.yaml:2: not valid YAML (could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/name:os.system')",
        ),
    ],
)
def test_broken_yaml_is_refused_with_its_line(elsewhere: Path, text: bytes, sentence: str) -> None:
    assert unreadable(text) == sentence


def test_a_key_given_twice_is_refused_with_its_line(elsewhere: Path) -> None:
    message = unreadable(b"run: 1\ndata: 2\nrun: 3\n")
    assert message.startswith('params.yaml:3: not valid YAML (found duplicate key "run"')
    assert "\n" not in message


def test_a_file_that_is_not_utf_8_is_refused(elsewhere: Path) -> None:
    message = unreadable(b"path: caf\xe9\n")
    assert message.startswith("params.yaml: not readable as UTF-8 YAML (")
    assert "\n" not in message


def test_a_missing_file_says_how_to_write_it(elsewhere: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_yaml(Path("params.yaml"))
    assert str(caught.value) == (
        "params.yaml does not exist; run in the root of the project; `holdshort compose` writes it"
    )


def test_what_compose_does_not_write_it_is_not_advised_for(elsewhere: Path) -> None:
    with pytest.raises(UserError, match=r"^dvc\.yaml does not exist") as caught:
        stage_deps("hash_data")
    assert "compose" not in str(caught.value)


def test_flatten_keeps_empty_groups_and_lists_as_leaves() -> None:
    tree = {"a": {"b": 1, "c": {}}, "d": [1, {"e": 2}]}
    assert dict(flatten(tree)) == {"a.b": 1, "a.c": {}, "d": [1, {"e": 2}]}


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("train.lr", "; did you mean 'train.lr_x'?"),
        ("model.seed", "; did you mean 'run.seed'?"),
        ("zzz", ""),
    ],
)
def test_the_nearest_key_is_suggested(key: str, suggestion: str) -> None:
    assert nearest(key, ["run.seed", "train.lr_x"]) == suggestion


def test_a_stage_reads_what_it_declares(project: Path) -> None:
    params = load_params("overfit_gate")
    assert params.gates.overfit.num_samples == 8
    assert params.train.optimizer.adam_epsilon == 1e-08
    assert params.model.name == "tiny_gpt"


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        ("hash_data", "train"),
        ("hash_data", "gates.mask"),
        ("hash_data", "data.max_length"),
        ("overfit_gate", "train.learning_rate"),
        ("overfit_gate", "gates.gradient"),
        ("full_train", "gates"),
        ("full_train", "labels"),
    ],
)
def test_a_key_that_a_stage_does_not_declare_cannot_be_read(
    project: Path, stage: str, key: str
) -> None:
    value: Any = load_params(stage)
    *groups, leaf = key.split(".")
    for name in groups:
        value = getattr(value, name)
    with pytest.raises(UndeclaredParam) as caught:
        getattr(value, leaf)
    expected = f"stage '{stage}' reads '{key}', which dvc.yaml does not declare; add it"
    assert str(caught.value).startswith(expected)


def test_a_key_that_only_begins_like_a_declared_one_cannot_be_read(project: Path) -> None:
    stages = "stages:\n  probe:\n    cmd: 'true'\n    params: [train.max_s, train.loss]\n"
    Path("dvc.yaml").write_text(stages, encoding="utf-8")
    params = load_params("probe")
    assert params.train.loss is None
    with pytest.raises(UndeclaredParam):
        params.train.max_steps  # noqa: B018


def test_a_dependency_on_the_file_declares_every_group(project: Path) -> None:
    assert declared_keys("manifest") == tuple(field.name for field in fields(Params))


def test_declared_values_are_flat_and_complete(project: Path) -> None:
    values = declared_values("hash_data")
    assert values["data.path"] == "data/incidents.jsonl"
    assert values["gates.data.min_train_rows"] == 16
    assert [key for key in values if not key.startswith(("data.", "gates.data."))] == []
    assert "data.max_length" not in values


@pytest.mark.parametrize(
    ("key", "stages"),
    [
        ("train.learning_rate", ["gradient_probe", "manifest", "full_train"]),
        ("gates.overfit.max_loss", ["overfit_gate", "manifest"]),
        ("data.path", ["hash_data", "manifest"]),
        ("labels.turns", ["mask_report", "manifest"]),
        ("train.save_steps", ["gradient_probe", "manifest", "full_train"]),
    ],
)
def test_a_changed_value_concerns_these_stages_alone(
    project: Path, key: str, stages: list[str]
) -> None:
    every = read_yaml(Path("dvc.yaml"))["stages"]
    assert [stage for stage in every if key in declared_values(stage)] == stages


def test_every_declared_key_exists(project: Path) -> None:
    known = set(dict(flatten(read_yaml(Path("params.yaml")))))
    for stage in read_yaml(Path("dvc.yaml"))["stages"]:
        assert set(declared_values(stage)) <= known


def test_packed_rows_with_flash_attention_come_one_at_a_time() -> None:
    model = hub_tree("0" * 40, attn_implementation="flash_attention_2")
    values = {"model": model, "train__packing": True}
    sentence = (
        "params.yaml: 'train.packing' is true, but flash_attention_2 tells packed documents apart "
        "in batches of one row only; set train.per_device_train_batch_size to 1 and "
        "train.max_tokens_per_batch to null, or model.attn_implementation to sdpa"
    )
    one = {**values, "train__per_device_train_batch_size": 1}
    assert refusal(params_tree(**values, train__per_device_train_batch_size=2)) == sentence
    assert refusal(params_tree(**one, train__max_tokens_per_batch=64)) == sentence
    make_params(**one)
    values["model"] = hub_tree("0" * 40, attn_implementation="sdpa")
    make_params(**values, train__per_device_train_batch_size=2)


def test_a_micro_batch_holds_any_row() -> None:
    assert refusal(params_tree(train__max_tokens_per_batch=63)) == (
        "params.yaml: 'train.max_tokens_per_batch' is 63, but a row may have 64 tokens "
        "(data.max_length); raise it, or lower data.max_length"
    )
    make_params(train__max_tokens_per_batch=64)


def test_moments_in_8_bits_need_a_gpu_and_whole_state() -> None:
    assert refusal(params_tree(train__optim="adamw_bnb_8bit")) == (
        "params.yaml: 'train.optim' is adamw_bnb_8bit, which needs a GPU; compose with run=cuda, "
        "or use adamw_torch"
    )
    sharded = {"train__num_processes": 2, "train__distributed": "fsdp2", "run__device": "cuda"}
    assert refusal(params_tree(train__optim="paged_adamw_8bit", **sharded)) == (
        "params.yaml: train.optim is paged_adamw_8bit, whose state cannot be sharded "
        "(train.distributed is fsdp2); use adamw_torch, or ddp"
    )
    make_params(train__optim="paged_adamw_8bit", run__device="cuda")
