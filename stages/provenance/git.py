"""Which commit is this? Informative only: digests decide, and they leave this block out."""

import subprocess
from collections.abc import Sequence
from typing import Any

WATCHED = ("stages", "conf", "params.yaml", "dvc.yaml", "requirements.lock")


def read_git(*arguments: str) -> str | None:
    """What a git command prints, or None where it fails or there is no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def lineage(data_pointers: Sequence[str] = ()) -> dict[str, Any]:
    """The last commit that touched what decides a run, and the dirty paths among exactly this.

    Outputs such as metrics/ are not watched: committing a run's results does not change its record.
    `commit` is None outside a git repository.
    """
    watched = [*WATCHED, *data_pointers]
    commit = read_git("log", "-1", "--format=%H", "--", *watched)
    status = read_git("status", "--porcelain=v1", "--no-renames", "-z", "--", *watched)
    dirty = [entry[3:] for entry in (status or "").split("\0") if entry]
    return {"commit": (commit or "").strip() or None, "dirty": sorted(dirty)}
