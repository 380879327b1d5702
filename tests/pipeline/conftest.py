"""A project that a gate refuses."""

from pathlib import Path

import pytest

from ..project import Project, made_once
from .test_faults import FAULTS


@pytest.fixture(scope="session")
def refused_template(fresh_template: Project, shared: Path) -> Project:
    """A project whose gate 1 refuses: the collator masks the stop token."""

    def make(path: Path) -> None:
        fault = FAULTS["stop_token_masked"]
        project = fresh_template.copy(path)
        project.plug_in(fault.source)
        project.set_params(**fault.params)
        project.commit("Plant a fault")
        project.repro(code=255)

    return made_once(shared / "refused", make)


@pytest.fixture
def refused(refused_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return refused_template.copy(tmp_path_factory.mktemp("bypass") / "project")
