"""User code is loaded from stages/plugins and from locked packages, and from nowhere else."""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

import stages.plugins
from stages.config import UserError
from stages.config.hooks import import_callable, load_hook, load_target


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory whose modules are found as stages.plugins.<name>."""
    monkeypatch.setattr(stages.plugins, "__path__", [str(tmp_path / "plugins")])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "requirements.lock").write_text("msgspec==0.0\nruamel.yaml==0.0\n")
    yield tmp_path / "plugins"
    for name in [name for name in sys.modules if name.startswith("stages.plugins.")]:
        del sys.modules[name]
    vars(stages.plugins).pop("mine", None)


def refusal(target: str) -> str:
    with pytest.raises(UserError) as caught:
        load_target(target, "train.loss._target_")
    return str(caught.value)


def test_without_a_hook_the_default_is_used() -> None:
    assert load_hook(None, "train.loss", json.dumps) is json.dumps


def test_a_plugin_is_loaded_with_its_arguments_bound(plugins: Path) -> None:
    (plugins / "mine.py").write_text("def loss(a, factor):\n    return a * factor\n")
    hook = {"_target_": "stages.plugins.mine.loss", "factor": 3}
    loaded = load_hook(hook, "train.loss", json.dumps)
    assert isinstance(loaded, partial)
    assert loaded(2) == 6


def test_a_plugin_without_arguments_is_the_callable_itself(plugins: Path) -> None:
    (plugins / "mine.py").write_text("class Loss:\n    pass\n")
    loaded = load_hook({"_target_": "stages.plugins.mine.Loss"}, "train.loss", dict)
    assert loaded.__name__ == "Loss"
    assert loaded.__module__ == "stages.plugins.mine"


def test_a_package_that_the_lock_names_is_loaded() -> None:
    assert load_target("msgspec.json.encode", "train.loss._target_") is msgspec.json.encode


def test_a_package_is_known_by_its_module_and_not_by_its_own_name() -> None:
    assert load_target("ruamel.yaml.YAML", "train.loss._target_").__name__ == "YAML"


@pytest.mark.parametrize(
    "target",
    ["torch.nn.functional.cross_entropy", "os.system", "builtins.eval", "mine.loss", "stages.cli"],
)
def test_code_from_elsewhere_is_refused(target: str) -> None:
    assert refusal(target) == (
        f"params.yaml: 'train.loss._target_' is {target!r}, which no stage depends on; put the "
        "code into stages/plugins/ (stages.plugins....), or name its package in requirements.lock"
    )


def test_without_a_lock_no_package_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").unlink()
    assert "which no stage depends on" in refusal("msgspec.json.encode")


def test_a_comment_in_the_lock_names_no_package(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text("# msgspec==0.0\n  msgspec==0.0\n")
    assert "which no stage depends on" in refusal("msgspec.json.encode")


def test_code_beside_the_plugins_is_refused(tmp_path: Path) -> None:
    assert "which no stage depends on" in refusal("stages.pluginsmine.loss")


def test_a_plugin_that_does_not_exist_is_refused_by_its_key() -> None:
    assert refusal("stages.plugins.mine.loss").startswith(
        "params.yaml: 'train.loss._target_' cannot be imported: "
    )


@pytest.mark.parametrize(
    "source",
    ["def loss(:\n", "raise ValueError\n", "raise ValueError('')\n", "import absent_module\n"],
)
def test_a_plugin_that_fails_when_imported_is_refused_in_one_line(
    plugins: Path, source: str
) -> None:
    (plugins / "mine.py").write_text(source)
    message = refusal("stages.plugins.mine.loss")
    assert message.startswith("params.yaml: 'train.loss._target_' cannot be imported: ")
    assert "\n" not in message


def test_why_a_plugin_cannot_be_imported_is_said(plugins: Path) -> None:
    (plugins / "mine.py").write_text("import absent_module\n")
    assert "absent_module" in refusal("stages.plugins.mine.loss")


def test_a_constant_is_no_callable(plugins: Path) -> None:
    (plugins / "mine.py").write_text("LOSS = 3\n")
    assert refusal("stages.plugins.mine.LOSS") == (
        "params.yaml: 'train.loss._target_' is 'stages.plugins.mine.LOSS', which is no callable"
    )


@pytest.mark.parametrize("hook", [{}, {"factor": 2}, {"_target_": None}, {"_target_": 3}])
def test_a_hook_without_a_target_is_refused(hook: dict[str, object]) -> None:
    with pytest.raises(UserError) as caught:
        load_hook(hook, "data.collator", dict)
    assert str(caught.value) == (
        "params.yaml: 'data.collator' needs a '_target_' that names a callable"
    )


def test_code_below_the_root_is_found_by_a_program_that_starts_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def answer():\n    return 42\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert import_callable("only_here.answer", "script")() == 42
