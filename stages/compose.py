"""What would run? Compose conf/ into params.yaml, exactly as `dvc exp run -S` does.

`dvc repro` never composes, so this is the bridge: `holdshort compose [overrides]` writes the bytes
that DVC's own composition writes (it is DVC's function that runs), prints what changed and refuses
what the schema refuses. `holdshort compose --check` says whether params.yaml and conf/ agree.
"""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dvc.utils.hydra import compose_and_dump
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from .config import Params, UserError, parse_params, read_yaml
from .config.load import PARAMS_FILE, flatten, nearest

CONFIG_DIR = Path("conf")
CONFIG_NAME = "config"
ABSENT = "(absent)"

Change = tuple[str, Any, Any]


def compose(overrides: Sequence[str] = ()) -> str:
    """The text of params.yaml as composed from conf/ with Hydra `overrides`.

    Raises UserError for an unknown key or group, a malformed override, or a value that stays `???`.
    """
    if not (CONFIG_DIR / f"{CONFIG_NAME}.yaml").is_file():
        raise UserError(
            f"{CONFIG_DIR / CONFIG_NAME}.yaml does not exist; run in the root of the project"
        )
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "params.yaml"
        try:
            compose_and_dump(
                output,
                config_dir=str(CONFIG_DIR.resolve()),
                config_module=None,
                config_name=CONFIG_NAME,
                plugins_path=str(Path.cwd()),
                overrides=list(overrides),
            )
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(_explain(str(error))) from None
        except OSError:
            raise
        except Exception as error:  # of parsers, over what nobody meant as an override
            reason = str(error) or type(error).__name__
            raise UserError(f"conf/ or the overrides cannot be read: {reason}") from None
        text = output.read_text(encoding="utf-8")
        parse_params(read_yaml(output))
    return text


def _explain(message: str) -> str:
    """Turn Hydra's report of several lines into one sentence with the nearest known key."""
    first = message.strip().splitlines()[0].rstrip(".")
    if key := re.search(r"Could not override '([^']+)'", message):
        known = (
            [name for name, _ in flatten(read_yaml(PARAMS_FILE))] if PARAMS_FILE.exists() else []
        )
        groups = [folder.name for folder in CONFIG_DIR.iterdir() if folder.is_dir()]
        return f"conf/ has no key or group '{key[1]}'{nearest(key[1], [*known, *groups])}"
    if option := re.search(r"Could not find '([^']+)/([^']+)'", message):
        choices = sorted(path.stem for path in (CONFIG_DIR / option[1]).glob("*.yaml"))
        return (
            f"conf/{option[1]}/ has no '{option[2]}'; it has {', '.join(choices) or 'nothing'}"
            f"{nearest(option[2], choices)}"
        )
    return f"the overrides cannot be composed: {first}"


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """(key, old value, new value) of every leaf in which two trees of params differ."""
    before, after = dict(flatten(old)), dict(flatten(new))
    return [
        (key, before.get(key, ABSENT), after.get(key, ABSENT))
        for key in sorted({*before, *after})
        if before.get(key, ABSENT) != after.get(key, ABSENT)
    ]


def composed_params(overrides: Sequence[str]) -> Params:
    """What conf/ composes with `overrides`, validated; params.yaml stays as it is."""
    with tempfile.TemporaryDirectory() as scratch:
        composed = Path(scratch) / "params.yaml"
        composed.write_text(compose(overrides), encoding="utf-8")
        return parse_params(read_yaml(composed))


def drift(overrides: Sequence[str] = ()) -> list[Change]:
    """(key, value in conf/, value in params.yaml) of every key edited by hand or overridden."""
    with tempfile.TemporaryDirectory() as scratch:
        composed = Path(scratch) / "params.yaml"
        composed.write_text(compose(overrides), encoding="utf-8")
        return changes(read_yaml(composed), read_yaml(PARAMS_FILE))


def write_params(overrides: Sequence[str]) -> list[Change]:
    """Compose, replace params.yaml in one step, and return what changed in it."""
    try:
        old = read_yaml(PARAMS_FILE) if PARAMS_FILE.exists() else {}
    except UserError:  # damaged: it is about to be written anew
        old = {}
    staged = PARAMS_FILE.with_suffix(".yaml.new")
    staged.write_text(compose(overrides), encoding="utf-8")
    staged.replace(PARAMS_FILE)
    return changes(old, read_yaml(PARAMS_FILE))
