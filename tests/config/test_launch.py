"""A stage starts in one pinned process and ends with one code and one sentence."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from stages.config import Refusal, UserError
from stages.config.launch import PINNED_VARIABLES, guarded, pin_process, run_stage

from ..settings import ROOT, run_python

STAGE = """
import json, os, sys
from pathlib import Path
with Path("starts").open("a") as file:
    file.write("start\\n")
from .config.launch import PINNED_VARIABLES, pin_process, run_stage
pin_process(__name__, "echo")
def main(params):
    pinned = {name: os.environ[name] for name in PINNED_VARIABLES}
    print(json.dumps([pinned, sys.argv[1:], hash("text"), params.run.seed]))
run_stage("echo", main)
"""
PIPELINE = "stages:\n  echo:\n    cmd: python -m stages.echo\n    params: [run]\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one stage, which says how it was started."""
    (tmp_path / "stages").mkdir()
    shutil.copytree(ROOT / "stages/config", tmp_path / "stages/config")
    (tmp_path / "stages/__init__.py").touch()
    (tmp_path / "stages/echo.py").write_text(STAGE)
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    source = "import runpy; runpy.run_module('stages.echo', run_name='__main__', alter_sys=True)"
    return run_python(
        source, *arguments, cwd=project, **{"PYTHONPATH": str(project), **environment}
    )


def ends(work: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught:
        guarded(work)  # type: ignore[arg-type]
    assert isinstance(caught.value.code, int)
    return caught.value.code, capsys.readouterr().err


def test_a_stage_is_started_once_again_with_what_bits_depend_on(project: Path) -> None:
    done = start(project, "--flag", "value", OMP_NUM_THREADS="7", PYTHONHASHSEED="5")
    assert done.returncode == 0, done.stderr
    pinned, arguments, _, seed = json.loads(done.stdout)
    assert pinned == {
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    assert list(pinned) == list(PINNED_VARIABLES)
    assert (arguments, seed) == (["--flag", "value"], 42)
    assert (project / "starts").read_text() == "start\nstart\n"


def test_hashes_of_text_are_the_same_in_every_process(project: Path) -> None:
    one, other = (start(project, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert json.loads(one.stdout)[2] == json.loads(other.stdout)[2]


def test_a_process_that_is_pinned_is_not_started_again(project: Path) -> None:
    pinned = json.loads(start(project).stdout)[0]
    (project / "starts").unlink()
    assert start(project, **pinned).returncode == 0
    assert (project / "starts").read_text() == "start\n"


def test_a_stage_that_is_imported_is_not_started_again(project: Path) -> None:
    pin_process("stages.echo", "echo")
    assert not (project / "starts").exists()


def test_wrong_params_end_a_stage_in_one_line(project: Path) -> None:
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("cpu_threads: 1", "cpu_threads: one"))
    done = start(project)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: params.yaml: 'run.cpu_threads' is 'one': expected `int`, got `str`\n"
    )


def test_the_result_of_guarded_work_is_returned() -> None:
    assert guarded(lambda: 3) == 3


def test_bad_input_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise UserError("rows.jsonl:3: not JSON")

    assert ends(work, capsys) == (2, "error: rows.jsonl:3: not JSON\n")


def test_a_refusal_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise Refusal("training is not cleared")

    assert ends(work, capsys) == (1, "error: training is not cleared\n")


def test_a_failing_disk_exits_with_2_and_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent"
    assert ends(absent.read_text, capsys) == (2, f"error: {absent}: No such file or directory\n")


def test_an_interrupt_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise KeyboardInterrupt

    assert ends(work, capsys) == (130, "error: interrupted\n")


def test_a_mistake_in_the_code_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: 1 // 0)


def test_a_stage_that_is_done_exits_with_0(project: Path) -> None:
    seen = []
    with pytest.raises(SystemExit) as caught:
        run_stage("echo", lambda params: seen.append(params.run.seed))
    assert caught.value.code == 0
    assert seen == [42]


@pytest.mark.parametrize(
    ("body", "code"),
    [("pass", 0), ("sys.exit(143)", 143), ("raise UserError('no')", 2), ("1 / 0", 1)],
)
def test_a_rank_ends_at_once_with_its_code_whatever_still_runs(
    tmp_path: Path, body: str, code: int
) -> None:
    source = f"""
import sys, threading
from stages.config import UserError, launch

launch.load_params = lambda stage: None
launch.SECONDS_FOR_ANOTHER_RANK = launch.SECONDS_FOR_RANK_0 = 0

def main(params):
    threading.Thread(target=threading.Event().wait).start()  # Python waits for it for ever
    {body}

launch.run_stage("full_train", main)
"""
    done = run_python(source, cwd=tmp_path, LOCAL_RANK="1", RANK="1")
    assert done.returncode == code
    assert ("ZeroDivisionError" in done.stderr) == (body == "1 / 0")
