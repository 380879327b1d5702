"""A project that a gate refuses."""

import pytest

from ..project import Project
from .test_faults import FAULTS


@pytest.fixture(scope="session")
def refused_template(fresh_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose gate 1 refuses: the collator masks the stop token."""
    fault = FAULTS["stop_token_masked"]
    project = fresh_template.copy(tmp_path_factory.mktemp("refused") / "project")
    project.plug_in(fault.source)
    project.set_params(**fault.params)
    project.commit("Plant a fault")
    project.repro(code=255)
    return project


@pytest.fixture
def refused(refused_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return refused_template.copy(tmp_path_factory.mktemp("bypass") / "project")
