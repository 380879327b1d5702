"""What is kept of a step that went wrong: its rows, its numbers, a checkpoint to get back to it.

anomalies/<run>/step-<n>/ holds incident.json, rows.jsonl (a row of the step per line, with its
tokens and labels) and, where there was one, checkpoint.pt, a link to the last checkpoint before the
step. It is no output of a stage; git and DVC ignore it. `holdshort replay` reads it.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import msgspec

from ..chat.token_store import TokenRow
from ..config.errors import UserError, reading
from .checkpoint import checkpoint_root, digest_in_name, digest_of_file

RECORD = "incident.json"
ROWS = "rows.jsonl"
CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Incident:
    """run: digest of what decides its bits; loss, grad_norm: as repr, so that NaN survives;
    checkpoint: digest of the one before the step."""

    run: str
    step: int
    reason: str
    loss: str
    grad_norm: str
    learning_rate: float
    rows: list[str]
    checkpoint: str | None = None

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Raises UserError when there is none, or it is damaged."""
        path = directory / RECORD
        try:
            with reading(path, "the record of a step", "run the training again"):
                return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            raise UserError(
                f"{path} is missing; give a directory below {anomaly_root()}/, as the training "
                "printed it"
            ) from None

    def checkpoint_in(self, directory: Path) -> Path | None:
        """The checkpoint before the step; None where there was none. Raises UserError for another
        than was kept: torch loads flipped bits as other weights."""
        path = directory / CHECKPOINT
        if not path.exists():
            return None
        if digest_of_file(path) != self.checkpoint:
            raise UserError(f"{path} is not the checkpoint that was kept; run the training again")
        return path


def anomaly_root() -> Path:
    """`anomalies` beside the checkpoints."""
    return checkpoint_root().with_name("anomalies")


def keep_incident(incident: Incident, rows: Sequence[TokenRow], checkpoint: Path | None) -> Path:
    """Write the directory of an incident, whole or not at all, and return it."""
    directory = anomaly_root() / incident.run[:16] / f"step-{incident.step}"
    staged = directory.with_suffix(".partial")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    if checkpoint is not None:
        incident = replace(incident, checkpoint=digest_in_name(checkpoint))
    (staged / RECORD).write_bytes(msgspec.json.encode(asdict(incident)) + b"\n")
    lines = [
        msgspec.json.encode(
            {
                "source": row.source,
                "input_ids": row.input_ids.tolist(),
                "labels": row.labels.tolist(),
            }
        )
        for row in rows
    ]
    (staged / ROWS).write_bytes(b"".join(line + b"\n" for line in lines))
    if checkpoint is not None:
        os.link(checkpoint, staged / CHECKPOINT)
    shutil.rmtree(directory, ignore_errors=True)
    staged.rename(directory)
    return directory


def latest_incident() -> Path:
    """The directory that was written last. Raises UserError when there is none."""
    found = sorted(anomaly_root().glob(f"*/step-*/{RECORD}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UserError(
            f"{anomaly_root()}/ holds no incident: no step of a training here went wrong"
        )
    return found[-1].parent
