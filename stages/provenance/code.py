"""Which code made this? A digest of what a stage's sources do, blind to comments and docstrings.

A stage's sources are the Python files at or below its `deps:` in dvc.yaml; a test walks the imports
of every stage and fails when these do not hold its whole import closure.
"""

import ast
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ..config.errors import UserError
from ..config.load import stage_deps
from .hashing import files_below


@cache
def normalised_source(source: str) -> str:
    """The syntax tree as text, without strings that stand alone: what is left of the wording."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for body in ("body", "orelse", "finalbody"):
            statements = getattr(node, body, None)
            if isinstance(statements, list):
                setattr(node, body, [one for one in statements if not _is_text(one)])
    return ast.dump(tree)


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def stage_sources(stage: str) -> list[Path]:
    """The Python files at or below the `deps:` of `stage`."""
    below = (files_below(Path(dep)) for dep in stage_deps(stage) if dep.startswith("stages"))
    return sorted({file for files in below for file in files if file.suffix == ".py"})


def code_sha256(stage: str) -> str:
    """Digest of the code of `stage`: paths and normalised sources of all that it can import.

    Raises UserError for a file that is no Python.
    """
    return sources_sha256({path.as_posix(): path for path in stage_sources(stage)})


def sources_sha256(files: Mapping[str, Path]) -> str:
    """Digest of the names of Python files and their normalised sources, in the order given."""
    digest = hashlib.sha256()
    for name, path in files.items():
        try:
            normalised = normalised_source(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError) as error:
            line = getattr(error, "lineno", None) or 1
            raise UserError(f"{path}:{line}: not Python that can be read ({error})") from None
        digest.update(f"{name}\0{normalised}\0".encode())
    return digest.hexdigest()
