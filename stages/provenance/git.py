"""Which commit is this? Informative only: digests decide, and they leave this block out."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.errors import UserError

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


def refuse_elsewhere() -> None:
    """Raises UserError where the current directory is not the root of repository and project."""
    if not Path(".git").exists() or not Path(".dvc").is_dir():
        raise UserError("this is not the root of a git repository with a DVC project; go there")


def commit_of(revision: str) -> str:
    """The commit of a revision, or of a DVC experiment. Raises UserError where it is unknown."""
    found = read_git(
        "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    )
    if found is not None:
        return found.strip()
    named = read_git("for-each-ref", "--format=%(objectname) %(refname)", "refs/exps") or ""
    entries = (line.split(" ") for line in named.splitlines())
    commits = {commit for commit, name in entries if name.split("/")[4:] == [revision]}
    if len(commits) > 1:
        raise UserError(
            f"{len(commits)} experiments are named {revision!r}, of several commits; give the "
            "digits of the one that is meant (`dvc exp list --all-commits --sha`)"
        )
    if not commits:
        raise UserError(
            f"git does not know the revision {revision!r} here; give a commit, a tag, a branch or "
            "an experiment of this repository (`git fetch` brings those of another)"
        )
    return commits.pop()


def committed_files(commit: str) -> dict[str, str]:
    """Path -> git's own digest of the content, of every file of a commit."""
    entries = (read_git("ls-tree", "-r", "-z", "--full-tree", commit) or "").split("\0")
    parts = (entry.partition("\t") for entry in entries if entry)
    return {path: facts.split(" ")[2] for facts, _, path in parts}


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
