"""What a result depends on is told, and what differs is named."""

import getpass
import platform
from importlib import metadata
from pathlib import Path

import pytest
import torch

from stages.config import UserError
from stages.provenance.environment import (
    COMPUTING_PACKAGES,
    PARSING_PACKAGES,
    compute_environment,
    differences,
    package_versions,
    recorded_facts,
    software_environment,
)

from ..settings import ROOT, run_python


def test_versions_are_those_installed_and_none_when_absent() -> None:
    assert package_versions(("msgspec", "no-such-package")) == {
        "msgspec": metadata.version("msgspec"),
        "no-such-package": None,
    }


def test_the_local_part_of_a_version_does_not_bind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "holdshort_sample-1.2.3+cpu.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: holdshort-sample\nVersion: 1.2.3+cpu\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert package_versions(("holdshort-sample",)) == {"holdshort-sample": "1.2.3"}


def test_pythons_patch_version_does_not_bind() -> None:
    python = software_environment(())["python"]
    assert python == ".".join(platform.python_version_tuple()[:2])


def test_what_binds_a_computation_is_complete() -> None:
    facts = compute_environment("cpu", "fp32", 3)
    assert set(facts) == {
        *("python", "packages", "torch_build", "cuda", "device", "gpu", "machine"),
        *("cpu_capability", "cpu_threads", "precision"),
    }
    assert set(facts["packages"]) == set(COMPUTING_PACKAGES)
    assert (facts["device"], facts["gpu"], facts["precision"]) == ("cpu", None, "fp32")
    assert facts["cpu_threads"] == 3
    assert facts["torch_build"] == torch.__version__
    assert facts["cpu_capability"] == torch.backends.cpu.get_cpu_capability()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"run\.device"):
        compute_environment("cuda", "fp32", 1)


def test_the_environment_of_a_gate_without_torch_does_not_import_it() -> None:
    source = (
        "import sys; from stages.provenance.environment import software_environment as e; "
        "e(('torch',)); print('torch' in sys.modules)"
    )
    assert run_python(source, cwd=ROOT).stdout == "False\n"


def test_nothing_names_the_machine_or_its_user() -> None:
    text = repr([compute_environment("cpu", "fp32", 1), recorded_facts()])
    assert f"'{platform.node()}'" not in text
    assert f"'{getpass.getuser()}'" not in text
    assert f"'{Path.home()}" not in text


def test_the_recorded_facts_hold_pythons_patch_version() -> None:
    facts = recorded_facts()
    assert facts["python_version"] == platform.python_version()
    assert set(facts["packages"]) >= {*PARSING_PACKAGES, *COMPUTING_PACKAGES, "dvc"}


def test_equal_environments_have_no_differences() -> None:
    here = compute_environment("cpu", "fp32", 2)
    assert differences(here, compute_environment("cpu", "fp32", 2)) == []


def test_every_difference_is_named_with_both_values() -> None:
    made = {"python": "3.11", "cpu_threads": 2, "packages": {"torch": "2.13.0", "numpy": "2.4.0"}}
    here = {"python": "3.11", "cpu_threads": 4, "packages": {"torch": "2.12.0"}, "gpu": "H"}
    assert differences(made, here) == [
        ("cpu_threads", 2, 4),
        ("gpu", None, "H"),
        ("packages.numpy", "2.4.0", None),
        ("packages.torch", "2.13.0", "2.12.0"),
    ]
