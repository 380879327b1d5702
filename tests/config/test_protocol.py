"""The protocol's limits are those of conf/, wherever the code lies."""

import shutil
from pathlib import Path

import pytest

from stages.config import UserError, parse_params, protocol, read_yaml
from stages.config.protocol import read_protocol

from ..settings import ROOT


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone's root with conf/gates/protocol.yaml; the code lies in a directory of it."""
    monkeypatch.setattr(protocol, "PACKAGE", tmp_path / "stages")
    (tmp_path / "conf/gates").mkdir(parents=True)
    shutil.copy(ROOT / "conf/gates/protocol.yaml", tmp_path / "conf/gates")
    return tmp_path


def test_the_limits_are_those_that_params_are_composed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gates, limits = read_protocol()
    assert gates == parse_params(read_yaml(ROOT / "params.yaml")).gates
    assert (limits["gates.overfit.max_loss"], limits["gates.overfit.max_steps"]) == (0.05, 35)


def test_what_was_packed_with_the_code_comes_first(package: Path) -> None:
    text = (package / "conf/gates/protocol.yaml").read_text()
    (package / "stages/conf/gates").mkdir(parents=True)
    (package / "stages/conf/gates/protocol.yaml").write_text(
        text.replace("max_loss: 0.05", "max_loss: 0.07")
    )
    assert read_protocol()[0].overfit.max_loss == 0.07


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("max_loss: low", "Expected `float`, got `str` - at `$.overfit.max_loss`"),
        ("least: 0.05", "Object missing required field `max_loss` - at `$.overfit`"),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence(package: Path, line: str, reason: str) -> None:
    path = package / "conf/gates/protocol.yaml"
    path.write_text(path.read_text().replace("max_loss: 0.05", line))
    with pytest.raises(UserError) as caught:
        read_protocol()
    assert str(caught.value) == f"{path}: {reason}"


def test_a_missing_file_is_refused(package: Path) -> None:
    (package / "conf/gates/protocol.yaml").unlink()
    with pytest.raises(UserError, match=r"protocol\.yaml does not exist"):
        read_protocol()
