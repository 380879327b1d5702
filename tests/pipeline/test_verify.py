"""`holdshort verify` names every kind of drift with both values, and nothing where nothing is."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from stages.commands.recompute import compare_numbers
from stages.commands.verify import run
from stages.config import UserError
from stages.models.record import RECORD, read_record
from stages.provenance.hashing import sha256_file

from ..project import Project

Change = Callable[[Project], None]


def test_nothing_differs_from_a_run_that_was_just_made(cleared: Project) -> None:
    for target in ((), ("models/final",)):
        done = cleared.holdshort("verify", *target)
        assert done.returncode == 0, done.stdout
        assert "everything is as recorded; the same bits are expected" in done.stdout
    cleared.commit("Keep the results")
    for target in ((), ("HEAD",)):
        assert cleared.holdshort("verify", *target).returncode == 0


def test_a_model_is_verified_by_itself(cleared: Project, tmp_path: Path) -> None:
    alone = Project(tmp_path / "elsewhere")
    alone.path.mkdir()
    (cleared.path / "models/final").rename(alone.path / "model")
    command = (
        f"import sys; sys.path.insert(0, {str(cleared.path)!r}); sys.argv[1:] = "
        "['verify', 'model']; from stages.cli import main; main()"
    )
    assert alone.run("python", "-c", command).returncode == 0
    weights = alone.path / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    alone.write("model/extra.py", "")
    done = alone.run("python", "-c", command)
    assert done.returncode == 1
    assert "model/model.safetensors" in done.stdout
    assert "model/extra.py" in done.stdout


def edit_json(path: str, change: Callable[[dict[str, Any]], None]) -> Change:
    def edit(project: Project) -> None:
        content = project.json(path)
        change(content)
        (project.path / path).unlink()  # DVC may have linked it to its cache
        project.write(path, json.dumps(content))

    return edit


def append(path: str, text: str) -> Change:
    return lambda project: project.write(path, project.read(path) + text)


def flip_last_byte(project: Project) -> None:
    path = project.path / "models/final/model.safetensors"
    spoiled = path.read_bytes()[:-1] + b"\x7f"
    path.unlink()
    path.write_bytes(spoiled)


CHANGES: dict[str, tuple[Change, tuple[str, ...], int]] = {
    "data": (append("data/incidents.jsonl", "\n"), ("data/incidents.jsonl", "another run"), 1),
    "tokenizer": (
        append("data/tokenizer/chat_template.jinja", "\n"),
        ("tokenizer", "data/tokenizer/chat_template.jinja", "another run"),
        1,
    ),
    "rows": (
        append("artifacts/dataset/train.jsonl", "\n"),
        ("rows", "artifacts/dataset/train.jsonl", "another run"),
        1,
    ),
    "training_param": (
        lambda project: project.set_params(train__learning_rate=0.0015),
        ("train.learning_rate", "0.003", "0.0015", "not comparable"),
        1,
    ),
    "limit": (
        lambda project: project.set_params(gates__mask__print_rows=2),
        ("gates.mask.print_rows", "the same bits are expected"),
        0,
    ),
    "training_code": (
        append("stages/training/loss.py", "\nUNUSED = 1\n"),
        ("full_train", "not comparable"),
        1,
    ),
    "gate_code": (
        append("stages/hash_data.py", "\nUNUSED = 1\n"),
        ("hash_data", "the same bits are expected"),
        0,
    ),
    "verdict": (
        edit_json("gates/hash_data.json", lambda verdict: verdict.update(not_covered=[])),
        ("verdict", "hash_data", "not comparable"),
        1,
    ),
    "environment": (
        edit_json(
            "training_manifest.json",
            lambda manifest: manifest["environment"].update(cpu_capability="AVX9"),
        ),
        ("cpu_capability", "AVX9", "statistically equal"),
        1,
    ),
    "manifest": (
        edit_json("training_manifest.json", lambda manifest: manifest.update(digest="0" * 64)),
        ("manifest", "0000000000000000...", "not comparable"),
        1,
    ),
    "machine": (
        edit_json(
            "training_manifest.json",
            lambda manifest: manifest["recorded"].update(cpu_model="Z80"),
        ),
        ("cpu_model", "Z80", "the same bits are expected"),
        0,
    ),
    "model": (flip_last_byte, ("models/final/model.safetensors", "not comparable"), 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_kind_of_drift_is_named_with_what_it_means(
    cleared: Project,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change, words, code = CHANGES[name]
    monkeypatch.chdir(cleared.path)
    change(cleared)
    assert run(None) == code
    printed = capsys.readouterr().out
    assert [word for word in words if word not in printed] == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: p.write("training_manifest.json", "{"), "cannot be read as JSON"),
        (lambda p: p.write("training_manifest.json", "{}"), "is no record of this project"),
        (lambda p: p.write("training_manifest.json", "[]"), "is no record of this project"),
        (lambda p: (p.path / "training_manifest.json").unlink(), "is missing"),
        (lambda p: p.write("models/final/provenance.json", "{}"), "cannot be read as the record"),
        (lambda p: p.git("clean", "-fdxq", "models"), "models/final/provenance.json missing; `dvc"),
        (lambda p: p.git("clean", "-fdxq", "gates"), "gates/overfit_gate.json and 1 more missing"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused_in_a_sentence(
    cleared: Project, spoil: Change, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cleared.path / "models/final/provenance.json").chmod(0o644)
    monkeypatch.chdir(cleared.path)
    spoil(cleared)
    with pytest.raises(UserError, match=words):
        run(None)


def test_an_unknown_target_is_refused_in_a_sentence(cleared: Project) -> None:
    done = cleared.holdshort("verify", "nowhere")
    assert done.returncode == 2
    assert "nowhere is neither a directory with provenance.json nor a revision" in done.stdout


def forge_weights(project: Project) -> None:
    """Other weights, and a record of them that is sealed anew."""
    model = project.path / "models/final"
    weights, record = model / "model.safetensors", read_record(model)
    tensors = load_file(weights)
    weights.unlink()  # DVC may have linked it to its cache
    save_file({name: 0.9 * tensor for name, tensor in tensors.items()}, weights)
    digest = sha256_file(weights)
    (model / RECORD).unlink()
    replace(record, files={**record.files, weights.name: digest}).write(model)


def forge_metrics(project: Project) -> None:
    edit_json("metrics/full_train.json", lambda all: all["full_train"].update(exact_match=1.0))(
        project
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forge", "named"), [(forge_weights, "validation_loss"), (forge_metrics, "exact_match")]
)
def test_what_is_forged_with_its_record_is_seen_when_it_is_computed_again(
    cleared: Project, forge: Change, named: str
) -> None:
    sound = cleared.holdshort("verify", "--deep")
    assert sound.returncode == 0, sound.stdout
    assert "models/final computes the numbers of metrics/full_train.json" in sound.stdout
    forge(cleared)
    assert cleared.holdshort("verify").returncode == 0
    done = cleared.holdshort("verify", "--deep")
    assert done.returncode == 1
    assert f"{named}, computed again" in done.stdout


def test_a_deep_look_takes_the_work_tree_only(cleared: Project) -> None:
    done = cleared.holdshort("verify", "models/final", "--deep")
    assert done.returncode == 2
    assert "name no other target" in done.stdout


def test_other_environments_may_move_the_last_digits_and_one_answer() -> None:
    recorded = {"validation_loss": 1.0, "exact_match": 0.5, "stop_rate": 1.0, "answers": 10}
    moved = {**recorded, "validation_loss": 1.0005, "exact_match": 0.6}
    assert list(compare_numbers(recorded, moved, same_bits=False)) == []
    named = [drift.name for drift in compare_numbers(recorded, moved, same_bits=True)]
    assert named == ["validation_loss, computed again", "exact_match, computed again"]
    worse = {**recorded, "validation_loss": 1.01, "exact_match": 0.3}
    assert len(list(compare_numbers(recorded, worse, same_bits=False))) == 2
    lost = {**recorded, "validation_loss": math.nan}
    assert len(list(compare_numbers(recorded, lost, same_bits=False))) == 1
