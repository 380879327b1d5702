"""`holdshort reproduce --venv` runs a revision with the packages that it pins, or says why not."""

import fcntl
from pathlib import Path

import pytest

from stages.commands.reproduce import print_other_versions, run
from stages.config import UserError
from stages.revisions.environments import held
from stages.revisions.record import Record

from ..project import Project
from .imports import ENTRY_MODULES
from .test_reproduce import copies

NOWHERE = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
NO_INDEX = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1"}


@pytest.fixture
def recorded(cleared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose last commit holds the results of a run, as the work directory."""
    cleared.commit("Keep the results")
    monkeypatch.chdir(cleared.path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cleared


def pin(project: Project, lock: str) -> None:
    project.write("requirements.lock", lock)
    project.commit("Pin")


def test_packages_that_a_revision_pins_otherwise_are_named(
    recorded: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    print_other_versions(Record.of_run("HEAD"))
    assert capsys.readouterr().out == ""
    pin(recorded, "# a line\nnumpy==1.26.4\nnot-installed-here==1.0\n")
    print_other_versions(Record.of_run("HEAD"))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("other packages are installed than HEAD pins; --venv installs those")
    assert second.startswith("  requirement numpy: 1.26.4 (pinned) -> 2.")


def test_a_revision_that_pins_nothing_has_no_environment(recorded: Project) -> None:
    recorded.git("rm", "--quiet", "requirements.lock")
    recorded.commit("Pin nothing")
    with pytest.raises(
        UserError, match=r"HEAD has no requirements\.lock that says what to install"
    ):
        run("HEAD", None, keep=False, venv=True)
    assert copies(recorded) == []


def test_an_environment_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    lock = tmp_path / "environment.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another `holdshort reproduce --venv` uses"):
            held(lock).__enter__()
    with held(lock):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (NOWHERE, "the package registry cannot be reached, so the environment was not made"),
        (NO_INDEX, "the environment could not be made (ERROR: No matching distribution found for"),
    ],
    ids=["offline", "unknown"],
)
def test_what_pip_failed_over_is_said_with_its_log(
    recorded: Project,
    variables: dict[str, str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    pin(recorded, "six==1.17.0\n")
    with pytest.raises(UserError) as refused:
        run("HEAD", None, keep=False, venv=True)
    assert words in str(refused.value)
    (log,) = (tmp_path / "cache/holdshort/environments").glob("*.log")
    assert str(refused.value).endswith(f"; pip's log is {log}")
    assert "six==1.17.0" in log.read_text(encoding="utf-8")
    assert copies(recorded) == []


@pytest.mark.network
@pytest.mark.matrix
def test_a_revision_is_computed_in_an_environment_of_its_own(recorded: Project) -> None:
    done = recorded.holdshort("reproduce", "HEAD", "--venv", "--steps", "2")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "packages for HEAD in " in done.stdout
    assert "environment: as recorded; the same bits are expected" in done.stdout
    assert recorded.ran(done.stdout) == list(ENTRY_MODULES[:-1])
    again = recorded.holdshort("reproduce", "HEAD", "--venv", "--steps", "2")
    assert again.returncode == 0, again.stdout[-3000:]
    assert ", made before" in again.stdout
    assert copies(recorded) == []
