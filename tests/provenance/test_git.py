"""The commit of a run, and what is dirty, in real repositories."""

import subprocess
from pathlib import Path

import pytest

from stages.provenance.git import lineage


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(message: str) -> str:
    git("add", "--all")
    git("commit", "--quiet", "--message", message)
    return git("rev-parse", "HEAD")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is in no repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Test")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "test@example.org")
    return tmp_path


@pytest.fixture
def repository(outside: Path) -> str:
    """A repository with one commit, whose name this is."""
    git("init", "--quiet")
    Path("stages").mkdir()
    Path("stages/a.py").write_text("A = 1\n")
    Path("params.yaml").write_text("run: {}\n")
    Path("notes.md").write_text("notes\n")
    Path("rows.jsonl.dvc").write_text("md5: 1\n")
    return commit("Start")


def test_outside_a_repository_there_is_no_commit(outside: Path) -> None:
    assert lineage() == {"commit": None, "dirty": []}


def test_without_git_there_is_no_commit(repository: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert lineage() == {"commit": None, "dirty": []}


def test_before_the_first_commit_all_is_dirty(outside: Path) -> None:
    git("init", "--quiet")
    Path("params.yaml").touch()
    assert lineage() == {"commit": None, "dirty": ["params.yaml"]}


def test_a_clean_repository_has_its_commit_and_nothing_dirty(repository: str) -> None:
    assert lineage() == {"commit": repository, "dirty": []}


def test_committing_the_results_of_a_run_does_not_change_its_record(repository: str) -> None:
    Path("metrics").mkdir()
    Path("metrics/full_train.json").touch()
    Path("notes.md").write_text("more\n")
    assert commit("Results") != repository
    assert lineage() == {"commit": repository, "dirty": []}


def test_the_last_commit_that_touched_the_code_is_named(repository: str) -> None:
    Path("stages/a.py").write_text("A = 2\n")
    changed = commit("Change")
    Path("notes.md").write_text("more\n")
    commit("Notes")
    assert lineage()["commit"] == changed


def test_changed_staged_deleted_and_new_files_are_dirty(repository: str) -> None:
    Path("stages/b.py").write_text("B = 1\n")
    Path("conf").mkdir()
    Path("conf/a config ünïcode.yaml").touch()
    git("add", "conf")
    Path("stages/a.py").unlink()
    Path("params.yaml").write_text("run: {seed: 1}\n")
    Path("notes.md").write_text("not watched\n")
    assert lineage()["dirty"] == [
        "conf/a config ünïcode.yaml",
        "params.yaml",
        "stages/a.py",
        "stages/b.py",
    ]


def test_a_renamed_file_is_dirty_under_both_names(repository: str) -> None:
    git("mv", "stages/a.py", "stages/z.py")
    assert lineage()["dirty"] == ["stages/a.py", "stages/z.py"]


def test_the_pointer_to_the_data_is_watched(repository: str) -> None:
    Path("rows.jsonl.dvc").write_text("md5: 2\n")
    assert lineage() == {"commit": repository, "dirty": []}
    assert lineage(["rows.jsonl.dvc"]) == {"commit": repository, "dirty": ["rows.jsonl.dvc"]}
    changed = commit("Data")
    assert lineage(["rows.jsonl.dvc", "absent.dvc"]) == {"commit": changed, "dirty": []}
    assert lineage()["commit"] == repository
