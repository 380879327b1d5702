"""User code: `model`, `data.collator`, `train.step` and `train.loss` take a `_target_`.

The code lives in stages/plugins/, which dvc.yaml lists as a dependency of every stage that can load
it, or in an installed package that requirements.lock names: elsewhere DVC would not see it change.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from .errors import UserError
from .schema import Hook

PLUGINS = "stages.plugins."
LOCK_FILE = Path("requirements.lock")

Call = TypeVar("Call", bound=Callable[..., Any])


def load_hook(hook: Hook, key: str, default: Call) -> Call:
    """The callable of a params hook with its arguments bound, or `default` where it is null.

    Raises UserError when the target lies where it may not or cannot be imported.
    """
    if hook is None:
        return default
    if not isinstance(hook.get("_target_"), str):
        raise UserError(f"params.yaml: '{key}' needs a '_target_' that names a callable")
    arguments = {name: value for name, value in hook.items() if name != "_target_"}
    target = load_target(hook["_target_"], f"{key}._target_")
    return partial(target, **arguments) if arguments else target  # type: ignore[return-value]


def load_target(target: str, key: str) -> Any:
    """Import the callable `target`. Raises UserError as load_hook does."""
    if not target.startswith(PLUGINS) and not _is_locked(target.partition(".")[0]):
        raise UserError(
            f"params.yaml: '{key}' is {target!r}, which no stage depends on; put the code into "
            f"stages/plugins/ ({PLUGINS}...), or name its package in {LOCK_FILE}"
        )
    return import_callable(target, f"params.yaml: '{key}'")


def import_callable(target: str, key: str) -> Any:
    """The callable `target`, also below the project's root. Raises UserError, which names `key`."""
    from hydra.utils import get_object

    root = str(Path.cwd())
    if root not in sys.path:  # the program `holdshort` starts without it
        sys.path.insert(0, root)
    try:
        found = get_object(target)
    except Exception as error:  # whatever user code raises while it is imported
        cause = error.__cause__ or error
        reason = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
        raise UserError(f"{key} cannot be imported: {reason}") from error
    if not callable(found):
        raise UserError(f"{key} is {target!r}, which is no callable")
    return found


def _is_locked(module: str) -> bool:
    """Whether an installed package that requirements.lock pins provides the top-level `module`."""
    if not LOCK_FILE.is_file():
        return False
    pins = re.findall(r"^([A-Za-z0-9._-]+)==", LOCK_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    locked = {_canonical(name) for name in pins}
    providers = metadata.packages_distributions().get(module, [])
    return any(_canonical(name) in locked for name in providers)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
