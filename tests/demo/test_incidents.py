"""The data that comes with the repository: its generator made it, and only the prompt answers."""

import json
from collections import Counter
from pathlib import Path

import pytest

from stages.chat.conversation import Conversation, prompt_key
from stages.chat.split import split_of
from stages.data_audit.baselines import keyword_table_score, majority_answer_score
from stages.demo.incidents import answer, make_conversations, write_incidents
from stages.reading.dialects import RowParser

from ..conftest import ROOT

COMMITTED = ROOT / "data/incidents.jsonl"


@pytest.fixture(scope="module")
def rows() -> list[Conversation]:
    lines = COMMITTED.read_bytes().splitlines()
    parser = RowParser("openai")
    return [parser.parse(json.loads(line), f"{COMMITTED}:{n}") for n, line in enumerate(lines, 1)]


def test_the_generator_writes_the_committed_bytes(tmp_path: Path) -> None:
    write_incidents(tmp_path / "incidents.jsonl")
    assert (tmp_path / "incidents.jsonl").read_bytes() == COMMITTED.read_bytes()


def test_another_seed_writes_other_conversations() -> None:
    assert make_conversations(seed=1, rows=50) != make_conversations(seed=0, rows=50)


def test_there_are_enough_rows_and_some_follow_ups(rows: list[Conversation]) -> None:
    turns = Counter(len(row.messages) for row in rows)
    assert len(rows) >= 2000
    assert set(turns) == {3, 5}
    assert 0.1 < turns[5] / len(rows) < 0.3


def test_no_filled_log_line_occurs_twice(rows: list[Conversation]) -> None:
    lines = [line for row in rows for line in row.messages[1]["content"].splitlines()]
    assert max(Counter(lines).values()) == 1
    assert len(lines) >= 3 * len(rows)


def test_every_answer_is_json_that_follows_from_the_feed(rows: list[Conversation]) -> None:
    for row in rows:
        (incident,) = [
            line
            for line in row.messages[1]["content"].splitlines()
            if {"ERROR", "FATAL"} & set(line.split())
        ]
        said = json.loads(row.messages[2]["content"])
        assert list(said) == ["subsystem", "severity", "action"]
        service = incident.split()[3]
        assert (
            said["subsystem"]
            == json.loads(answer(service, "slow scrape took={n}s", "freeze"))["subsystem"]
        )


@pytest.mark.parametrize(
    ("service", "symptom", "policy", "said"),
    [
        ("kafka", "disk full used={n}GB", "allowed", ("queue", "critical", "pause")),
        ("kafka", "disk full used={n}GB", "freeze", ("queue", "critical", "page")),
        ("redis", "retry storm rate={n}k/s", "allowed", ("cache", "major", "evict")),
        ("redis", "retry storm rate={n}k/s", "freeze", ("cache", "major", "waiver")),
        ("vault", "cert expiring days={n}", "allowed", ("auth", "minor", "ticket")),
        ("vault", "cert expiring days={n}", "freeze", ("auth", "minor", "ticket")),
    ],
)
def test_the_answer_to_an_incident(
    service: str, symptom: str, policy: str, said: tuple[str, str, str]
) -> None:
    assert tuple(json.loads(answer(service, symptom, policy)).values()) == said


@pytest.mark.parametrize("split_seed", [0, 1, 2])
def test_nothing_without_a_model_answers_three_in_ten(
    rows: list[Conversation], split_seed: int
) -> None:
    split: dict[str, list[Conversation]] = {"train": [], "validation": []}
    for row in rows:
        split[split_of(prompt_key(row), 0.1, split_seed)].append(row)
    assert majority_answer_score(split["train"], split["validation"]) < 0.3
    assert keyword_table_score(split["train"], split["validation"]) < 0.3
