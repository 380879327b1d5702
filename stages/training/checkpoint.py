"""Checkpoints of a run under way: atomic, rotated, locked, and read back without code execution.

checkpoints/<fingerprint>/step-50-<digest>.pt holds the model, the optimizer, the schedule, the loss
scaler, all random generators and the telemetry so far, from whose length the data order follows.
The fingerprint is of data, params, code and environment: a checkpoint of another run is never
found. The digest is of the file's bytes: torch itself loads flipped bits as other weights.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..config.errors import Refusal, UserError, reading
from ..config.lock import holding
from ..provenance.hashing import sha256_file

State = dict[str, Any]
STEP = re.compile(r"step-(\d{1,18})\b")


def checkpoint_root() -> Path:
    """`checkpoints` in the main repository, also for an experiment that runs from DVC's queue."""
    here = Path.cwd().resolve()
    for parent in here.parents:
        if parent.name == "exps" and parent.parts[-3:-1] == (".dvc", "tmp"):
            return parent.parents[2] / "checkpoints"
    return Path("checkpoints")


class CheckpointDirectory:
    """The checkpoints of one run, below `root`: the repository's own where it is not given."""

    def __init__(self, fingerprint: str, keep: int, root: Path | None = None) -> None:
        self.fingerprint = fingerprint
        self.path = (root or checkpoint_root()) / fingerprint[:16]
        self._keep = keep

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for this process. Raises Refusal when another trainer has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        busy = Refusal(
            f"another process is training this very run (it holds {self.path}/lock); wait for it, "
            "or stop it"
        )
        with holding(self.path / "lock", busy):
            yield

    def save(self, step: int, state: State) -> None:
        """Write a checkpoint after `step` steps; an older one survives a failure.

        Raises UserError when the disk is full or refuses.
        """
        staged = self.path / f"step-{step}.partial"
        try:
            with staged.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            staged.replace(self.path / f"step-{step}-{digest_of_file(staged)}.pt")
        except (OSError, RuntimeError) as error:
            staged.unlink(missing_ok=True)
            kept = "the checkpoint before it is kept" if self._saved() else "none was saved before"
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"{staged.with_suffix('.pt')} could not be written ({reason}); {kept}. Free space "
                "on the disk, then `dvc repro` goes on from there"
            ) from None
        for old in self._saved()[: -self._keep]:
            old.unlink()

    def load_latest(self) -> State | None:
        """The state in the newest checkpoint that is whole, on the CPU, or None."""
        for path in reversed(self._saved()):
            if digest_of_file(path) == digest_in_name(path):
                with contextlib.suppress(UserError):
                    return load_state(path)
            print(f"warning: {path} is damaged and was removed; looking for an older checkpoint")
            path.unlink()
        return None

    def latest(self) -> Path | None:
        """The newest checkpoint, or None."""
        return next(reversed(self._saved()), None)

    def remove(self) -> None:
        """Forget the run: it is finished, and is never resumed."""
        for path in self.path.iterdir():
            path.unlink()
        self.path.rmdir()

    def _saved(self) -> list[Path]:
        """Checkpoints from the oldest to the newest."""
        named = {path: STEP.match(path.name) for path in self.path.glob("step-*.pt")}
        steps = {path: int(match[1]) for path, match in named.items() if match}
        return sorted(steps, key=lambda path: (steps[path], path))


def load_state(path: Path) -> State:
    """What a checkpoint holds, on the CPU; no code of it is run. Raises UserError for no state."""
    with reading(path, "a checkpoint", "take it away"):
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise UserError(f"{path} holds {type(state).__name__}, no state of a training")
    return state


def digest_in_name(path: Path) -> str:
    """The digest that a checkpoint must have."""
    return path.stem.rpartition("-")[2]


def digest_of_file(path: Path) -> str:
    return sha256_file(path)[:16]
