"""What shall be compared? The arms of conf/experiment/compare/<name>.yaml.

    question: Which remedy takes a loss spike away?
    base: {overrides: [train.max_steps=60]}  # of every arm, as `holdshort compose` takes them
    arms:  # the first is what the others are held against
      no_warmup: {overrides: [train.warmup_ratio=0]}
      warmup: {overrides: [train.warmup_ratio=0.05]}
      not_cleared: {plant: [zero_grad_missing]}  # faults of `holdshort selftest`, by their names
    seeds: [1, 2, 3]  # each arm under each of them; without it, under run.seed

Arms of scripts that know nothing of params name a function instead: `{script: package.function}`,
which returns the arguments of `sanity_check`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compose import composed_params
from ..config import Params, UserError, read_yaml
from ..config.load import nearest

COMPARISONS = Path("conf/experiment/compare")
KEYS = ("question", "base", "arms", "seeds")
KEYS_OF_ARM = ("overrides", "plant", "script")
MOST_SEEDS = 2**32


@dataclass(frozen=True)
class Arm:
    """One thing to be compared.

    overrides, plant: of conf/ and of the catalogue of faults, those of the base among them;
    changes: what it does not share with the others, in words.
    """

    name: str
    overrides: Sequence[str] = ()
    plant: Sequence[str] = ()
    script: str | None = None
    changes: Sequence[str] = ()


@dataclass(frozen=True)
class Comparison:
    """shared: what every arm has, in words; seeds: none where each arm is trained once."""

    name: str
    question: str
    shared: Sequence[str]
    arms: Sequence[Arm]
    seeds: Sequence[int] = ()

    @property
    def of_scripts(self) -> bool:
        return self.arms[0].script is not None


def path_of(name: str) -> Path:
    return COMPARISONS / f"{name}.yaml"


def params_of(arm: Arm, path: Path) -> Params:
    """What conf/ composes for an arm. Raises UserError, which names the arm and its file."""
    try:
        return composed_params(arm.overrides)
    except UserError as error:
        raise UserError(f"{path}: arm '{arm.name}': {error}") from None


def read_comparison(name: str) -> Comparison:
    """The comparison `name`. Raises UserError for a file that says it wrongly, or for none."""
    path = path_of(name)
    if not path.is_file():
        known = sorted(file.stem for file in COMPARISONS.glob("*.yaml"))
        raise UserError(
            f"there is no {path}; {COMPARISONS}/ has {', '.join(known) or 'nothing'}"
            f"{nearest(name, known)}"
        )
    return parse_comparison(name, read_yaml(path), path)


def parse_comparison(name: str, tree: Mapping[str, Any], path: Path) -> Comparison:
    """Raises UserError naming file, key and value."""
    _refuse_unknown(tree, KEYS, "", path)
    question = tree.get("question")
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"{path}: 'question' is {question!r}; say in a sentence what is asked")
    base = _parse_arm("base", tree.get("base", {}), Arm(""), path)
    declared = tree.get("arms")
    if not isinstance(declared, Mapping) or len(declared) < 2:
        raise UserError(f"{path}: 'arms' must name at least two arms, each with what it changes")
    arms = [_parse_arm(f"arms.{one}", declared[one], base, path) for one in declared]
    if len({arm.script is None for arm in arms}) > 1:
        raise UserError(f"{path}: some arms are scripts and some are not; compare like with like")
    seeds = _seeds(tree.get("seeds", []), path)
    comparison = Comparison(name, question.strip(), base.changes, arms, seeds)
    if comparison.of_scripts and (base.changes or comparison.seeds):
        raise UserError(f"{path}: arms that are scripts take no 'base' and no 'seeds'")
    _refuse_twins(arms, path)
    return comparison


def _parse_arm(key: str, tree: Any, base: Arm, path: Path) -> Arm:
    """What stands below `key`, on top of the base."""
    if not isinstance(tree, Mapping):
        raise UserError(f"{path}: '{key}' is {tree!r}; write {{overrides: [...]}} or {{}}")
    _refuse_unknown(tree, KEYS_OF_ARM, f"{key}.", path)
    overrides = _texts(tree.get("overrides", []), f"{key}.overrides", path)
    plant = _texts(tree.get("plant", []), f"{key}.plant", path)
    script = tree.get("script")
    if script is not None and (not isinstance(script, str) or overrides or plant):
        raise UserError(f"{path}: '{key}' has a script: name a function, and nothing beside it")
    return Arm(
        key.partition(".")[2],
        [*base.overrides, *overrides],
        [*base.plant, *plant],
        script,
        [*overrides, *(f"fault: {one}" for one in plant), *([script] if script else [])],
    )


def _refuse_unknown(tree: Mapping[str, Any], known: Sequence[str], prefix: str, path: Path) -> None:
    for key in tree:
        if key not in known:
            raise UserError(
                f"{path}: unknown key '{prefix}{key}'; known are {', '.join(known)}"
                f"{nearest(str(key), known)}"
            )


def _texts(value: Any, key: str, path: Path) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UserError(f"{path}: '{key}' is {value!r}; write a list, [one, other]")
    return value


def _seeds(value: Any, path: Path) -> list[int]:
    right = isinstance(value, list) and all(type(one) is int for one in value)
    if not right or not all(0 <= one < MOST_SEEDS for one in value):
        raise UserError(f"{path}: 'seeds' is {value!r}; write a list of whole numbers from 0")
    if len(set(value)) < len(value):
        raise UserError(f"{path}: 'seeds' has one twice; it says nothing new the second time")
    if len(value) == 1:
        raise UserError(f"{path}: one seed has no deviation; give at least two, or run.seed=N")
    return list(value)


def _refuse_twins(arms: Sequence[Arm], path: Path) -> None:
    seen: dict[tuple[str, ...], str] = {}
    for arm in arms:
        what = tuple(arm.changes)
        if what in seen:
            raise UserError(f"{path}: arms '{seen[what]}' and '{arm.name}' are the same")
        seen[what] = arm.name
