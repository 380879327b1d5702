"""Which kind of log is it, and what does it hold?

A file: trainer_state.json of transformers, .csv, .tsv, .jsonl, .json, an event file of TensorBoard,
a .wandb file. A directory: a run or a checkpoint of transformers, or one with event files, or an
offline run of W&B, or reports/full_train/, or one with a single log.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config.errors import UserError, reading
from .columns import Role, Rows, to_run_log
from .event_files import EVENT_FILES, read_event_files
from .run_log import RunLog
from .wandb_run import read_wandb

STATE = "trainer_state.json"
STEP_LOG = ("time", "step", "loss", "seconds")
"""The columns of logs/full_train.csv, which has no header line."""
TELEMETRY = "telemetry.csv"
"""Beside other tables in reports/full_train/."""
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".wandb")


def read_log(path: Path, mapped: Mapping[Role, str]) -> RunLog:
    """The curves in `path`. mapped: role -> column, where names are not common ones.

    Raises UserError in one sentence for a log that cannot be read.
    """
    return to_run_log(read_rows(path), mapped)


def read_rows(path: Path) -> Rows:
    if not path.exists():
        raise UserError(f"{path} does not exist; name a log file or the directory of a run")
    if path.is_dir():
        return read_directory(path)
    if path.match(EVENT_FILES):
        return read_event_files(path)
    if path.suffix == ".wandb":
        return read_wandb(path)
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{path}: a log is {', '.join(SUFFIXES)}, an event file of TensorBoard "
            f"({EVENT_FILES}), or a directory with {STATE} or event files"
        )
    text = read_text(path)
    if path.suffix in (".csv", ".tsv"):
        return read_table(path, text)
    if path.suffix == ".json" and (whole := whole_json(path, text)) is not None:
        return read_json_log(path, whole)
    return read_lines(path, text)


def read_directory(path: Path) -> Rows:
    """A directory of transformers, TensorBoard or W&B, whichever it is."""
    if (path / STATE).is_file():
        return read_rows(path / STATE)
    checkpoints = {
        int(found[1]): state
        for state in path.glob(f"checkpoint-*/{STATE}")
        if (found := re.fullmatch(r"checkpoint-(\d+)", state.parent.name))
    }
    if checkpoints:
        return read_rows(checkpoints[max(checkpoints)])
    offline = sorted(path.glob("*.wandb"))
    if len(offline) == 1:
        return read_wandb(offline[0])
    if any(path.rglob(EVENT_FILES)):
        return read_event_files(path)
    if (path / TELEMETRY).is_file():
        return read_rows(path / TELEMETRY)
    logs = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if len(logs) == 1:
        return read_rows(logs[0])
    others = f" (it has {', '.join(log.name for log in logs[:5])})" if logs else ""
    raise UserError(
        f"{path} holds no {STATE}, no checkpoint-*/{STATE}, no event file ({EVENT_FILES}), no run "
        f"of W&B (run-*.wandb) and no {TELEMETRY}; name the log file itself{others}"
    )


def read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at {error.start})") from None
    if not text.strip():
        raise UserError(f"{path} is empty; name the log of a run")
    return text


def read_table(path: Path, text: str) -> Rows:
    """CSV with a header line; separated by commas, semicolons or tabs, whichever the header has."""
    lines = text.splitlines()
    separator = max(",;\t", key=lines[0].count)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    form = "a table with a header line"
    with reading(path, "a table", "mend it, or take the line out"):
        header = [name.strip() for name in next(reader)]
        records = [(reader.line_num, record) for record in reader if any(record)]
    if is_step_log(header):
        form = "the log of holdshort's steps"
        records, header = [(1, header), *records], list(STEP_LOG)
    elif any(is_number(name) for name in header):
        raise UserError(f"{path}:1: is no header line; write the names of the columns above it")
    repeated = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    if repeated:
        raise UserError(f"{path}:1: has the column '{repeated[0]}' twice; rename one of them")
    rows, remarks = [], []
    for position, (line, record) in enumerate(records):
        if len(record) != len(header):
            if position == len(records) - 1 and not text.endswith("\n"):
                remarks.append("the last line is broken off, and was left out")
                continue
            raise UserError(
                f"{path}:{line}: has {len(record)} columns, the header has {len(header)}; mend the "
                "line, or take it out"
            )
        rows.append((f"{path}:{line}", dict(zip(header, record, strict=True))))
    return Rows(form, rows, tuple(remarks))


def is_step_log(first: Sequence[str]) -> bool:
    return (
        len(first) == len(STEP_LOG)
        and re.match(r"\d{4}-\d\d-\d\dT", first[0]) is not None
        and first[1].isdigit()
        and is_number(first[2])
    )


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def whole_json(path: Path, text: str) -> Any:
    """The one value that the file holds; None when it holds an object a line."""
    try:
        with parsing_numbers(path):
            return json.loads(text)
    except json.JSONDecodeError as error:
        if "Extra data" in error.msg:
            return None
        raise UserError(
            f"{path}:{error.lineno}: is not JSON ({error.msg}); if the run is still writing, wait "
            "for it or copy the file again"
        ) from None


@contextmanager
def parsing_numbers(place: Path | str) -> Iterator[None]:
    """For JSON: a number of thousands of digits, or thousands of brackets, is no log."""
    try:
        yield
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} holds what no log does ({error}); take it out") from None


def read_json_log(path: Path, whole: Any) -> Rows:
    """trainer_state.json; a list of objects; or a list of numbers under each name, as Keras has."""
    if isinstance(whole, dict) and "log_history" in whole:
        return read_trainer_state(path, whole)
    if isinstance(whole, list):
        return Rows("a list of objects", to_rows(path, "item", enumerate(whole)))
    if isinstance(whole, dict):
        columns = {name: cells for name, cells in whole.items() if isinstance(cells, list)}
        if not columns:
            return Rows("one object", to_rows(path, "item", [(0, whole)]))
        lengths = {len(cells) for cells in columns.values()}
        if len(lengths) != 1:
            raise UserError(
                f"{path}: the lists under {', '.join(list(columns)[:5])} are not of one length"
            )
        records = [
            dict(zip(columns, record, strict=True))
            for record in zip(*columns.values(), strict=True)
        ]
        return Rows("lists of numbers", to_rows(path, "item", enumerate(records)))
    raise UserError(f"{path} holds {type(whole).__name__}; a log is objects with names and numbers")


def read_trainer_state(path: Path, state: Mapping[str, Any]) -> Rows:
    """log_history of transformers' Trainer; its last entry, the means of the run, is no step."""
    history = state["log_history"]
    if not isinstance(history, list):
        raise UserError(f"{path}: log_history is {type(history).__name__}; it must be a list")
    entries = to_rows(path, "log_history item", enumerate(history))
    steps = [entry for entry in entries if "train_runtime" not in entry[1]]
    planned = state.get("max_steps")
    has_plan = isinstance(planned, (int, float)) and 0 < planned < sys.maxsize
    return Rows(
        "trainer_state.json of transformers",
        steps,
        max_steps=float(planned) if isinstance(planned, (int, float)) and has_plan else None,
    )


def read_lines(path: Path, text: str) -> Rows:
    """An object a line; a last line that is broken off, as a killed run leaves it, is left out."""
    lines = [
        (number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()
    ]
    records: list[tuple[int, Any]] = []
    remarks: tuple[str, ...] = ()
    for number, line in lines:
        try:
            with parsing_numbers(f"{path}:{number}"):
                records.append((number, json.loads(line)))
        except json.JSONDecodeError as error:
            if number == lines[-1][0] and records and not text.endswith("\n"):
                remarks = ("the last line is broken off, and was left out",)
                continue
            raise UserError(
                f"{path}:{number}: is not JSON ({error.msg}); mend the line, or take it out"
            ) from None
    return Rows("an object a line", to_rows(path, "line", records), remarks)


def to_rows(
    path: Path, unit: str, records: Sequence[tuple[int, Any]] | enumerate[Any]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Name each record by its place; names inside of objects are joined by '/'."""
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for number, record in records:
        place = f"{path}:{number}" if unit == "line" else f"{path} {unit} {number}"
        if not isinstance(record, dict):
            raise UserError(f"{place}: is {type(record).__name__}; it must be an object")
        with parsing_numbers(place):
            rows.append((place, flatten(record)))
    return rows


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, cell in record.items():
        if isinstance(cell, dict):
            flat |= flatten(cell, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}".encode(errors="backslashreplace").decode()] = cell
    return flat
