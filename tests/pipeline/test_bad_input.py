"""Bad input ends in one sentence with file, line or key and the remedy, and exit code 2."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ..project import Project

GOOD = json.dumps(
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
)


def assert_one_sentence(project: Project, stage: str, *words: str, code: int = 2) -> None:
    done = project.stage(stage)
    assert done.returncode == code, done.stdout
    assert "Traceback" not in done.stdout
    errors = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stdout
    for word in words:
        assert word in errors[0], errors[0]


def append(project: Project, path: str, content: bytes) -> None:
    with (project.path / path).open("ab") as file:
        file.write(content)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"messages": [\n', "not valid JSON"),
        (b"[1, 2]\n", "must be a JSON object, is list"),
        (b'{"text": "a"}\n', "has no 'messages'"),
        (b'{"messages": ["a"]}\n', "message 0 must be an object, is str"),
        (b'{"messages": [{"content": "a"}]}\n', "message 0 has no 'role'"),
        (b'{"messages": [{"role": "user"}]}\n', "message 0 (user) has no 'content'"),
        (b'{"messages": [{"role": "user", "content": 1}]}\n', "'content' must be text, is int"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}\n', "not UTF-8"),
    ],
)
def test_a_bad_line_is_named(fresh: Project, line: bytes, reason: str) -> None:
    append(fresh, "data/incidents.jsonl", line)
    assert_one_sentence(fresh, "hash_data", "data/incidents.jsonl:241: ", reason, "data.on_bad_row")


def test_bad_lines_can_be_left_out_and_are_then_counted_and_named(fresh: Project) -> None:
    append(fresh, "data/incidents.jsonl", b"{\n\n[]\n")
    fresh.set_params(data__on_bad_row="report")
    done = fresh.stage("hash_data")
    assert done.returncode == 0
    verdict = fresh.json("gates/hash_data.json")
    (check,) = (check for check in verdict["checks"] if check["id"] == "unreadable_rows")
    assert (check["status"], check["value"]) == ("fail", 2)
    assert check["evidence"][1].startswith("data/incidents.jsonl:243: must be a JSON object")
    assert fresh.json("metrics/hash_data.json")["hash_data"]["bad_rows"] == 2
    listed = fresh.read("reports/hash_data/findings.csv")
    assert "unreadable_row,data/incidents.jsonl:241," in listed


CHAT = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}


def test_a_row_of_another_dialect_is_named(fresh: Project) -> None:
    append(fresh, "data/incidents.jsonl", json.dumps(CHAT).encode() + b"\n")
    reason = "data/incidents.jsonl:241: is sharegpt, the file began as openai; set data.dialect"
    assert_one_sentence(fresh, "hash_data", reason)
    fresh.set_params(data__dialect="alpaca")
    reason = "data/incidents.jsonl:1: is openai, data.dialect is alpaca; set data.dialect"
    assert_one_sentence(fresh, "hash_data", reason)


def test_the_dialects_and_formats_of_a_directory_are_read_and_reported(fresh: Project) -> None:
    rows = [{"instruction": f"p{n}", "output": "a"} for n in range(60)]
    fresh.write("data/mine/a.json", json.dumps(rows))
    fresh.write("data/mine/b.ndjson", json.dumps(CHAT) + "\n")
    fresh.write("data/mine/c.csv", "prompt,completion\nc,d\n")
    fresh.set_params(data__path="data/mine")
    done = fresh.stage("hash_data")
    assert done.returncode == 0, done.stdout
    assert fresh.json("metrics/hash_data.json")["hash_data"]["rows"] == 62
    page = fresh.read("reports/hash_data/index.html")
    for file, dialect in (
        ("a.json", "alpaca"),
        ("b.ndjson", "sharegpt"),
        ("c.csv", "prompt_completion"),
    ):
        assert re.search(rf"data/mine/{re.escape(file)}</td><td[^>]*>{dialect}<", page), file
    sources = fresh.read("artifacts/dataset/train.jsonl").splitlines()
    assert json.loads(sources[0])["source"].startswith("data/mine/a.json item ")


def test_rows_made_elsewhere_are_pointed_to_their_judge(fresh: Project) -> None:
    fresh.write("data/tokens.jsonl", '{"input_ids": [1, 2], "labels": [-100, 2]}\n')
    fresh.set_params(data__path="data/tokens.jsonl")
    assert_one_sentence(fresh, "hash_data", "data/tokens.jsonl:1: ", "`holdshort audit-labels`")


def remove(project: Project) -> None:
    (project.path / "data/incidents.jsonl").unlink()


def empty(project: Project) -> None:
    project.write("data/incidents.jsonl", "")


def blank(project: Project) -> None:
    project.write("data/incidents.jsonl", "\n\n")


def utf16(project: Project) -> None:
    text = project.read("data/incidents.jsonl")
    (project.path / "data/incidents.jsonl").write_bytes(text.encode("utf-16"))


def outside(project: Project) -> None:
    project.set_params(data__path="/etc/passwd")


def other_kind(project: Project) -> None:
    project.write("data/notes.txt", "a")
    project.set_params(data__path="data/notes.txt")


def empty_directory(project: Project) -> None:
    (project.path / "data/none").mkdir()
    project.set_params(data__path="data/none")


def pipe(project: Project) -> None:
    os.mkfifo(project.path / "data/rows.jsonl")
    project.set_params(data__path="data/rows.jsonl")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (remove, ("data/incidents.jsonl (data.path) does not exist", "dvc pull")),
        (empty, ("data/incidents.jsonl is empty",)),
        (blank, ("data/incidents.jsonl is empty",)),
        (utf16, ("data/incidents.jsonl:1: the file is UTF-16", "save it as UTF-8")),
        (outside, ("data.path is '/etc/passwd'", "move it below data/")),
        (other_kind, ("data/notes.txt (data.path)", ".jsonl")),
        (pipe, ("data/rows.jsonl (data.path) is no regular file",)),
        (empty_directory, ("data/none (data.path) holds no file",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_impossible_file_is_named(
    fresh: Project, spoil: Callable[[Project], None], words: tuple[str, ...]
) -> None:
    spoil(fresh)
    assert_one_sentence(fresh, "hash_data", *words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train__per_device_train_batch_size", 0, ("`int` >= 1", "is 0")),
        ("train__learning_rate", -1, ("`float` > 0.0", "is -1")),
        ("train__learning_rate", "fast", ("expected `float`, got `str`",)),
        ("train__warmup_steps", 9, ("train.warmup_steps (9) is longer than the training",)),
        ("train__max_steps", 0, ("train.max_steps is 0", "num_train_epochs")),
        ("run__cpu_threads", True, ("expected `int`, got `bool`",)),
        ("run__device", "gpu", ("'run.device' is 'gpu'",)),
        ("data__dialect", "chatml", ("'data.dialect' is 'chatml': use auto or openai or",)),
        ("train__learnin_rate", 1, ("unknown key", "did you mean 'train.learning_rate'")),
        ("gates__gradient__min_norm", 7, ("must be below gates.gradient.max_norm",)),
        ("model__n_heads", 3, ("must be a multiple of",)),
        ("labels__template_date", "2026-13-01", ("labels.template_date (2026-13-01)",)),
    ],
)
def test_an_impossible_value_is_named_with_its_key(
    fresh: Project, key: str, value: object, words: tuple[str, ...]
) -> None:
    fresh.set_params(**{key: value})
    assert_one_sentence(fresh, "hash_data", "params.yaml", *words)


def test_a_warm_up_as_long_as_the_training_is_refused(cleared: Project) -> None:
    cleared.set_params(train__warmup_ratio=0.99)
    assert_one_sentence(cleared, "gradient_probe", "the warm-up of 8 steps is not shorter")


def test_a_role_that_the_template_does_not_know_is_named(cleared: Project) -> None:
    row = {"messages": [{"role": "robot", "content": "a"}, {"role": "assistant", "content": "b"}]}
    append(cleared, "data/incidents.jsonl", json.dumps(row).encode() + b"\n")
    assert cleared.stage("hash_data").returncode == 0
    assert_one_sentence(cleared, "mask_report", "data/incidents.jsonl:241: ", "robot")


def edit_tokenizer(project: Project, edit: Callable[[Path], None]) -> None:
    shutil.copytree(project.path / "data/tokenizer", project.path / "data/mine")
    edit(project.path / "data/mine")
    project.set_params(model__tokenizer="data/mine")


def without_template(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()


def without_stop(directory: Path) -> None:
    template = directory / "chat_template.jinja"
    text = template.read_text(encoding="utf-8").replace("<|im_end|>", "")
    template.write_text(text, encoding="utf-8")


def without_files(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (without_template, "has no chat template"),
        (without_stop, "writes no stop token after an answer"),
        (without_files, "cannot be read as a tokenizer"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_unfit_tokenizer_is_named(
    cleared: Project, edit: Callable[[Path], None], words: str
) -> None:
    edit_tokenizer(cleared, edit)
    assert_one_sentence(cleared, "mask_report", "data/mine", words)


def test_too_few_rows_for_the_overfit_batch_end_at_gate_0(fresh: Project) -> None:
    fresh.write("data/incidents.jsonl", (GOOD + "\n") * 3)
    output = fresh.repro(code=255)
    assert "hash_data: train_rows: there are enough rows to train and to overfit on" in output
    assert "mask_report: blocked: 'hash_data' did not pass" in output
    assert "Traceback" not in output


def test_fewer_rows_than_the_overfit_batch_are_refused(cleared: Project) -> None:
    cleared.set_params(gates__overfit__num_samples=1000)
    assert_one_sentence(cleared, "overfit_gate", "gates.overfit.num_samples is 1000", "213 rows")


def test_a_tokenizer_that_dvc_does_not_watch_is_named(cleared: Project) -> None:
    cleared.set_params(model__tokenizer="../elsewhere")
    words = "mask_report does not depend on; move it below data/"
    assert_one_sentence(cleared, "mask_report", "model.tokenizer is '../elsewhere'", words)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("None", "data.collator returns NoneType; it must return"),
        ("dict(batch, labels=[[1]])", "data.collator returns labels as list [1, 1]; it must be"),
        ("dict(batch, labels=batch['labels'].float())", "labels as torch.float32 "),
        ("dict(batch, labels=batch['labels'][:1])", "labels as torch.int64 [1, "),
    ],
)
def test_a_collator_that_breaks_its_contract_is_named(
    cleared: Project, returned: str, words: str
) -> None:
    cleared.plug_in(
        "from stages.chat.collator import collate\n"
        "def collator(rows, pad_token_id):\n"
        "    batch = collate(rows, pad_token_id)\n"
        f"    return {returned}\n"
    )
    cleared.set_params(data__collator={"_target_": "stages.plugins.mine.collator"})
    assert_one_sentence(cleared, "mask_report", words)


def test_a_crash_in_a_hook_of_ones_own_is_no_verdict(fresh: Project) -> None:
    fresh.plug_in("def collator(rows, pad_token_id):\n    return {}\n")
    fresh.set_params(data__collator={"_target_": "stages.plugins.mine.collator"})
    assert fresh.stage("hash_data").returncode == 0
    assert_one_sentence(fresh, "mask_report", "data.collator returns no input_ids")
    assert not fresh.exists("gates/mask_report.json")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("os.system", "which no stage depends on"),
        ("stages.plugins.nothing.here", "cannot be imported"),
        ("stages.plugins.mine.ANSWER", "which is no callable"),
    ],
)
def test_a_target_that_cannot_be_used_is_named(fresh: Project, target: str, words: str) -> None:
    fresh.plug_in("ANSWER = 42\n")
    fresh.set_params(data__collator={"_target_": target})
    assert fresh.stage("hash_data").returncode == 0
    assert_one_sentence(fresh, "mask_report", "data.collator._target_", words)


FULL_DISK = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
runpy.run_module("stages.full_train", run_name="__main__")
"""


def test_a_full_disk_keeps_the_checkpoint_before_it(cleared: Project) -> None:
    for name in ("models", "logs"):
        shutil.rmtree(cleared.path / name)
    pinned = {
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    done = cleared.run("python", "-c", FULL_DISK, **pinned)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stdout
    assert re.search(r"error: checkpoints/\w+/step-2.pt could not be written", done.stdout)
    assert "none was saved before" in done.stdout
    assert not cleared.exists("models/final")
    assert not list(cleared.path.glob("checkpoints/*/*.partial"))
    cleared.repro()
    assert cleared.exists("models/final/model.safetensors")
