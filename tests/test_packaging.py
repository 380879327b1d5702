"""What an installed copy holds, and whose code its command runs."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .settings import ROOT


def test_every_package_is_installed() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    directories = {path.parent for path in (ROOT / "stages").rglob("*.py")}
    found = {".".join(("holdshort", *d.relative_to(ROOT / "stages").parts)) for d in directories}
    assert sorted(found) == sorted(name for name in listed if name != "holdshort.conf.gates")


@pytest.mark.parametrize("is_project", [True, False])
def test_the_command_runs_the_code_of_the_project_that_it_stands_in(
    tmp_path: Path, is_project: bool
) -> None:
    if is_project:
        (tmp_path / "dvc.yaml").touch()
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/cli.py").write_text("import sys\nprint('theirs', *sys.argv[1:])\n")
    command = [str(Path(sys.executable).with_name("holdshort")), "compose", "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    ran_theirs = done.stdout == "theirs compose --check\n"
    assert (ran_theirs, done.returncode) == ((True, 0) if is_project else (False, 2))
