"""A run is shared through a DVC remote: who clones it has it whole, and computes nothing again."""

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ..conftest import ROOT
from ..project import Project

S3 = ("dvc-s3==3.3.0", "moto[server]==5.2.5")
BUCKET = "s3://runs/holdshort"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}


@pytest.fixture
def clone(cleared: Project, tmp_path: Path) -> Project:
    """What somebody else has cloned of a run that was committed and pushed to ../team."""
    assert cleared.run("dvc", "remote", "add", "--default", "team", "../team").returncode == 0
    cleared.commit("Keep the results")
    assert cleared.run("dvc", "push").returncode == 0
    return clone_of(cleared, tmp_path / "clone")


def clone_of(project: Project, target: Path) -> Project:
    project.git("clone", "--quiet", str(project.path), str(target))
    return Project(target)


def assert_whole(project: Project) -> None:
    """Nothing differs, nothing is to be done, and nothing is done."""
    verified = project.holdshort("verify")
    assert verified.returncode == 0, verified.stdout
    assert "everything is as recorded" in verified.stdout
    status = project.run("dvc", "status")
    assert status.stdout == "Data and pipelines are up to date.\n"
    assert project.ran(project.repro()) == []
    assert project.git("status", "--porcelain") == ""


def missing(project: Project, path: str) -> Path:
    """Remove from the remote what it holds of an output; where that was."""
    lock = YAML(typ="safe").load(project.path / "dvc.lock")
    outs = {out["path"]: out["md5"] for one in lock["stages"].values() for out in one["outs"]}
    digest = str(outs[path])
    pushed = project.path.parent / "team/files/md5" / digest[:2] / digest[2:]
    pushed.unlink()
    return pushed


@pytest.mark.slow
def test_a_run_is_whole_in_a_clone_after_a_pull(clone: Project) -> None:
    pulled = clone.run("dvc", "pull")
    assert pulled.returncode == 0, pulled.stdout
    assert_whole(clone)


def test_a_clone_without_its_outputs_is_told_how_to_have_them(clone: Project) -> None:
    done = clone.holdshort("verify")
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert line.startswith(
        "error: not all outputs of this run are here: gates/hash_data.json, "
        "gates/mask_report.json, gates/overfit_gate.json and 4 more missing; `dvc pull` brings"
    )


@pytest.mark.slow
def test_what_the_remote_lacks_is_named_until_it_was_pushed(
    cleared: Project, clone: Project
) -> None:
    pushed = missing(clone, "gates/overfit_gate.json")
    pulled = clone.run("dvc", "pull")
    assert "failed to pull data from the cloud" in pulled.stdout
    assert "gates/overfit_gate.json" in clone.run("dvc", "checkout").stdout
    done = clone.holdshort("verify")
    assert done.returncode == 2
    assert "are here: gates/overfit_gate.json missing; `dvc pull` brings them" in done.stdout
    assert cleared.run("dvc", "push").returncode == 0
    assert pushed.exists()
    assert clone.run("dvc", "pull").returncode == 0
    assert_whole(clone)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Python of an environment that adds what S3 needs, and a server, to the one that runs now.

    Both agree with requirements.lock, but are not in it: they are some thirty packages.
    """
    environment = tmp_path_factory.mktemp("s3") / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = str(environment / "bin/python")
    below = next(environment.glob("lib/python*/site-packages"))
    (below / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(ROOT / "requirements.lock"), *S3], check=True)
    return python


@pytest.fixture
def endpoint(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of a server that speaks S3, with an empty bucket."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    command = [s3, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            found = (re.search(r"Running on (http://\S+)", line) for line in server.stdout)
            url = next(match[1] for match in found if match)
            make = "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1])"
            make += ".create_bucket(Bucket='runs', CreateBucketConfiguration="
            make += "{'LocationConstraint': 'eu-west-1'})"
            subprocess.run([s3, "-c", make, url], check=True)
            yield url
        finally:
            server.terminate()


@pytest.mark.network
@pytest.mark.slow
def test_a_run_is_whole_in_a_clone_after_a_pull_from_s3(
    cleared: Project, s3: str, endpoint: str, tmp_path: Path
) -> None:
    def dvc(project: Project, *arguments: str) -> None:
        done = project.run(s3, "-m", "dvc", *arguments)
        assert done.returncode == 0, done.stdout

    dvc(cleared, "remote", "add", "--default", "team", BUCKET)
    dvc(cleared, "remote", "modify", "team", "endpointurl", endpoint)
    cleared.commit("Keep the results")
    dvc(cleared, "push")
    clone = clone_of(cleared, tmp_path / "clone")
    dvc(clone, "pull")
    assert_whole(clone)
