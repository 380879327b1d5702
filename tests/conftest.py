"""Fixtures: throw-away copies of this project in which real DVC runs."""

import os
from pathlib import Path

import pytest

from .project import Project, made_once, make_project

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of a test run share: what is costly is made in it once."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def fresh_template(shared: Path) -> Project:
    """A committed project with little data and a small model, in which nothing has run yet."""
    return made_once(shared / "fresh", lambda path: make_project(ROOT, path))


@pytest.fixture(scope="session")
def cleared_template(fresh_template: Project, shared: Path) -> Project:
    """The same after a `dvc repro` that passed every gate and trained."""

    def make(path: Path) -> None:
        fresh_template.copy(path).repro()

    return made_once(shared / "cleared", make)


@pytest.fixture
def fresh(fresh_template: Project, tmp_path: Path) -> Project:
    return fresh_template.copy(tmp_path / "project")


@pytest.fixture
def cleared(cleared_template: Project, tmp_path: Path) -> Project:
    return cleared_template.copy(tmp_path / "project")
