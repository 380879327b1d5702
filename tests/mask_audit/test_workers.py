"""Several processes leave the bytes that one leaves, and end whatever happens to any of them."""

import dataclasses
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stages import mask_report
from stages.chat.conversation import Conversation, Message
from stages.chat.split import DATASET
from stages.chat.tokenizer import ChatTokenizer
from stages.config.errors import UserError
from stages.mask_audit import prepare, workers
from stages.mask_audit.findings import Audit, Kind
from stages.mask_audit.prepare import Preparer
from stages.mask_audit.workers import preparing, usable_cores

from ..chat.tokenizers import chat_tokenizer
from ..settings import make_params

CHUNK = 4
PATIENCE = 30.0
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] | trim | replace('colour', 'color') + '<|im_end|>\n' }}"
    "{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ANSWERS = (
    "fine",
    " trimmed ",
    "a colour",
    "the token <|im_end|> itself",
    "long " * 30,
    "",
    "é ü 漢",
)
KINDS: set[Kind] = {
    *("content_trimmed", "unknown_role", "ends_without_answer"),
    *("control_token_in_content", "markers_differ"),
}


def conversation(number: int, answer: str) -> Conversation:
    role = "robot" if number % 11 == 10 else "critic" if number % 5 == 4 else "user"
    messages: list[Message] = [
        {"role": role, "content": f"question {number}"},
        {"role": "assistant", "content": answer},
    ]
    if number % 17 == 16:
        messages[1]["weight"] = 0
    if number % 13 == 12:
        messages.append({"role": "user", "content": "and then?"})
    return Conversation(f"{number:032x}", f"a.jsonl:{number}", messages)


def conversations(rows: int) -> list[Conversation]:
    answers = zip(range(rows), itertools.cycle(ANSWERS), strict=False)
    return [conversation(number, answer) for number, answer in answers]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"), TEMPLATE)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of four rows; and no process is left."""
    monkeypatch.setattr(prepare, "CHUNK_ROWS", CHUNK)
    monkeypatch.setattr(workers, "CHUNK_ROWS", CHUNK)
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    yield
    assert multiprocessing.active_children() == []


def preparer(tokenizer: ChatTokenizer, **settings: Any) -> Preparer:
    params = make_params(**settings)
    return Preparer(tokenizer, params.data, params.labels)


def everything(directory: Path, tokenizer: ChatTokenizer, truncation: str) -> dict[str, Any]:
    """All that gate 1 keeps of its rows, bytes of files included."""
    params = make_params(
        data__on_bad_row="report",
        data__max_length=100,
        data__truncation=truncation,
        model__max_length=100,
    )
    (directory / DATASET).mkdir(parents=True)
    for split, rows in (("train", 75), ("validation", 9)):
        lines = [msgspec.json.encode(one) + b"\n" for one in conversations(rows)]
        (directory / DATASET / f"{split}.jsonl").write_bytes(b"".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        done = mask_report.tokenise(params, tokenizer, rows=84)
    kept = {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    accounts = {split: dataclasses.asdict(one) for split, one in done.accounting.items()}
    for account in accounts.values():
        account["supervised_ids"] = account["supervised_ids"].tolist()
    views = [dataclasses.asdict(view) for view in done.sampler.views]
    return kept | {
        "audit": done.audit,
        "kinds": list(done.audit.faults),
        "accounts": accounts,
        "views": views,
        "tokens": list(done.tokens_by_status.items()),
        "unsure": done.not_judgeable,
    }


@pytest.mark.parametrize("truncation", ["drop", "keep_start"])
def test_workers_leave_what_one_process_leaves(
    tmp_path: Path,
    tokenizer: ChatTokenizer,
    truncation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, cuts = {}, truncation == "keep_start"
    for cores in (1, 2, 3):
        monkeypatch.setattr(workers, "usable_cores", lambda cores=cores: cores)
        found[cores] = everything(tmp_path / str(cores), tokenizer, truncation)
    assert found[2] == found[1]
    assert found[3] == found[1]
    statuses, kinds = {status for status, _ in found[1]["tokens"]}, set(found[1]["kinds"])
    drops = {"dropped: template_refuses", "dropped: not_judgeable", "dropped: no_supervised_token"}
    assert statuses == {"kept", *drops, "cut" if cuts else "dropped: too_long"}
    assert kinds == KINDS


def test_few_rows_and_one_core_need_no_worker(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = preparer(tokenizer)
    with preparing(alone, 2 * CHUNK - 1) as made:
        assert made == alone.prepare
    monkeypatch.setattr(workers, "usable_cores", lambda: 1)
    with preparing(alone, 1000 * CHUNK) as made:
        assert made == alone.prepare
    assert usable_cores() == len(os.sched_getaffinity(0))


def test_a_row_that_the_template_refuses_is_named(tokenizer: ChatTokenizer) -> None:
    strict = preparer(tokenizer, data__on_bad_row="stop")
    with (
        pytest.raises(UserError, match=r"^a\.jsonl:10: the chat template .* no robots; mend"),
        preparing(strict, 100) as made,
    ):
        list(made(conversations(100), Audit()))


def test_a_mistake_in_the_code_is_told_as_where_it_happened(
    tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "label_conversation", lambda *_: 1 // 0)
    with (
        pytest.raises(RuntimeError, match=r"(?s)in a process .*ZeroDivisionError"),
        preparing(preparer(tokenizer), 100) as made,
    ):
        list(made(conversations(4), Audit()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_is_ended_ends_the_stage(tokenizer: ChatTokenizer, number: int) -> None:
    name = signal.Signals(number).name
    told = f"^a process that prepared rows was ended by {name} .* run the stage again$"
    with (
        pytest.raises(UserError, match=told),
        preparing(preparer(tokenizer, data__on_bad_row="report"), 1000) as made,
    ):
        rows = made(conversations(1000), Audit())
        next(rows)
        victim = multiprocessing.active_children()[0].pid
        assert victim is not None
        os.kill(victim, number)
        list(rows)


def stage(tokenizer: ChatTokenizer, connection: Connection) -> None:
    """Prepare rows for ever; tells the ids of its workers after the first."""
    # where the suite runs in the background of a shell, SIGINT is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    endless = itertools.cycle(conversations(10))
    with preparing(preparer(tokenizer, data__on_bad_row="report"), 1000) as made:
        rows = made(endless, Audit())
        next(rows)
        connection.send([child.pid for child in multiprocessing.active_children()])
        for _ in rows:
            pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_stage(tokenizer: ChatTokenizer, number: int) -> None:
    context = multiprocessing.get_context("fork")
    connection, its_end = context.Pipe()
    process = context.Process(target=stage, args=(tokenizer, its_end))
    process.start()
    its_end.close()
    pids = connection.recv()
    assert len(pids) == 2
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(PATIENCE)
    assert process.exitcode is not None
    connection.close()
    deadline = time.monotonic() + PATIENCE
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Is there such a process, and is it more than an entry that nobody has asked for?"""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_arrays_come_back_with_their_types(tokenizer: ChatTokenizer) -> None:
    with preparing(preparer(tokenizer), 100) as made:
        (one,) = made([conversation(0, "fine")], Audit())
    assert one.row is not None
    assert one.row.input_ids.dtype == one.row.labels.dtype == np.int32
    assert one.row.roles.dtype == np.uint8
    assert one.row.straddling.dtype == np.int64
