"""The import closure of a stage, read from the source: what DVC must list as its dependencies."""

import ast
from pathlib import Path

ENTRY_MODULES = (
    "hash_data",
    "mask_report",
    "overfit_gate",
    "gradient_probe",
    "manifest",
    "full_train",
)


def imported_files(root: Path, file: Path) -> set[Path]:
    """Files below `root`/stages that `file` imports, anywhere in it, with their packages."""
    found = set()
    package = list(file.relative_to(root).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = base + (node.module.split(".") if node.module else [])
            targets = [module, *([*module, alias.name] for alias in node.names)]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            targets = [node.module.split(".")]
        elif isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        else:
            continue
        for target in targets:
            for length in range(1, len(target) + 1):
                path = root.joinpath(*target[:length])
                candidates = (path.with_suffix(".py"), path / "__init__.py")
                found |= {one for one in candidates if one.is_file()}
    return {path for path in found if path.is_relative_to(root / "stages")}


def closure(root: Path, stage: str) -> set[str]:
    """Posix paths of all files that `stages/<stage>.py` can import, itself included."""
    waiting, seen = [root / "stages" / f"{stage}.py"], set[Path]()
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting.extend(imported_files(root, file))
    return {file.relative_to(root).as_posix() for file in seen}
