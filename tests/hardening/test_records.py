"""Verdicts, manifest, clearance, the record of a model, metrics: damaged ones clear nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.chat.conversation import read_conversations
from stages.config import UserError, load_params
from stages.config.launch import guarded
from stages.full_train import authorise_here

from ..project import Project
from .damage import flips, truncations
from .outcome import Outcome, assert_refused, holdshort, inside, observe, stage

pytestmark = pytest.mark.slow

CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "a bracket": b"{",
    "an object of nothing": b"{}",
    "a list": b"[]",
    "null": b"null",
    "a text": b'"a"',
    "no UTF-8": b'{"a": "\xff"}',
    "brackets without end": b"[" * 100_000,
    "objects without end": b'{"a": ' * 100_000,
    "a number of 5000 digits": b'{"schema": ' + b"9" * 5000 + b"}",
    "a pickle": b"cos\nsystem\n(S'touch pwned'\ntR.",
}
RECORDS = {
    "gates/hash_data.json": ("attest", "manifest", "authorise", "verify"),
    "gates/gradient_probe.json": ("attest", "manifest", "authorise"),
    "training_manifest.json": ("attest", "authorise", "verify"),
    "clearance.json": ("attest", "authorise", "verify"),
    "models/final/provenance.json": ("attest", "verify", "verify_model"),
    "artifacts/tokens/meta.json": ("manifest",),
    "metrics/gradient_probe.json": ("manifest",),
    "metrics/hash_data.json": ("manifest",),
}
"""Record -> the commands that read it."""
OUTSIDE = ("/etc/hostname", "../../../etc/hostname", "artifacts/../../x", "", "a\0b")
COVERED = ("gates", "models", "clearance.json", "training_manifest.json")
"""Records every byte of which is covered by a digest, of theirs or of another record."""


@pytest.fixture(scope="module")
def project(cleared_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return cleared_template.copy(tmp_path_factory.mktemp("records") / "project")


@pytest.fixture
def whole(project: Project) -> Iterator[Project]:
    """The project, in which everything is put back as it was after the test."""
    paths = [project.path / name for name in RECORDS]
    before = {path: path.read_bytes() for path in paths}
    with inside(project.path):
        yield project
    for path, content in before.items():
        put(path, content)


def put(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # it may be linked to DVC's cache
    path.write_bytes(content)


def run(command: str) -> Outcome:
    if command == "verify":
        return holdshort("verify")
    if command == "attest":
        return holdshort("attest")
    if command == "verify_model":
        return holdshort("verify", "models/final")
    if command == "authorise":
        return observe(lambda: guarded(lambda: authorise_here(load_params("full_train"))))
    return stage(command)


def assert_noticed(outcome: Outcome) -> None:
    """Refused in a sentence, or in a screen that names what stands against the run."""
    assert not outcome.trace, str(outcome)
    assert outcome.code in (1, 2), str(outcome)
    assert "Traceback" not in outcome.errors, str(outcome)


def test_the_sound_records_are_accepted(whole: Project) -> None:
    for command in ("verify", "verify_model", "attest", "manifest"):
        assert run(command).code == 0
    assert not run("authorise").trace


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("record", RECORDS)
def test_what_is_no_record_clears_nothing(whole: Project, record: str, name: str) -> None:
    put(whole.path / record, CONTENTS[name])
    for command in RECORDS[record]:
        assert_noticed(run(command))
    assert not whole.exists("pwned")


@pytest.mark.parametrize("record", RECORDS)
def test_no_flip_in_a_record_is_overlooked(whole: Project, record: str) -> None:
    content = (whole.path / record).read_bytes()
    for what, spoiled in (*truncations(content, 1, 2), *flips(content, 1, 8)):
        if spoiled.strip() == content.strip():
            continue
        put(whole.path / record, spoiled)
        done = run(RECORDS[record][-1])
        assert not done.trace, f"{what}: {done}"
        if record.startswith(COVERED) and RECORDS[record][-1].startswith("verify"):
            noticed = done.code != 0 or "changed since" in done.output
            assert noticed, f"{what}: {done}"


@pytest.mark.parametrize("file", ["models/final/model.safetensors", "artifacts/tokens/train.arrow"])
def test_no_flip_in_what_a_record_names_is_overlooked(whole: Project, file: str) -> None:
    content = (whole.path / file).read_bytes()
    for what, spoiled in (*truncations(content, 1, 1), *flips(content, 1, 5)):
        put(whole.path / file, spoiled)
        done = holdshort("verify")
        assert (done.code, file in done.output) == (1, True), f"{what}: {done}"
    put(whole.path / file, content)


def edit(path: Path, *keys: str, value: Any) -> None:
    """Set a value of a JSON file, whose seal then does not hold any more."""
    content = json.loads(path.read_text(encoding="utf-8"))
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    put(path, json.dumps(content).encode())


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_in_a_record_cannot_lead_out_of_the_project(whole: Project, name: str) -> None:
    digest = "0" * 64
    edit(whole.path / "training_manifest.json", "data", "files", name, value=digest)
    assert_refused(run("verify"), "does not lie in the project")
    put(whole.path / "training_manifest.json", b"{}")
    edit(whole.path / "gates/hash_data.json", "inputs", name, value=digest)
    assert_noticed(run("manifest"))


@pytest.mark.parametrize("name", ["../evil@" + "0" * 64 + "/x", "a@" + "0" * 64 + "/../../x"])
def test_a_name_of_a_model_cannot_lead_out_of_the_store(whole: Project, name: str) -> None:
    edit(whole.path / "gates/gradient_probe.json", "inputs", name, value="0" * 64)
    assert_noticed(run("manifest"))
    edit(whole.path / "training_manifest.json", "data", "files", name, value="0" * 64)
    assert_refused(run("verify"))


@pytest.mark.parametrize("name", OUTSIDE[:3])
def test_a_name_in_the_record_of_a_model_cannot_lead_out_of_it(whole: Project, name: str) -> None:
    from stages.models.record import read_record
    from stages.provenance.records import sealed

    path = whole.path / "models/final/provenance.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["record_sha256"]
    content["files"][name] = "0" * 64
    put(path, json.dumps(sealed(content)).encode())
    assert name in read_record(path.parent).files
    assert_refused(run("verify_model"), "does not lie in models/final")


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("data",), 5),
        (("data", "files"), []),
        (("data", "files"), {"data/incidents.jsonl": 5}),
        (("params",), []),
        (("params", "data.path"), 5),
        (("gates",), {"hash_data": 5}),
        (("gates", "hash_data", "checks"), 5),
        (("code",), {"nothing": "x"}),
        (("code",), 5),
        (("environment",), 5),
        (("recorded",), 5),
        (("git",), 5),
        (("digest",), 5),
        (("tokens",), None),
    ],
)
def test_a_manifest_of_other_types_is_noticed(
    whole: Project, keys: tuple[str, ...], value: object
) -> None:
    edit(whole.path / "training_manifest.json", *keys, value=value)
    for command in ("verify", "authorise"):
        done = run(command)
        assert not done.trace, str(done)
    done = run("verify")
    assert done.code in (1, 2) or "changed since" in done.output, str(done)


@pytest.mark.parametrize(
    ("name", "value"), [("steps", "many"), ("steps", -1), ("parameters", None), ("steps", [1])]
)
def test_metrics_of_other_types_are_noticed(whole: Project, name: str, value: object) -> None:
    edit(whole.path / "metrics/gradient_probe.json", "gradient_probe", name, value=value)
    assert_refused(run("manifest"), "metrics/gradient_probe.json", repr(name))


@pytest.mark.parametrize("target", ["--output=written", "-", "HEAD:x", "a\nb", "\x1b[31m", "@{-1}"])
def test_a_revision_is_nothing_but_a_revision(whole: Project, target: str) -> None:
    done = holdshort("verify", "--", target)
    assert_refused(done)
    assert not whole.exists("written:training_manifest.json")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"id": "a"}',
        b'{"id": "a", "source": "s", "messages": 5}',
        b'{"id": "a", "source": "s", "messages": [5]}',
        b'{"id": "a", "source": "s", "messages": [{}]}',
        b'{"id": "a", "source": "s", "messages": [{"role": 5, "content": "a"}]}',
        b'{"id": "a", "source": "s", "messages": ' + b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_damaged_line_of_the_data_set_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "train.jsonl"
    sound = b'{"id": "a", "source": "s", "messages": [{"role": "user", "content": "a"}]}\n'
    path.write_bytes(sound + line + b"\n")
    with pytest.raises(UserError, match=r"train.jsonl:2 is damaged"):
        list(read_conversations(path))
