"""dvc.yaml tells DVC the truth: every stage lists what it can import and what it reads."""

import ast
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ..conftest import ROOT
from ..project import Project
from .imports import ENTRY_MODULES, closure

# full_train asks these whether it may train; they never decide what it computes
DECIDES_NO_BITS = {"full_train": "stages/verdict"}
PACKAGE_DOCSTRING = "stages/__init__.py"


def read_stages(root: Path) -> dict[str, dict[str, list[str]]]:
    stages: dict[str, dict[str, list[str]]] = YAML(typ="safe").load(root / "dvc.yaml")["stages"]
    return stages


def is_covered(file: str, deps: list[str]) -> bool:
    return any(Path(file).is_relative_to(dep) for dep in deps)


def missing_deps(root: Path, stage: str) -> set[str]:
    """Files of the import closure that the deps of `stage` do not cover."""
    deps = [*read_stages(root)[stage]["deps"], PACKAGE_DOCSTRING]
    if stage in DECIDES_NO_BITS:
        deps.append(DECIDES_NO_BITS[stage])
    return {file for file in closure(root, stage) if not is_covered(file, deps)}


def test_the_stages_are_the_six_in_their_order() -> None:
    assert tuple(read_stages(ROOT)) == ENTRY_MODULES


@pytest.mark.parametrize("stage", ENTRY_MODULES)
def test_deps_cover_the_import_closure(stage: str) -> None:
    assert missing_deps(ROOT, stage) == set()


@pytest.mark.parametrize("stage", ENTRY_MODULES)
def test_no_stage_depends_on_code_that_it_cannot_import(stage: str) -> None:
    reachable = closure(ROOT, stage)
    listed = [dep for dep in read_stages(ROOT)[stage]["deps"] if dep.startswith("stages/")]
    unused = {
        dep
        for dep in listed
        if dep != "stages/plugins" and not any(is_covered(file, [dep]) for file in reachable)
    }
    assert unused == set()


@pytest.mark.parametrize("stage", ENTRY_MODULES)
def test_a_stage_that_can_load_user_code_depends_on_the_plugins(stage: str) -> None:
    loads_hooks = "stages/config/hooks.py" in closure(ROOT, stage)
    deps = read_stages(ROOT)[stage]["deps"]
    assert loads_hooks == is_covered("stages/plugins/mine.py", deps) or stage == "manifest"


def test_an_import_that_dvc_does_not_know_is_found(fresh: Project) -> None:
    source = fresh.read("stages/hash_data.py")
    planted = source.replace("import csv\n", "import csv\n\nfrom .probes import learning_rate\n", 1)
    fresh.write("stages/hash_data.py", planted)
    assert missing_deps(fresh.path, "hash_data") == {
        "stages/probes/__init__.py",
        "stages/probes/learning_rate.py",
    }


def test_the_package_itself_does_nothing_on_import() -> None:
    body = ast.parse((ROOT / PACKAGE_DOCSTRING).read_text(encoding="utf-8")).body
    assert [type(node) for node in body] == [ast.Expr]


def test_imports_point_one_way() -> None:
    layers = (
        "config",
        "provenance",
        "verdict",
        "report",
        "curves",
        "chat",
        "models",
        "training",
        "estimate",
        "probes",
    )
    for number, package in enumerate(layers):
        above = {f"stages/{name}" for name in layers[number + 1 :]}
        for file in (ROOT / "stages" / package).rglob("*.py"):
            reached = closure(ROOT, file.relative_to(ROOT / "stages").with_suffix("").as_posix())
            wrong = {path for path in reached if "/".join(Path(path).parts[:2]) in above}
            assert not wrong, f"{file.relative_to(ROOT)} reaches {sorted(wrong)}"


@pytest.mark.parametrize("stage", ENTRY_MODULES)
def test_only_stages_that_compute_import_torch_or_transformers(stage: str) -> None:
    heavy = {"torch", "transformers", "matplotlib"}
    computing = {"mask_report", "overfit_gate", "gradient_probe", "full_train"}
    imported = {
        alias.name.split(".")[0]
        for path in closure(ROOT, stage)
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        for alias in _imported_names(node)
    }
    assert bool(heavy & imported) == (stage in computing)


def _imported_names(node: ast.stmt) -> list[ast.alias]:
    if isinstance(node, ast.Import):
        return node.names
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [ast.alias(node.module or "")]
    return []
