"""`holdshort explain` names what made two revisions differ, cause before effect."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from stages.commands.explain import run
from stages.config import UserError
from stages.provenance.hashing import sha256_file
from stages.provenance.records import SEAL, sealed

from ..project import Project
from .test_reproduce import change_row, snapshot
from .test_reruns import replace


@pytest.fixture
def recorded(cleared: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose last commit holds the results of a run, as the work directory."""
    cleared.commit("Keep the results")
    monkeypatch.chdir(cleared.path)
    return cleared


@pytest.mark.slow
def test_two_runs_are_explained_from_their_data_to_their_weights(
    recorded: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    change_row(recorded)
    recorded.set_params(train__learning_rate=0.002, run__seed=7, labels__turns="last")
    replace(recorded, "stages/training/loss.py", '"""The loss of', '"""A loss of')
    recorded.write("stages/plugins/mine.py", "ANSWER = 42\n")
    recorded.repro()
    recorded.commit("Change many things")
    before = snapshot(recorded)
    assert run("HEAD~1", "HEAD", Path("reports/explain")) == 1
    told = capsys.readouterr().out
    in_order = (
        "HEAD~1 -> HEAD: hash_data is the first stage whose outputs differ (then mask_report, ",
        "because of:",
        "data data/incidents.jsonl: ",
        "rows all: 240 rows (HEAD~1) -> 240 rows: 1 changed, 0 removed, 0 added, 0 in another",
        "row data/incidents.jsonl:17: ",
        "labels labels.turns: all (HEAD~1) -> last (HEAD)",
        "params train.learning_rate: 0.003 (HEAD~1) -> 0.002 (HEAD)",
        "code stages/plugins/mine.py (of mask_report, overfit_gate, gradient_probe, manifest, full",
        "code stages/training/loss.py (of mask_report, ",
        "comments and docstrings only",
        "seed run.seed: 42 (HEAD~1) -> 7 (HEAD)",
        "what came of it:",
        "tokens artifacts/tokens/train.arrow: ",
        "check overfit_gate: ",
        "metric mask_report.supervised_tokens: ",
        "metric full_train.train_loss: ",
        "step 0, loss: ",
        "tensor ",
    )
    places = [told.find(words) for words in in_order]
    assert -1 not in places, (in_order[places.index(-1)], told)
    assert places == sorted(places)
    page = recorded.read("reports/explain/index.html")
    assert "train.learning_rate" in page
    shutil.rmtree(recorded.path / "reports/explain")
    assert snapshot(recorded) == before


def test_a_revision_differs_in_nothing_from_one_that_only_adds_words(
    recorded: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.write("README.md", "A line.\n")
    recorded.commit("Write")
    recorded.git("update-ref", f"refs/exps/aa/{'b' * 38}/seed-1", "HEAD")
    assert run("HEAD~1", "seed-1", None) == 0
    assert capsys.readouterr().out.startswith("HEAD~1 -> seed-1: what they record is the same")
    assert run("HEAD~1", "HEAD", None) == 0
    told = capsys.readouterr().out
    assert told == "HEAD~1 -> HEAD: what they record is the same, bit by bit\n"


def test_params_and_data_that_were_not_run_are_named(
    recorded: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.set_params(run__seed=43)
    data = recorded.path / "data/incidents.jsonl"
    read = sha256_file(data)
    data.write_bytes(data.read_bytes().replace(b"disk", b"desk"))
    recorded.commit("Change seed and data, and do not run them")
    assert run("HEAD~1", "HEAD", Path("reports/explain")) == 1
    assert capsys.readouterr().out.splitlines() == [
        "HEAD~1 -> HEAD: what they record is the same, bit by bit, but not all was run since",
        "changed at HEAD, and not run:",
        f"  data data/incidents.jsonl: {read[:16]}... (run) -> {sha256_file(data)[:16]}... "
        "(changed since)",
        "  params run.seed: 42 (run) -> 43 (changed since)",
        "evidence: reports/explain/index.html",
    ]
    assert "Changed at HEAD, and not run" in recorded.read("reports/explain/index.html")


Change = Callable[[Project], None]


def edit_manifest(change: Callable[[Any], object]) -> Change:
    def edit(project: Project) -> None:
        manifest = project.json("training_manifest.json")
        change(manifest)
        project.write("training_manifest.json", json.dumps(manifest))

    return edit


def forget_training(project: Project) -> None:
    """As if the manifest had refused."""
    project.write("dvc.lock", project.read("dvc.lock").partition("  manifest:\n")[0])
    for name in ("training_manifest.json", "clearance.json", "metrics/full_train.json"):
        (project.path / name).unlink()


def test_a_run_that_was_refused_is_compared_as_far_as_it_went(
    recorded: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_training(recorded)
    recorded.commit("Refuse")
    assert run("HEAD~1", "HEAD", None) == 1
    told = capsys.readouterr().out
    assert "manifest is the first stage whose outputs differ (then full_train)" in told
    assert "not compared: training: HEAD records none" in told
    assert "not compared: code: HEAD records none that can be read" in told
    assert "(missing)" not in told


def change_records(manifest: Any) -> None:
    manifest["environment"]["cpu_threads"] = 8
    manifest["recorded"]["cpu_model"] = "Z80"
    manifest["tokenizer"]["chat_template_sha256"] = "x"
    manifest["gates"]["hash_data"]["status"] = "warn"


def test_each_kind_of_difference_is_named(
    recorded: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_manifest(change_records)(recorded)
    replace(recorded, "requirements.lock", "accelerate==", "accelerate==0")
    replace(recorded, "stages/hash_data.py", '"""Which data', '"""What data')
    recorded.commit("Change")
    assert run("HEAD~1", "HEAD", None) == 1
    told = capsys.readouterr().out
    in_order = (
        "because of:",
        "tokenizer chat_template_sha256: ",
        "code stages/hash_data.py (of hash_data, manifest)",
        "comments and docstrings only",
        "environment cpu_threads: 1 (HEAD~1) -> 8 (HEAD)",
        "machine cpu_model: ",
        "Z80 (HEAD)",
        "requirement accelerate: 1.",
        "what came of it:",
        "verdict hash_data: pass (HEAD~1) -> warn (HEAD)",
    )
    places = [told.find(words) for words in in_order]
    assert -1 not in places, told
    assert places == sorted(places)


def test_what_cannot_be_read_is_told(recorded: Project, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(recorded.path / ".dvc/cache")
    lock = recorded.read("dvc.lock")
    for name in ("artifacts/dataset", "models/final", "reports/full_train"):
        _, _, after = lock.partition(f"- path: {name}\n      hash: md5\n      md5: ")
        lock = lock.replace(after[:32], "0" * 32)
    recorded.write("dvc.lock", lock)
    edit_manifest(lambda manifest: manifest["data"]["files"].update({"data/incidents.jsonl": "0"}))(
        recorded
    )
    recorded.commit("Change")
    assert run("HEAD~1", "HEAD", None) == 1
    told = capsys.readouterr().out
    assert "data data/incidents.jsonl: " in told
    for words in (
        "not compared: rows: artifacts/dataset of HEAD~1 is not to be had",
        "not compared: training steps: reports/full_train/telemetry.csv of HEAD~1 is not to be had",
        "not compared: the tensors: models/final of HEAD~1 is not to be had",
    ):
        assert words in told, told


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("HEAD~1", "HEAD"), "nothing is recorded at HEAD~1: it has no dvc.lock"),
        (("HEAD", "nowhere"), "git does not know the revision 'nowhere' here"),
    ],
)
def test_what_cannot_be_told_is_said_in_a_sentence(
    recorded: Project, pair: tuple[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        run(*pair, None)


def test_digits_of_commits_are_shortened(
    recorded: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.set_params(run__seed=43)
    recorded.commit("Change the seed, and do not run it")
    commits = [recorded.git("rev-parse", name).strip() for name in ("HEAD~1", "HEAD")]
    assert run(commits[0], commits[1], None) == 1
    told = capsys.readouterr().out
    assert told.startswith(f"{commits[0][:12]} -> {commits[1][:12]}: what they record is the same")
    assert f"changed at {commits[1][:12]}, and not run:" in told
    assert commits[0][:13] not in told


def model_copy(project: Project, target: Path) -> Path:
    shutil.copytree(project.path / "models/final", target)
    return target


def test_models_are_compared_where_no_project_is(
    cleared: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model_copy(cleared, tmp_path / "old")
    new = model_copy(cleared, tmp_path / "new")
    monkeypatch.chdir(tmp_path)
    assert run("old", "new", None) == 0
    assert capsys.readouterr().out == "old -> new: the models are the same, bit by bit\n"
    edit_record(new, lambda record: record.update(manifest="0" * 64))
    assert run("old", "new", None) == 1
    assert "code digest of the run: " in capsys.readouterr().out
    weights = load_file(new / "model.safetensors")
    name = min(weights)
    weights[name].view(-1)[5] += 1.0
    (new / "model.safetensors").unlink()
    save_file(weights, new / "model.safetensors", metadata={"format": "pt"})
    edit_record(new, change_model_record)
    write_again(new / "README.md", lambda card: card.replace("| steps | 8 |", "| steps | 9 |"))
    assert run("old", "new", Path("page")) == 1
    told = capsys.readouterr().out
    in_order = (
        "old -> new: the models are not the same",
        "because of:",
        "digest tokens_sha256: ",
        "params train.learning_rate: 0.003 (old) -> 0.002 (new)",
        "environment gpu: None (old) -> NVIDIA H100 (new)",
        "seed run.seed: 42 (old) -> 7 (new)",
        "file model.safetensors of new, since it was written: ",
        "what came of it:",
        "metric steps: 8 (old) -> 9 (new)",
        "output model.safetensors: ",
        f"tensor {name} of model.safetensors, float32 [",
        "not compared: code: a model records no digest of it alone; give the revisions",
    )
    places = [told.find(words) for words in in_order]
    assert -1 not in places, (in_order[places.index(-1)], told)
    assert places == sorted(places)
    assert "largest difference 1 at [" in told
    assert "train.learning_rate" in (tmp_path / "page/index.html").read_text(encoding="utf-8")


def change_model_record(record: dict[str, Any]) -> None:
    record["clearance"]["tokens_sha256"] = "1" * 64
    record["params"] |= {"train.learning_rate": 0.002, "run.seed": 7}
    record["environment"]["gpu"] = "NVIDIA H100"


def edit_record(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    def edit(text: str) -> str:
        record = {key: one for key, one in json.loads(text).items() if key != SEAL}
        change(record)
        return json.dumps(sealed(record))

    write_again(directory / "provenance.json", edit)


def write_again(file: Path, change: Callable[[str], str]) -> None:
    text = change(file.read_text(encoding="utf-8"))
    file.unlink()  # DVC may have linked it to its cache
    file.write_text(text, encoding="utf-8")


def test_a_model_is_compared_with_that_of_a_revision(
    recorded: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = model_copy(recorded, tmp_path / "copy")
    shutil.rmtree(recorded.path / "models")
    assert run("HEAD", str(copy), None) == 0
    assert capsys.readouterr().out == f"HEAD -> {copy}: the models are the same, bit by bit\n"
    recorded.git("branch", "models")
    (recorded.path / "models").mkdir()  # no model: the branch is meant
    assert run("models", "HEAD", None) == 0


def damage_weights(project: Project) -> None:
    weights = project.path / "models/final/model.safetensors"
    weights.unlink()
    weights.write_bytes(b"\xff" * 100)


@pytest.mark.parametrize(
    ("spoil", "pair", "words"),
    [
        (
            lambda p: shutil.rmtree(p.path / ".dvc/cache"),
            ("HEAD", "models/final"),
            "models/final of HEAD is not in DVC's cache",
        ),
        (lambda p: None, ("models/final", "data"), "data/provenance.json is missing"),
        (lambda p: None, ("nowhere", "models/final"), "git does not know the revision 'nowhere'"),
        (damage_weights, ("HEAD", "models/final"), "model.safetensors cannot be read as weights"),
    ],
)
def test_a_model_that_cannot_be_compared_is_said_in_a_sentence(
    recorded: Project, spoil: Change, pair: tuple[str, str], words: str
) -> None:
    spoil(recorded)
    with pytest.raises(UserError, match=words):
        run(*pair, None)
