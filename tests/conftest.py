"""Fixtures: throw-away copies of this project in which real DVC runs."""

from pathlib import Path

import pytest

from .project import Project, make_project

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def fresh_template(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A committed project with little data and a small model, in which nothing has run yet."""
    return make_project(ROOT, tmp_path_factory.mktemp("fresh") / "project")


@pytest.fixture(scope="session")
def cleared_template(fresh_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same after a `dvc repro` that passed every gate and trained."""
    project = fresh_template.copy(tmp_path_factory.mktemp("cleared") / "project")
    project.repro()
    return project


@pytest.fixture
def fresh(fresh_template: Project, tmp_path: Path) -> Project:
    return fresh_template.copy(tmp_path / "project")


@pytest.fixture
def cleared(cleared_template: Project, tmp_path: Path) -> Project:
    return cleared_template.copy(tmp_path / "project")
