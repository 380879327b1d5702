"""A project whose gates have all passed, made of its records alone: no DVC, no training."""

import dataclasses
import json
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from stages.config import read_yaml
from stages.provenance.environment import (
    AUDITING_PACKAGES,
    RENDERING_PACKAGES,
    Environment,
    compute_environment,
    software_environment,
)
from stages.provenance.hashing import sha256_tree
from stages.provenance.records import write_json
from stages.verdict.clearance import (
    CLEARANCE,
    MANIFEST,
    RULES,
    clearance_of,
    gate_digests,
    run_digest,
)
from stages.verdict.judging import Measured, Rule, judge_all
from stages.verdict.record import (
    GATES,
    Verdict,
    bind,
    digest_of,
    make_verdict,
    read_verdict,
    write_verdict,
)

from ..settings import ROOT, params_tree

DATASET = ("artifacts/dataset/train.jsonl", "artifacts/dataset/validation.jsonl")
TOKENS = ("artifacts/tokens/train.arrow", "artifacts/tokens/meta.json")
DATA = Path("data/rows")


def passing_value(rule: Rule, params: dict[str, Any]) -> Any:
    limits = [params[key] for key in rule.limits]
    match rule.comparison:
        case "zero":
            return 0
        case "equals":
            return "0" * 64
        case "between":
            return sum(limits) / 2
        case "below":
            return limits[0] / 2
        case _:
            return limits[0]


def passing_verdict(gate: str, environment: Environment, **files: Any) -> Verdict:
    binding = bind(gate, environment)
    params = binding.params
    measured = {rule.id: Measured(passing_value(rule, params)) for rule in RULES[gate]}
    checks = judge_all(RULES[gate], measured, params, 42)
    return make_verdict(binding, "pass", checks, **files)


class ClearedProject:
    """The working directory: sources of one line, small data, four passing verdicts, a manifest."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def build(self) -> None:
        stages = read_yaml(ROOT / "dvc.yaml")["stages"]
        reads = {
            name: {"deps": stage["deps"], "params": stage.get("params", [])}
            for name, stage in stages.items()
        }
        self.write("dvc.yaml", json.dumps({"stages": reads}))
        self.set_params(data__path=DATA.as_posix())
        for dep in {dep for stage in stages.values() for dep in stage["deps"]}:
            if dep.startswith("stages/"):
                self.write(dep if dep.endswith(".py") else f"{dep}/__init__.py", "VALUE = 1\n")
        for path in (f"{DATA}/a.jsonl", f"{DATA}/b.jsonl", *DATASET, *TOKENS):
            self.write(path, f"{path}\n")
        self.judge()
        self.clear()

    def set_params(self, **values: Any) -> None:
        with Path("params.yaml").open("w", encoding="utf-8") as file:
            YAML().dump(params_tree(**values), file)

    def write(self, path: str, text: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")

    def judge(self) -> None:
        """Write a passing verdict of every gate, on what is here."""
        dataset, tokens = sha256_tree(map(Path, DATASET)), sha256_tree(map(Path, TOKENS))
        write_verdict(
            passing_verdict(
                "hash_data",
                software_environment(AUDITING_PACKAGES),
                inputs=sha256_tree([DATA]),
                outputs=dataset,
            )
        )
        write_verdict(
            passing_verdict(
                "mask_report",
                software_environment(RENDERING_PACKAGES),
                inputs=dataset,
                outputs=tokens,
            )
        )
        for gate in GATES[2:]:
            write_verdict(passing_verdict(gate, self.environment, inputs=tokens))

    def clear(self) -> None:
        """Write the clearance, and as much of a manifest as is checked again."""
        clearance = clearance_of({gate: read_verdict(gate) for gate in GATES}, "f" * 64, 42)
        manifest = {
            "digest": run_digest(clearance),
            "seeds": {"run": 42},
            "gates": {gate: {"sha256": digest} for gate, digest in gate_digests().items()},
        }
        write_json(CLEARANCE, clearance)
        write_json(MANIFEST, manifest)

    def alter(self, gate: str, **changes: Any) -> None:
        """Rewrite a verdict with other fields; digests of its params and environment follow."""
        verdict = dataclasses.replace(read_verdict(gate), **changes)
        if "environment" in changes and "environment_sha256" not in changes:
            verdict = dataclasses.replace(
                verdict, environment_sha256=digest_of(changes["environment"])
            )
        write_verdict(verdict)


@pytest.fixture(scope="session")
def cleared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cleared")
    with chdir(directory):
        ClearedProject(compute_environment("cpu", "fp32", 1)).build()
    return directory


@pytest.fixture
def cleared(
    cleared_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ClearedProject:
    shutil.copytree(cleared_directory, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return ClearedProject(compute_environment("cpu", "fp32", 1))
