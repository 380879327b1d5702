"""A project with small tokens and a small model, in a process that is pinned."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages.chat.token_store import TOKENS, TokenMeta

from ..parts import make_rows, pinned_process, write_store
from ..settings import ROOT, params_tree


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenMeta]:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    with Path("params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(params_tree(), file)
    with pinned_process():
        write_store(TOKENS, "validation", make_rows(4))
        yield write_store(TOKENS, "train", make_rows(12))
