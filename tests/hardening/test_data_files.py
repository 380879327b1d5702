"""A data file from outside is read whole, or refused in a sentence; no row is lost in silence."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..project import Project
from .corpus import DATA, ROWS, jsonl
from .damage import flips, truncations
from .nasty_data import FILES, LINES
from .outcome import Outcome, assert_refused, holdshort, inside, stage

pytestmark = pytest.mark.slow

DAMAGED = {
    f"{name}, {done}": (name, content)
    for number, (name, make) in enumerate(DATA.items())
    for done, content in (*truncations(make(), number, 2), *flips(make(), number, 5))
}


@pytest.fixture(scope="module")
def project(fresh_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return fresh_template.copy(tmp_path_factory.mktemp("data") / "project")


def read(project: Project, name: str, content: bytes, on_bad_row: str = "stop") -> Outcome:
    """What `hash_data` does with a file of this name and content."""
    file = project.path / "data/outside" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    project.set_params(data__path=f"data/outside/{name}", data__on_bad_row=on_bad_row)
    with inside(project.path):
        return stage("hash_data")


def rows_of(project: Project) -> int:
    """Rows read and rows that were named as bad, which are as many as were written."""
    numbers = project.json("metrics/hash_data.json")["hash_data"]
    written = [
        project.read(f"artifacts/dataset/{split}.jsonl") for split in ("train", "validation")
    ]
    assert sum(text.count("\n") for text in written) == numbers["rows"]
    return int(numbers["rows"] + numbers["bad_rows"])


def test_the_sound_files_are_read_whole(project: Project) -> None:
    for name, make in DATA.items():
        done = read(project, name, make())
        assert done.code == 0, str(done)
        assert rows_of(project) == ROWS


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_conversation_is_named(project: Project, name: str) -> None:
    content = jsonl() + LINES[name]
    assert_refused(read(project, "a.jsonl", content), f"data/outside/a.jsonl:{ROWS + 1}: ")
    done = read(project, "a.jsonl", content, "report")
    assert done.code == 0, str(done)
    assert rows_of(project) == ROWS + 1
    assert project.json("metrics/hash_data.json")["hash_data"]["bad_rows"] == 1


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_which_nothing_can_be_read_is_named(project: Project, name: str) -> None:
    file, make = FILES[name]
    assert_refused(read(project, file, make()), f"data/outside/{file}")


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_or_its_rows_are_all_accounted_for(
    project: Project, name: str
) -> None:
    """A flip may leave another valid file: its rows are then as many as before, or are named."""
    file, content = DAMAGED[name]
    done = read(project, file, content, "report")
    if done.code != 0:
        assert_refused(done, f"data/outside/{file}")
        return
    assert rows_of(project) >= ROWS - 1 or "cut" in name  # a flipped line break joins two
    if "cut" in name and file.endswith((".jsonl", ".ndjson")):
        lines = sum(bool(line.strip()) for line in content.splitlines())
        assert rows_of(project) == lines


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
    st.sampled_from(["messages", "conversations", "prompt", "instruction", "tools", "text"]),
)
def test_any_json_is_a_row_or_is_named(project: Project, value: object, key: str) -> None:
    line = json.dumps({key: value}, ensure_ascii=True).encode() + b"\n"
    done = read(project, "a.jsonl", jsonl() + line, "report")
    assert done.code == 0, str(done)
    assert rows_of(project) == ROWS + 1


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.binary(max_size=200),
    st.sampled_from(["a.jsonl", "a.json", "a.csv", "a.parquet", "a.jsonl.gz", "a.jsonl.zst"]),
)
def test_any_bytes_are_rows_or_are_refused(project: Project, content: bytes, name: str) -> None:
    done = read(project, name, content, "report")
    if done.code != 0:
        assert_refused(done, f"data/outside/{name}")


def test_links_that_go_round_are_followed_once(project: Project) -> None:
    directory = project.path / "data/round"
    directory.mkdir()
    (directory / "a.jsonl").write_bytes(jsonl())
    (directory / "deeper").symlink_to(directory)
    project.set_params(data__path="data/round", data__on_bad_row="stop")
    with inside(project.path):
        done = stage("hash_data")
    assert done.code == 0, str(done)
    assert rows_of(project) == ROWS


@pytest.mark.parametrize("kind", ["link to itself", "link to nothing", "pipe", "directory"])
def test_what_is_no_file_is_named(project: Project, kind: str) -> None:
    directory = project.path / "data" / kind.replace(" ", "_")
    directory.mkdir()
    file = directory / "a.jsonl"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    else:
        file.symlink_to(file if kind == "link to itself" else directory / "nowhere")
    project.set_params(data__path=directory.relative_to(project.path).as_posix())
    with inside(project.path):
        assert_refused(stage("hash_data"), f"data/{directory.name}")


@pytest.mark.parametrize("location", ["../elsewhere", "/dev/zero", "data/../../x", "/etc/passwd"])
def test_data_that_dvc_does_not_watch_is_refused(project: Project, location: str) -> None:
    project.set_params(data__path=location)
    with inside(project.path):
        assert_refused(stage("hash_data"), repr(location), "does not depend on")


def test_a_device_is_no_data_for_another_trainers_labels(project: Project, tmp_path: Path) -> None:
    with inside(project.path):
        done = holdshort(
            *("audit-labels", "--tokens", "/dev/zero", "--source", "data/incidents.jsonl"),
            *("--tokenizer", "data/tokenizer"),
        )
    assert_refused(done, "/dev/zero (--tokens) is no regular file")
