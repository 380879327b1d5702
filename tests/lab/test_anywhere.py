"""`holdshort lab` gives the same bytes in any directory, from a clone or from a wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ..conftest import ROOT
from ..project import copy_repository
from ..settings import run_python

pytestmark = pytest.mark.slow
COMMAND = "from {package}.cli import main; main(['lab'])"


def record_of(package: str, directory: Path, root: Path) -> bytes:
    """What the command leaves in `directory`, run from the package below `root`."""
    directory.mkdir()
    done = run_python(COMMAND.format(package=package), cwd=directory, PYTHONPATH=str(root))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lab: PASS" in done.stdout
    assert [path.name for path in directory.iterdir()] == ["reports"]
    return (directory / "reports/lab/overfit_run_record.json").read_bytes()


def unpack_wheel(tmp_path: Path) -> Path:
    """The directory with what a wheel of this repository installs."""
    sources = copy_repository(ROOT, tmp_path / "sources").path
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(sources)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    return tmp_path / "installed"


def test_the_record_is_the_same_from_a_clone_and_from_a_wheel(tmp_path: Path) -> None:
    in_clone = record_of("stages", tmp_path / "one", ROOT)
    installed = record_of("holdshort", tmp_path / "two", unpack_wheel(tmp_path))
    assert in_clone == installed
