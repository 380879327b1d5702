"""Small JSON files that stages leave for each other and for DVC, written in one step."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..config.errors import UserError, reading

SEAL = "record_sha256"


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON in one step: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    staged = path.with_name(f"{path.name}.new")
    staged.write_text(f"{text}\n", encoding="utf-8")
    staged.replace(path)


def digest_of(content: Any) -> str:
    """sha256 of `content` as canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a digest of itself, by which a later change of any of its bytes shows."""
    return {**content, SEAL: digest_of(content)}


def is_sealed(record: Mapping[str, Any]) -> bool:
    """Is the record what `sealed` made?"""
    content = {key: value for key, value in record.items() if key != SEAL}
    return record.get(SEAL) == digest_of(content)


def finite(value: Any) -> Any:
    """The value itself, but the text of a number that is not finite: JSON has no word for it."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path, remedy: str) -> Any:
    """Raises UserError, which ends with `remedy`, when the file is missing or is not JSON."""
    try:
        with reading(path, "JSON", remedy):
            return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {remedy}") from None


def metrics_path(stage: str) -> Path:
    return Path("metrics") / f"{stage}.json"


def write_metrics(stage: str, numbers: Mapping[str, Any]) -> None:
    """Write metrics/<stage>.json under the stage's name, so that DVC's columns are unique.

    A number that is not finite becomes text.
    """
    write_json(
        metrics_path(stage), {stage: {name: finite(value) for name, value in numbers.items()}}
    )


class Numbers(dict[str, Any]):
    """The numbers of metrics/<stage>.json; asking for one that is not there raises UserError."""

    def __init__(self, stage: str, numbers: Mapping[str, Any]) -> None:
        super().__init__(numbers)
        self._stage = stage

    def __missing__(self, name: str) -> Any:
        raise self._damaged(f"has no {name!r}")

    def count(self, name: str) -> int:
        """Raises UserError for what is no whole number >= 0."""
        value = self[name]
        if not isinstance(value, int) or value < 0:
            raise self._damaged(f"has {name!r} as {value!r}, which is no count")
        return value

    def _damaged(self, what: str) -> UserError:
        path = metrics_path(self._stage)
        return UserError(f"{path} {what}; run `dvc repro -f -s {self._stage}`")


def read_metrics(stage: str) -> Numbers:
    """The numbers of metrics/<stage>.json. Raises UserError when they are missing."""
    path = metrics_path(stage)
    content = read_json(path, f"run `dvc repro {stage}`")
    numbers = content.get(stage) if isinstance(content, dict) else None
    if not isinstance(numbers, dict):
        raise UserError(
            f"{path} does not hold the metrics of '{stage}'; run `dvc repro -f -s {stage}`"
        )
    return Numbers(stage, numbers)


def format_value(value: Any) -> str:
    """Four significant digits for a float, the plain text of anything else."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
