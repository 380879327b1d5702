"""models/final/ is written whole or not at all, and with the same bytes for the same model."""

import datetime
import json
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from stages.chat.tokenizer import ChatTokenizer
from stages.config import UserError
from stages.models.record import ModelRecord
from stages.models.save import distinct_tensors, save_model, write_plain
from stages.models.tiny_gpt import TinyGPT

from ..parts import Bigram
from ..settings import ROOT, run_python

RECORD = partial(ModelRecord.of, manifest="0" * 64, clearance={}, environment={}, params={})


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(str(ROOT / "data/tokenizer"), datetime.date(2026, 1, 1))


def make_model() -> TinyGPT:
    torch.manual_seed(0)
    return TinyGPT(vocab_size=32, d_model=16, n_layers=1, n_heads=2, max_length=16)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_a_model_is_saved_with_all_that_it_takes_to_use_it(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    target = tmp_path / "models/final"
    save_model(
        target,
        partial(write_plain, model=make_model(), config={"b": 1, "a": [2]}),
        tokenizer,
        "# Card\n",
        RECORD,
    )
    files = contents(target)
    assert {"model.safetensors", "config.json", "README.md", "tokenizer.json"} <= set(files)
    assert files["README.md"] == b"# Card\n"
    assert files["config.json"] == b'{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["final"]


def test_the_saved_weights_are_the_models_own(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    model = make_model()
    save_model(
        tmp_path / "final", partial(write_plain, model=model, config={}), tokenizer, "", RECORD
    )
    saved = load_file(tmp_path / "final/model.safetensors")
    state = model.state_dict()
    assert [name for name in saved if not saved[name].equal(state[name])] == []
    other = TinyGPT(vocab_size=32, d_model=16, n_layers=1, n_heads=2, max_length=16)
    missing, unexpected = other.load_state_dict(saved, strict=False)
    assert unexpected == []
    assert set(missing) <= {"lm_head.weight", "embedding.weight"}
    ids = torch.arange(2, 10)[None]
    assert other(ids).logits.equal(model(ids).logits)


def test_a_shared_matrix_is_saved_once() -> None:
    model = Bigram()
    assert list(distinct_tensors(model)) == [
        *("embedding.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"),
    ]
    model.head.weight = model.embedding.weight
    assert list(distinct_tensors(model)) == [
        *("embedding.weight", "norm.weight", "norm.bias", "head.bias"),
    ]


def test_empty_tensors_are_each_saved() -> None:
    model = nn.Module()
    model.register_buffer("one", torch.zeros(0))
    model.register_buffer("other", torch.zeros(0))
    assert list(distinct_tensors(model)) == ["one", "other"]


def test_a_transposed_view_is_another_tensor(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    model = nn.Module()
    matrix = torch.arange(9.0).reshape(3, 3)
    model.register_buffer("forward_map", matrix)
    model.register_buffer("backward_map", matrix.T)
    save_model(
        tmp_path / "final", partial(write_plain, model=model, config={}), tokenizer, "", RECORD
    )
    saved = load_file(tmp_path / "final/model.safetensors")
    assert saved["forward_map"].equal(matrix)
    assert saved["backward_map"].equal(matrix.T)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    for name in ("one", "other"):
        save_model(
            tmp_path / name,
            partial(write_plain, model=make_model(), config={"b": 1, "a": 2}),
            tokenizer,
            "card",
            RECORD,
        )
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_the_weights_file_has_one_line_of_metadata(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    save_model(
        tmp_path / "final",
        partial(write_plain, model=make_model(), config={}),
        tokenizer,
        "",
        RECORD,
    )
    with safe_open(tmp_path / "final/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_an_earlier_model_is_replaced_whole(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final/adapter.safetensors").touch()
    (tmp_path / "final.partial").mkdir()
    (tmp_path / "final.partial/rest").touch()
    save_model(
        tmp_path / "final",
        partial(write_plain, model=make_model(), config={}),
        tokenizer,
        "",
        RECORD,
    )
    assert "adapter.safetensors" not in contents(tmp_path / "final")
    assert "rest" not in contents(tmp_path / "final")
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


FULL_DISK = """
import resource, signal, sys
from functools import partial
from pathlib import Path
from torch import nn
from stages.config.launch import guarded
from stages.models.record import ModelRecord
from stages.models.save import save_model, write_plain

record = partial(ModelRecord.of, manifest="", clearance={}, environment={}, params={})

class Tokenizer:
    def save(self, directory):
        (directory / "tokenizer.json").write_text("{}")

first = partial(write_plain, model=nn.Linear(2, 2), config={"width": 2})
save_model(Path("models/final"), first, Tokenizer(), "first", record)
if sys.argv[1] == "killed":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
second = partial(write_plain, model=nn.Linear(99, 99), config={})
guarded(lambda: save_model(Path("models/final"), second, Tokenizer(), "second", record))
"""


def test_a_full_disk_keeps_the_earlier_model(tmp_path: Path) -> None:
    done = run_python(FULL_DISK, "full", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: models/final could not be written (")
    assert "free space on the disk" in done.stderr
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["final"]
    assert (tmp_path / "models/final/README.md").read_text() == "first"
    assert json.loads((tmp_path / "models/final/config.json").read_text()) == {"width": 2}


def test_a_process_killed_while_it_writes_leaves_the_earlier_model(tmp_path: Path) -> None:
    done = run_python(FULL_DISK, "killed", cwd=tmp_path)
    assert done.returncode == -signal.SIGXFSZ
    assert (tmp_path / "models/final/README.md").read_text() == "first"
    assert load_file(tmp_path / "models/final/model.safetensors")["weight"].shape == (2, 2)


def test_what_is_not_the_disks_fault_is_not_blamed_on_it(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    config = {"since": datetime.date(2026, 1, 1)}
    with pytest.raises((UserError, TypeError)) as caught:
        save_model(
            tmp_path / "final",
            partial(write_plain, model=make_model(), config=config),
            tokenizer,
            "",
            RECORD,
        )
    assert "free space" not in str(caught.value)
