"""Read params.yaml, refuse what is wrong in one sentence, and give a stage only what it declares.

A stage may read the keys that dvc.yaml lists under its `params:`, for DVC re-runs it on these
alone. Reading another key raises `UndeclaredParam`: a mistake in the code, found by the first run.
"""

import copy
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from .errors import UserError
from .schema import CustomModel, HubModel, Model, Params, TinyGPTModel, TinyLoRAModel

PARAMS_FILE = Path("params.yaml")
PIPELINE_FILE = Path("dvc.yaml")
MOST_CHARACTERS, MOST_BRACKETS, MOST_VALUES = 1_000_000, 1000, 100_000
"""Of a file of settings. A parser of YAML takes minutes over thousands of brackets in a line."""
MODELS: dict[str, type[Model]] = {
    "tiny_gpt": TinyGPTModel,
    "tiny_lora": TinyLoRAModel,
    "hub": HubModel,
}
CUSTOM_MODEL_KEYS = ("name", "tokenizer", "frozen", "_target_")


class UndeclaredParam(UserError):
    """A stage read a key that its `params:` in dvc.yaml do not list: the file was changed."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML 1.2 mapping, the dialect in which DVC itself reads params.yaml and dvc.yaml."""
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > MOST_CHARACTERS or max(map(text.count, "[{")) > MOST_BRACKETS:
            raise UserError(
                f"{path} is no file of settings: it has more than {MOST_CHARACTERS} characters or "
                f"{MOST_BRACKETS} brackets"
            )
        content = copy.deepcopy(_parse_yaml(text))
    except FileNotFoundError:
        remedy = "; `holdshort compose` writes it" if path.name == PARAMS_FILE.name else ""
        raise UserError(f"{path} does not exist; run in the root of the project{remedy}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not valid YAML ({error.problem or error.context})") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as UTF-8 YAML ({error})") from None
    except (OSError, UserError):
        raise
    except Exception as error:  # of a parser that is given numbers or brackets without end
        raise UserError(f"{path}: not readable as YAML ({error})") from None
    _refuse_endless(content, path)
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a mapping of keys to values; it holds {content!r}")
    return content


def _refuse_endless(content: Any, path: Path) -> None:
    """Refuse aliases by which a few lines hold more values than anybody can write down."""
    waiting, count = [content], 0
    while waiting:
        value, count = waiting.pop(), count + 1
        if count > MOST_VALUES:
            raise UserError(
                f"{path}: an alias stands inside of what it names, or aliases multiply what they "
                f"name to more than {MOST_VALUES} values; write the values out"
            )
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


@lru_cache
def _parse_yaml(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("train.learning_rate", 0.001) for every leaf of nested mappings."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def nearest(key: str, known: Iterable[str]) -> str:
    """ "; did you mean 'train.learning_rate'?" or an empty string when nothing is near."""
    known = list(known)
    matches = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if not matches:  # a known key in the wrong group
        leaf = key.rpartition(".")[2]
        matches = [name for name in known if name.rpartition(".")[2] == leaf][:1]
    return f"; did you mean '{matches[0]}'?" if matches else ""


def schema_keys(schema: type, prefix: str = "") -> Iterator[str]:
    """Every key below a dataclass of the schema, dotted, groups included."""
    for field in fields(schema):
        yield f"{prefix}{field.name}"
        if isinstance(field.type, type) and is_dataclass(field.type):
            yield from schema_keys(field.type, f"{prefix}{field.name}.")


def _check_keys(tree: Mapping[str, Any], schema: type, prefix: str, known: list[str]) -> None:
    declared = {field.name: field.type for field in fields(schema)}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if key not in declared:
            raise UserError(f"{PARAMS_FILE}: unknown key '{path}'{nearest(path, known)}")
        group = declared[key]
        if isinstance(group, type) and is_dataclass(group):
            if not isinstance(value, Mapping):
                raise UserError(f"{PARAMS_FILE}: '{path}' must be a group of keys; it is {value!r}")
            _check_keys(value, group, f"{path}.", known)
    if missing := [name for name in declared if name not in tree]:
        names = ", ".join(f"'{prefix}{name}'" for name in missing)
        raise UserError(
            f"{PARAMS_FILE}: no value for {names}; add it, or run `holdshort compose` to write "
            "the file anew from conf/"
        )


def _refuse_strangers(value: Any, path: str = "") -> None:
    """Refuse what params.yaml may not hold anywhere: no values, but what stands for one."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            if not isinstance(key, str):
                where = f"in '{path}'" if path else "at the top"
                raise UserError(f"{PARAMS_FILE}: the key {key!r} {where} must be text; quote it")
            _refuse_strangers(below, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            _refuse_strangers(one, f"{path}[{index}]")
    elif value == "???":
        raise UserError(f"{PARAMS_FILE}: '{path}' is ???, which means that a value is missing")
    elif isinstance(value, str) and "${" in value:
        raise UserError(
            f"{PARAMS_FILE}: '{path}' holds the interpolation {value!r}, which nothing resolves "
            "here; put it into conf/ and run `holdshort compose`, or write the value"
        )
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{PARAMS_FILE}: '{path}' is {value}; it must be a finite number")
    elif not isinstance(value, str | int | float | None):
        raise UserError(
            f"{PARAMS_FILE}: '{path}' is {value!r}, a {type(value).__name__}; "
            "quote it to make it text"
        )


def _convert(tree: Mapping[str, Any], schema: type, prefix: str) -> Any:
    try:
        return msgspec.convert(tree, schema)
    except msgspec.ValidationError as error:
        reason, _, location = str(error).partition(" - at `$")
        parts = re.findall(r"[^.\[\]]+", location.rstrip("`"))
        value: Any = tree
        for part in parts:
            value = value[int(part)] if isinstance(value, list) else value[part]
        if not parts or isinstance(value, Mapping):  # a rule between several keys
            raise UserError(f"{PARAMS_FILE}: {reason}") from None
        path = prefix + location.rstrip("`").lstrip(".")
        allowed = _allowed(reason, schema, parts)
        raise UserError(f"{PARAMS_FILE}: '{path}' is {value!r}: {allowed}") from None


def _allowed(reason: str, schema: Any, parts: list[str]) -> str:
    """msgspec's reason, or the choices where it only says that there are some."""
    for part in parts:
        schema = get_type_hints(schema).get(part, schema) if is_dataclass(schema) else schema
    if choices := [choice for choice in get_args(schema) if isinstance(choice, str)]:
        return f"use {' or '.join(choices)}"
    return f"{reason[0].lower()}{reason[1:]}"


def _parse_model(tree: Any) -> Model:
    if not isinstance(tree, Mapping):
        raise UserError(f"{PARAMS_FILE}: 'model' must be a group of keys; it is {tree!r}")
    if "_target_" in tree:
        return _parse_custom_model(tree)
    name = tree.get("name")
    if not isinstance(name, str) or name not in MODELS:
        raise UserError(
            f"{PARAMS_FILE}: 'model.name' is {name!r}; known models are {', '.join(MODELS)} "
            f"(your own: a `_target_`){nearest(str(name), MODELS)}"
        )
    schema = MODELS[name]
    _check_keys(tree, schema, "model.", list(schema_keys(schema, "model.")))
    return cast(Model, _convert(tree, schema, "model."))


def _parse_custom_model(tree: Mapping[str, Any]) -> CustomModel:
    if not isinstance(tree["_target_"], str) or not tree["_target_"]:
        raise UserError(
            f"{PARAMS_FILE}: 'model._target_' is {tree['_target_']!r}: it must name a callable"
        )
    shared = {key: value for key, value in tree.items() if key in CUSTOM_MODEL_KEYS[:3]}
    arguments = {key: value for key, value in tree.items() if key not in CUSTOM_MODEL_KEYS}
    custom = {**shared, "target": tree["_target_"], "arguments": arguments}
    _check_keys(custom, CustomModel, "model.", list(schema_keys(CustomModel, "model.")))
    return cast(CustomModel, _convert(custom, CustomModel, "model."))


def parse_params(tree: Mapping[str, Any]) -> Params:
    """Validate the whole of params.yaml.

    Raises UserError naming the key, its value, what is allowed and the nearest known key.
    """
    _refuse_strangers(tree)
    groups = {field.name: field.type for field in fields(Params)}
    known = [*schema_keys(Params), *schema_keys(TinyGPTModel, "model.")]
    for name in tree:
        if name not in groups:
            raise UserError(f"{PARAMS_FILE}: unknown key '{name}'{nearest(name, known)}")
    if missing := [name for name in groups if name not in tree]:
        raise UserError(
            f"{PARAMS_FILE}: the group '{missing[0]}' is missing; "
            "run `holdshort compose` to write the file anew from conf/"
        )
    parsed: dict[str, Any] = {"model": _parse_model(tree["model"])}
    for name, schema in groups.items():
        if name == "model":
            continue
        if not isinstance(tree[name], Mapping):
            raise UserError(
                f"{PARAMS_FILE}: '{name}' must be a group of keys; it is {tree[name]!r}"
            )
        schema = cast(type, schema)
        _check_keys(tree[name], schema, f"{name}.", known)
        parsed[name] = _convert(tree[name], schema, f"{name}.")
    params = Params(**parsed)
    sharded = params.train.num_processes > 1 and params.train.distributed == "fsdp2"
    if sharded and params.run.precision == "fp16":
        raise UserError(
            f"{PARAMS_FILE}: 'run.precision' is fp16, whose scaler does not see the overflow of "
            "other ranks' shards (train.distributed is fsdp2); use bf16, or ddp"
        )
    if params.train.optim != "adamw_torch" and params.run.device != "cuda":
        raise UserError(
            f"{PARAMS_FILE}: 'train.optim' is {params.train.optim}, which needs a GPU; compose "
            "with run=cuda, or use adamw_torch"
        )
    _refuse_batches(params)
    limit = getattr(params.model, "max_length", None)
    if limit is not None and params.data.max_length > limit:
        raise UserError(
            f"{PARAMS_FILE}: 'data.max_length' is {params.data.max_length}, but the model takes "
            f"{limit} tokens (model.max_length)"
        )
    return params


def _refuse_batches(params: Params) -> None:
    """Refuse batches that hold no row, or whose documents the model cannot keep apart."""
    train, attention = params.train, getattr(params.model, "attn_implementation", None)
    budget, longest = train.max_tokens_per_batch, params.data.max_length
    if budget and budget < longest:
        raise UserError(
            f"{PARAMS_FILE}: 'train.max_tokens_per_batch' is {budget}, but a row may have "
            f"{longest} tokens (data.max_length); raise it, or lower data.max_length"
        )
    several = train.per_device_train_batch_size > 1 or budget
    if train.packing and attention == "flash_attention_2" and several:
        raise UserError(
            f"{PARAMS_FILE}: 'train.packing' is true, but flash_attention_2 tells packed documents "
            "apart in batches of one row only; set train.per_device_train_batch_size to 1 and "
            "train.max_tokens_per_batch to null, or model.attn_implementation to sdpa"
        )


class Declared:
    """A view of one group of params that raises on a key outside `keys` (dotted paths)."""

    def __init__(self, value: Any, path: str, keys: tuple[str, ...], stage: str) -> None:
        self._value, self._path, self._keys, self._stage = value, path, keys, stage

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}.{name}".lstrip(".")
        if any(path == key or path.startswith(f"{key}.") for key in self._keys):
            return getattr(self._value, name)
        if any(key.startswith(f"{path}.") for key in self._keys):
            return Declared(getattr(self._value, name), path, self._keys, self._stage)
        raise UndeclaredParam(
            f"stage '{self._stage}' reads '{path}', which {PIPELINE_FILE} does not declare; add it "
            f"to the params of the stage, or `git checkout -- {PIPELINE_FILE}`"
        )


def stage_deps(stage: str) -> tuple[str, ...]:
    """The `deps:` of `stage` in dvc.yaml."""
    return _names(stage, "deps")


def is_watched(location: str, stage: str) -> bool:
    """Does DVC see `location` change, because it lies at or below a dep of `stage`?"""
    path = Path(location)
    return ".." not in path.parts and any(path.is_relative_to(dep) for dep in stage_deps(stage))


def _pipeline_stage(stage: str) -> dict[str, Any]:
    stages = read_yaml(PIPELINE_FILE).get("stages")
    found = stages.get(stage) if isinstance(stages, dict) else None
    if not isinstance(found, dict):
        raise _other_pipeline(f"has no stage '{stage}'")
    return found


def _names(stage: str, key: str) -> tuple[str, ...]:
    """The names that `stage` lists under `key`."""
    names = _pipeline_stage(stage).get(key) or ()
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        raise _other_pipeline(f"has {key} of '{stage}' that are no list of names")
    return tuple(names)


def _other_pipeline(what: str) -> UserError:
    remedy = f"bring it back with `git checkout -- {PIPELINE_FILE}`"
    return UserError(f"{PIPELINE_FILE} {what}; {remedy}")


def declared_keys(stage: str) -> tuple[str, ...]:
    """The params keys that dvc.yaml lists for `stage`; a dependency on the file declares all."""
    if PARAMS_FILE.name in stage_deps(stage):
        return tuple(field.name for field in fields(Params))
    return _names(stage, "params")


def declared_values(stage: str) -> dict[str, Any]:
    """Every value that `stage` declares, by its dotted key, as params.yaml has it."""
    chosen = {}
    tree = read_yaml(PARAMS_FILE)
    for key in declared_keys(stage):
        value: Any = tree
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise UserError(f"{PIPELINE_FILE}: '{stage}' lists the unknown key '{key}'")
            value = value[part]
        chosen[key] = value
    return dict(flatten(chosen))


def load_params(stage: str) -> Params:
    """Validate params.yaml and return the part that `stage` declares in dvc.yaml."""
    params = parse_params(read_yaml(PARAMS_FILE))
    return cast(Params, Declared(params, "", declared_keys(stage), stage))
