"""A base model, a checkpoint, the record of a step: nothing of them is run, nothing is read beside
them, and a damaged one is refused."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from stages.chat.token_store import TokenStore, read_meta
from stages.config import UserError
from stages.config.launch import guarded
from stages.models.build import build_model
from stages.provenance.base_model import keep
from stages.training.checkpoint import CheckpointDirectory, load_state
from stages.training.incident import Incident, anomaly_root, keep_incident

from ..models.llama import hub_model, write_llama
from ..parts import make_rows, write_store
from .damage import flips, truncations
from .outcome import Outcome, assert_refused, holdshort, observe

pytestmark = pytest.mark.slow

Edit = Callable[[Path], object]


class Evil:
    """Its unpickling leaves a file in the current directory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


PICKLES: dict[str, Callable[[Path], object]] = {
    "as torch saves": lambda path: torch.save({"model": Evil()}, path),
    "as torch once saved": lambda path: torch.save(
        {"model": Evil()}, path, _use_new_zipfile_serialization=False
    ),
    "bare": lambda path: path.write_bytes(pickle.dumps(Evil())),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("sound") / "llama")


@pytest.fixture
def model(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base model to be spoiled, an empty store, and an empty current directory."""
    monkeypatch.setenv("HOLDSHORT_MODELS", str(tmp_path / "store"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Path(shutil.copytree(sound, tmp_path / "llama"))


def load(model: Path, **values: Any) -> Outcome:
    """Keep the directory and build the model from it, as the gates do."""

    def work() -> None:
        params = hub_model(keep(model, "llama"), **values)
        build_model(params, 2048, torch.device("cpu"))

    return observe(lambda: guarded(work))


def write(name: str, content: object) -> Edit:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda model: (model / name).write_bytes(text)


def config(**changes: object) -> Edit:
    def edit(model: Path) -> None:
        whole = json.loads((model / "config.json").read_text(encoding="utf-8"))
        write("config.json", {**whole, **changes})(model)

    return edit


def index(target: object) -> Edit:
    """All tensors in the file `target`, by an index; the weights themselves lie outside."""

    def edit(model: Path) -> None:
        weights = model / "model.safetensors"
        with safe_open(str(weights), "np") as file:
            names = list(file.keys())
        weights.rename(model.parent / "outside.safetensors")
        shutil.copy(model.parent / "outside.safetensors", model / "other.safetensors")
        table = {"metadata": {}, "weight_map": dict.fromkeys(names, target)}
        write("model.safetensors.index.json", table)(model)

    return edit


def adapter(model: Path) -> None:
    shutil.copytree(model, model.parent / "elsewhere")
    write("adapter_config.json", {"base_model_name_or_path": "../elsewhere"})(model)


SPOILED: dict[str, tuple[Edit, dict[str, Any]]] = {
    "config of a list": (write("config.json", []), {}),
    "config of null": (write("config.json", None), {}),
    "config of nothing": (write("config.json", b""), {}),
    "config of brackets": (write("config.json", b'{"a":' * 100_000), {}),
    "code of its own": (config(auto_map={"AutoModelForCausalLM": "evil.M"}), {}),
    "an unknown kind": (config(model_type="evil"), {}),
    "a kind that is a number": (config(model_type=5), {}),
    "a negative width": (config(hidden_size=-1), {}),
    "a width that is text": (config(hidden_size="wide"), {}),
    "another width": (config(hidden_size=128), {}),
    "no heads": (config(num_attention_heads=0), {}),
    "no layers": (config(num_hidden_layers=0), {}),
    "a vocabulary of 10^10": (config(vocab_size=10**10), {}),
    "an activation that is none": (config(hidden_act="__import__"), {}),
    "positions that are a number": (config(rope_parameters=5), {}),
    "a quantisation that is a number": (config(quantization_config=5), {}),
    "generation settings of a list": (write("generation_config.json", []), {}),
    "weights elsewhere": (index("../outside.safetensors"), {}),
    "weights at the root": (index("/etc/passwd"), {}),
    "weights that are not there": (index("gone.safetensors"), {}),
    "weights under a number": (index(5), {}),
    "weights in a pickle by an index": (index("weights.bin"), {}),
    "an index of a list": (write("model.safetensors.index.json", []), {}),
    "an index of brackets": (write("model.safetensors.index.json", b"[" * 100_000), {}),
    "an adapter whose base lies elsewhere": (adapter, {}),
    "a GGUF file elsewhere": (
        lambda model: (model.parent / "a.gguf").write_bytes(b"GGUF"),
        {"adapter": "none", "gguf_file": "../a.gguf"},
    ),
    "a GGUF file that is not there": (
        lambda model: None,
        {"adapter": "none", "gguf_file": "a.gguf"},
    ),
    "a GGUF file of noise": (
        write("a.gguf", b"GGUF" + b"\xff" * 200),
        {"adapter": "none", "gguf_file": "a.gguf"},
    ),
    "a tokenizer of noise": (write("tokenizer.json", b"{"), {"tokenizer": "data/tokenizer"}),
    "a link to itself": (lambda model: (model / "a").symlink_to(model / "a"), {}),
    "a link to nothing": (lambda model: (model / "a").symlink_to(model / "b"), {}),
    "a pipe": (lambda model: os.mkfifo(model / "a"), {}),
}


def test_the_sound_model_is_loaded(model: Path) -> None:
    assert not load(model).trace


@pytest.mark.parametrize("name", SPOILED)
def test_a_base_model_that_cannot_be_loaded_is_refused(model: Path, name: str) -> None:
    edit, values = SPOILED[name]
    if values.get("tokenizer"):
        shutil.copytree(model, "data/tokenizer")
    edit(model)
    assert_refused(load(model, **values))


def test_links_that_go_round_are_kept_once(model: Path) -> None:
    (model / "round").symlink_to(model)
    assert not load(model).trace


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_is_not_run_for_weights(model: Path, name: str) -> None:
    (model / "model.safetensors").unlink()
    PICKLES[name](model / "pytorch_model.bin")
    assert_refused(load(model), "pickled weights only", "model.allow_pickle")
    assert_refused(load(model, allow_pickle=True), "more than tensors and plain data")
    assert not Path("pwned").exists()


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_is_no_alternative_to_safetensors_of_another_name(model: Path, name: str) -> None:
    (model / "model.safetensors").rename(model / "other.safetensors")
    PICKLES[name](model / "pytorch_model.bin")
    assert_refused(load(model), "model.safetensors")
    assert not Path("pwned").exists()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_damaged_file_is_refused_or_another_model(model: Path, file: str) -> None:
    """What was damaged before it was kept may be a model; what is damaged later never is."""
    content = (model / file).read_bytes()
    for what, spoiled in (*truncations(content, 9, 2), *flips(content, 9, 6)):
        (model / file).write_bytes(spoiled)
        done = load(model)
        assert not done.trace, f"{what}: {done}"
        assert done.code in (None, 2)
        shutil.rmtree("../store", ignore_errors=True)


def test_every_flip_in_a_kept_model_is_seen(model: Path) -> None:
    revision = keep(model, "llama")
    [kept] = Path("../store").iterdir()
    for file in sorted(kept.iterdir()):
        content = file.read_bytes()
        for what, spoiled in flips(content, 11, 2):
            file.write_bytes(spoiled)
            done = observe(
                lambda: guarded(lambda: build_model(hub_model(revision), 2048, torch.device("cpu")))
            )
            assert_refused(done, "was changed")
            assert done.code == 2, what
        file.write_bytes(content)


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_is_not_run_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints = CheckpointDirectory("f" * 64, keep=2, root=Path("checkpoints"))
    checkpoints.path.mkdir(parents=True)
    staged = checkpoints.path / "staged"
    PICKLES[name](staged)
    from stages.training.checkpoint import digest_of_file

    evil = checkpoints.path / f"step-5-{digest_of_file(staged)}.pt"
    staged.rename(evil)
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        load_state(evil)
    assert checkpoints.load_latest() is None
    assert "is damaged and was removed" in capsys.readouterr().out
    assert not Path("pwned").exists()


def test_every_damage_to_a_checkpoint_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = CheckpointDirectory("f" * 64, keep=2, root=tmp_path)
    checkpoints.path.mkdir(parents=True)
    checkpoints.save(5, {"model": torch.ones(8)})
    [path] = checkpoints.path.glob("step-5-*.pt")
    content = path.read_bytes()
    for what, spoiled in (*truncations(content, 2, 4), *flips(content, 2, 12)):
        path.write_bytes(spoiled)
        assert checkpoints.load_latest() is None, what
    path.write_bytes(content)
    assert checkpoints.load_latest() is not None
    capsys.readouterr()


def test_other_files_in_the_directory_are_no_checkpoints(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory("f" * 64, keep=2, root=tmp_path)
    checkpoints.path.mkdir(parents=True)
    for name in ("step-.pt", "step-abc.pt", "step--1.pt", "step-5x.pt", f"step-{'9' * 5000}"[:200]):
        (checkpoints.path / name).write_bytes(b"x")
    assert checkpoints.load_latest() is None


@pytest.fixture
def incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a step that went wrong, with a checkpoint."""
    monkeypatch.chdir(tmp_path)
    checkpoints = CheckpointDirectory("f" * 64, keep=2, root=Path("checkpoints"))
    checkpoints.path.mkdir(parents=True)
    checkpoints.save(5, {"model": torch.ones(8)})
    record = Incident("f" * 64, 7, "the loss is nan", "nan", "1.0", 0.1, ["rows.jsonl:1"])
    return keep_incident(record, make_rows(2), checkpoints.latest())


def test_every_damage_to_the_checkpoint_of_a_step_is_seen(incident: Path) -> None:
    record = Incident.read(incident)
    path = incident / "checkpoint.pt"
    content = path.read_bytes()
    assert record.checkpoint_in(incident) == path
    path.unlink()  # it is linked to the one below checkpoints/
    assert record.checkpoint_in(incident) is None
    for what, spoiled in (*truncations(content, 4, 2), *flips(content, 4, 6)):
        path.write_bytes(spoiled)
        with pytest.raises(UserError, match="is not the checkpoint that was kept"):
            record.checkpoint_in(incident)
        assert what


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff", b"{}", b"[" * 100_000, b'{"run": 5}']
)
def test_a_record_of_a_step_that_is_none_is_refused(incident: Path, content: bytes) -> None:
    (incident / "incident.json").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as the record of a step"):
        Incident.read(incident)
    assert anomaly_root() == Path("anomalies")


def test_a_damaged_record_of_a_step_is_refused_or_still_one(incident: Path) -> None:
    content = (incident / "incident.json").read_bytes()
    for what, spoiled in (*truncations(content, 6, 3), *flips(content, 6, 8)):
        (incident / "incident.json").write_bytes(spoiled)
        done = observe(lambda: guarded(lambda: Incident.read(incident)))
        assert not done.trace, f"{what}: {done}"


STORES: dict[str, bytes] = {
    "nothing": b"",
    "the mark alone": b"ARROW1\0\0",
    "noise": bytes(range(256)) * 16,
    "a pickle": pickle.dumps(Evil()),
}


@pytest.mark.parametrize("name", STORES)
def test_tokens_that_are_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.arrow").write_bytes(STORES[name])
    with pytest.raises(UserError, match=r"train.arrow cannot be read as tokens"):
        TokenStore("train", tmp_path)
    assert not Path("pwned").exists()


def test_damaged_tokens_are_refused_or_have_as_many_rows(tmp_path: Path) -> None:
    """A flip within the ids of a token leaves a store; gates hash it, and `manifest` compares."""
    rows = make_rows(30)
    write_store(tmp_path, "train", rows)
    path = tmp_path / "train.arrow"
    content = path.read_bytes()
    for what, spoiled in (*truncations(content, 8, 10), *flips(content, 8, 60)):
        path.write_bytes(spoiled)
        try:
            store = TokenStore("train", tmp_path)
            lengths = [len(row.input_ids) == len(row.labels) == len(row.roles) for row in store]
        except UserError:
            continue
        assert len(lengths) == len(rows) and all(lengths), what


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"vocab_size": "x"}']
)
def test_facts_of_tokens_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    write_store(tmp_path, "train", make_rows(2))
    (tmp_path / "meta.json").write_bytes(content)
    with pytest.raises(UserError, match=r"meta.json cannot be read as facts of tokens"):
        read_meta(tmp_path)


@pytest.mark.parametrize("name", ["../evil", "/etc", ".hidden", "a/b", ""])
def test_a_name_cannot_lead_out_of_the_store(model: Path, name: str) -> None:
    done = holdshort("keep", model, name)
    assert_refused(done, "is no name for a model")
    assert not Path("../store").exists()
