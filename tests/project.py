"""A project on disk: copied from this repository, made small, and driven as its users drive it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from ruamel.yaml import YAML

ROWS = 240
SMALL = (
    "gates.overfit.num_samples=4",
    "gates.gradient.steps=4",
    "gates.mask.print_rows=1",
    "gates.mask.report_rows=10",
    "train.max_steps=8",
    "train.save_steps=2",
    "train.eval_steps=4",
    "train.eval_generations=4",
    "train.max_new_tokens=8",
    "train.gradient_accumulation_steps=2",
)
LEFT_BEHIND = {".git", ".venv", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
LEFT_BEHIND |= {"artifacts", "gates", "reports", "metrics", "models", "checkpoints", "logs"}
LEFT_BEHIND |= {"dvc.lock", "clearance.json", "training_manifest.json", "__pycache__"}
IDENTITY = ("-c", "user.name=Test", "-c", "user.email=test@example.org")


@dataclass(frozen=True)
class Project:
    """A checkout with the commands that the README gives."""

    path: Path

    def copy(self, target: Path) -> "Project":
        shutil.copytree(self.path, target, symlinks=True)
        return Project(target)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project; stdout and stderr come together in `stdout`."""
        programs = Path(sys.executable).parent
        variables = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(
            command,
            cwd=self.path,
            env={**variables, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=3600,
        )

    def repro(self, *arguments: str, code: int = 0) -> str:
        """`dvc repro` with a given exit code; returns what it printed."""
        done = self.run("dvc", "repro", *arguments)
        assert done.returncode == code, done.stdout[-6000:]
        return done.stdout

    def stage(self, name: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", f"stages.{name}")

    def holdshort(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "stages.cli", *arguments)

    def git(self, *arguments: str) -> str:
        done = self.run("git", *IDENTITY, *arguments)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def commit(self, message: str = "Change") -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def read(self, path: str) -> str:
        return (self.path / path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_text(text, encoding="utf-8")

    def json(self, path: str) -> Any:
        return json.loads(self.read(path))

    def exists(self, path: str) -> bool:
        return (self.path / path).exists()

    def set_params(self, **values: Any) -> None:
        """Edit params.yaml by hand; `__` stands for a dot: `train__learning_rate=0.1`."""
        yaml = YAML()
        tree = yaml.load(self.path / "params.yaml")
        for key, value in values.items():
            *groups, leaf = key.split("__")
            group = tree
            for name in groups:
                group = group[name]
            group[leaf] = value
        yaml.dump(tree, self.path / "params.yaml")

    def plug_in(self, source: str) -> None:
        """Write user code to stages/plugins/mine.py."""
        self.write("stages/plugins/mine.py", source)

    def forget(self, stage: str) -> None:
        """Remove what DVC's cache holds of the outputs of `stage`, so that it has to run."""
        lock = YAML(typ="safe").load(self.path / "dvc.lock")
        for output in lock["stages"][stage]["outs"]:
            digest = output["md5"]
            cached = self.path / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
            cached.unlink(missing_ok=True)

    def computed_steps(self) -> list[int]:
        """Numbers of all training steps that were computed so far, in order, repeats included."""
        log = self.path / "logs/full_train.csv"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [int(line.split(",")[1]) for line in lines]

    def ran(self, output: str) -> list[str]:
        """The stages that a `dvc repro` executed, by what it printed."""
        return [
            line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage '")
        ]


def made_once(directory: Path, make: Callable[[Path], object]) -> Project:
    """The project that `make` writes to a path below `directory`, made by whoever comes first.

    Others, also in other processes, wait for it. What a failed attempt left is removed.
    """
    project, made = directory / "project", directory / "made"
    directory.mkdir(exist_ok=True)
    with FileLock(directory / "lock"):
        if not made.exists():
            shutil.rmtree(project, ignore_errors=True)
            make(project)
            made.touch()
    return Project(project)


def copy_repository(root: Path, target: Path) -> Project:
    """Copy what belongs to the repository at `root` into a git repository of its own."""

    def ignore(directory: str, names: list[str]) -> set[str]:
        if Path(directory) == root / ".dvc":
            return {"cache", "tmp"}
        left = {name for name in names if name in LEFT_BEHIND and Path(directory) == root}
        return left | {"__pycache__"}

    shutil.copytree(root, target, ignore=ignore)
    project = Project(target)
    project.git("init", "--quiet", "--initial-branch", "main")
    return project


def make_project(root: Path, target: Path) -> Project:
    """A copy with ROWS rows of the data and a short training, committed."""
    project = copy_repository(root, target)
    rows = project.read("data/incidents.jsonl").splitlines(keepends=True)
    project.write("data/incidents.jsonl", "".join(rows[:ROWS]))
    composed = project.holdshort("compose", *SMALL)
    assert composed.returncode == 0, composed.stdout
    project.commit("Start")
    return project
