"""The digest of code is blind to wording and layout, and to nothing else."""

from pathlib import Path

import pytest

from stages.config import UserError
from stages.provenance.code import code_sha256, normalised_source, stage_sources

PIPELINE = """\
stages:
  probe:
    deps: [data, stages/probe.py, stages/tools, requirements.lock]
"""
SOURCE = '''\
"""A module."""

LIMIT = 3


def double(number: int) -> int:
    """Twice the number."""
    return number * 2  # what else


class Box:
    """A box."""

    async def open(self) -> str:
        """Open it."""
        return "open"
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("stages/tools/inner").mkdir(parents=True)
    Path("dvc.yaml").write_text(PIPELINE)
    Path("requirements.lock").write_text("a==1\n")
    Path("stages/probe.py").write_text(SOURCE)
    Path("stages/tools/__init__.py").write_text("")
    Path("stages/tools/inner/page.py").write_text("PAGE = 'page.html'\n")
    Path("stages/tools/inner/page.html").write_text("<p>")
    Path("stages/other.py").write_text("X = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# what else", ""),
        ('"""A module."""', '"""Another wording."""'),
        ('"""A module."""\n', ""),
        ('    """Twice the number."""\n', ""),
        ('"""A box."""', '"""A\n    box."""'),
        ('"""Open it."""', '"""Close it."""'),
        ("number * 2", "(number\n        * 2)"),
        ('"open"', "'open'"),
        ("LIMIT = 3\n", "\n\nLIMIT   =   3  \n"),
    ],
)
def test_wording_and_layout_do_not_count(before: str, after: str) -> None:
    assert before in SOURCE
    assert normalised_source(SOURCE.replace(before, after)) == normalised_source(SOURCE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = 3.0"),
        ("number * 2", "number + number"),
        ('return "open"', 'return "Open"'),
        ("async def", "def"),
        ("def double(number: int)", "def double(number: float)"),
        ("LIMIT = 3\n", ""),
        ("LIMIT = 3\n", 'LIMIT = 3\nWORD = """A module."""\n'),
    ],
)
def test_what_the_code_does_counts(before: str, after: str) -> None:
    assert before in SOURCE
    assert normalised_source(SOURCE.replace(before, after)) != normalised_source(SOURCE)


def test_a_text_below_a_constant_is_wording_too() -> None:
    described = SOURCE.replace("LIMIT = 3\n", 'LIMIT = 3\n"""Rows, at most."""\n')
    assert normalised_source(described) == normalised_source(SOURCE)


def test_the_sources_are_the_python_files_below_the_dependencies(project: Path) -> None:
    assert [path.as_posix() for path in stage_sources("probe")] == [
        "stages/probe.py",
        "stages/tools/__init__.py",
        "stages/tools/inner/page.py",
    ]


def test_a_changed_constant_changes_the_digest(project: Path) -> None:
    before = code_sha256("probe")
    Path("stages/tools/inner/page.py").write_text("PAGE = 'index.html'\n")
    assert code_sha256("probe") != before


def test_a_comment_does_not_change_the_digest(project: Path) -> None:
    before = code_sha256("probe")
    Path("stages/probe.py").write_text(f"# a comment\n{SOURCE}")
    assert code_sha256("probe") == before


def test_code_that_the_stage_does_not_depend_on_does_not_count(project: Path) -> None:
    before = code_sha256("probe")
    Path("stages/other.py").write_text("X = 2\n")
    assert code_sha256("probe") == before


def test_a_new_or_renamed_file_changes_the_digest(project: Path) -> None:
    before = code_sha256("probe")
    Path("stages/tools/inner/page.py").rename("stages/tools/inner/leaf.py")
    renamed = code_sha256("probe")
    Path("stages/tools/more.py").touch()
    assert len({before, renamed, code_sha256("probe")}) == 3


def test_code_that_moves_between_files_changes_the_digest(project: Path) -> None:
    Path("stages/tools/one.py").write_text("A = 1\nB = 2\n")
    Path("stages/tools/two.py").write_text("")
    before = code_sha256("probe")
    Path("stages/tools/one.py").write_text("A = 1\n")
    Path("stages/tools/two.py").write_text("B = 2\n")
    assert code_sha256("probe") != before


def test_code_that_is_no_python_is_refused_by_file_and_line(project: Path) -> None:
    Path("stages/tools/broken.py").write_text("x = 1\ndef loss(:\n")
    with pytest.raises(UserError, match=r"stages/tools/broken\.py:2"):
        code_sha256("probe")
