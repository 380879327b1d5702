"""An installed copy holds every package of the source."""

import tomllib

from .settings import ROOT


def test_every_package_is_installed() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    directories = {path.parent for path in (ROOT / "stages").rglob("*.py")}
    found = {".".join(("holdshort", *d.relative_to(ROOT / "stages").parts)) for d in directories}
    assert sorted(found) == sorted(name for name in listed if name != "holdshort.conf.gates")
