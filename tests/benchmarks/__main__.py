"""Ratios measured side by side in one run: `make bench` ends with a line per figure.

A ratio is the median over several pairs, each pair measured one after the other, so that a busy
machine slows both.
"""

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from stages.provenance.hashing import sha256_file, sha256_files

from ..conftest import ROOT
from ..project import Project, make_project
from .preparing import bench_preparing
from .probing import bench_probes
from .training import bench_base_model, bench_training

PAIRS = 7
MEBIBYTE = 1 << 20


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median_ratio(one: Callable[[], object], other: Callable[[], object]) -> float:
    """Median of time(one) / time(other) over PAIRS pairs, after a pair that does not count."""
    one(), other()
    return statistics.median(seconds(one) / seconds(other) for _ in range(PAIRS))


def hash_with_hashlib(paths: list[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")


def bench_hashing(scratch: Path) -> dict[str, float]:
    """Speed of our hashing over hashlib's: on one file, and on four files with two cores."""
    files = [scratch / f"{number}.bin" for number in range(4)]
    for file in files:
        file.write_bytes(os.urandom(96 * MEBIBYTE))
    one = files[:1]
    return {
        "hash_vs_hashlib": median_ratio(
            lambda: hash_with_hashlib(one), lambda: sha256_file(one[0])
        ),
        "hash_parallel": median_ratio(
            lambda: hash_with_hashlib(files), lambda: sha256_files(files)
        ),
    }


def trivial_chain(path: Path) -> Project:
    """Six stages, each of which copies one file to another."""
    path.mkdir()
    stages = "".join(
        f"  s{n}:\n    cmd: cp f{n} f{n + 1}\n    deps: [f{n}]\n    outs: [f{n + 1}]\n"
        for n in range(6)
    )
    (path / "dvc.yaml").write_text(f"stages:\n{stages}", encoding="utf-8")
    (path / "f0").write_text("x", encoding="utf-8")
    project = Project(path)
    project.git("init", "--quiet")
    project.run("dvc", "init", "--quiet")
    project.run("dvc", "config", "core.analytics", "false")
    project.repro()
    return project


def bench_nothing_to_do(scratch: Path) -> dict[str, float]:
    """`dvc repro` with nothing to do, over the same on the trivial chain."""
    trivial = trivial_chain(scratch / "trivial")
    project = make_project(ROOT, scratch / "project")
    project.repro()
    return {"noop_vs_true": median_ratio(project.repro, trivial.repro)}


def peak_bytes(project: Project) -> int:
    """Peak resident memory of `python -m stages.hash_data`, the largest of its processes."""
    command = [sys.executable, "-m", "stages.hash_data"]
    process = subprocess.Popen(command, cwd=project.path, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return usage.ru_maxrss * 1024


def write_rows(path: Path, rows: int) -> None:
    with path.open("wb") as file:
        for number in range(rows):
            messages = [
                {"role": "user", "content": f"What is the state of node {number}? " + "log " * 40},
                {
                    "role": "assistant",
                    "content": f"Node {number} is {'up' if number % 3 else 'down'}.",
                },
            ]
            file.write(msgspec.json.encode({"messages": messages}) + b"\n")


def bench_memory(scratch: Path) -> dict[str, float]:
    """Growth of hash_data's peak memory from 100,000 to 1,000,000 rows, in bytes a row."""
    project = make_project(ROOT, scratch / "rows")
    peaks = []
    for rows in (100_000, 1_000_000):
        write_rows(project.path / "data/incidents.jsonl", rows)
        peaks.append(peak_bytes(project))
    return {"memory_per_row": (peaks[1] - peaks[0]) / 900_000}


def main() -> None:
    figures: dict[str, float | str] = {}
    for bench in (
        bench_hashing,
        bench_nothing_to_do,
        bench_memory,
        bench_preparing,
        bench_training,
        bench_probes,
        bench_base_model,
    ):
        with tempfile.TemporaryDirectory() as scratch:
            figures |= bench(Path(scratch))
    for name, figure in figures.items():
        print(f"BENCH {name} {figure if isinstance(figure, str) else f'{figure:.3f}'}")


if __name__ == "__main__":
    main()
