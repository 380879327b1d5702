"""Labels made elsewhere: right ones pass, and every fault is named at its row and token."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.chat.conversation import Message
from stages.chat.labels import IGNORE_INDEX
from stages.chat.tokenizer import ChatTokenizer
from stages.cli import build_parser, main
from stages.commands.audit_labels import Options, code_files, options_of, run
from stages.config import UserError
from stages.verdict.judging import Measured, rank_causes
from stages.verdict.judging import judge as judge_rule
from stages.verdict.rules.audit_labels import CAUSES, RULES

from ..chat.test_labels import label
from ..chat.tokenizers import TODAY, byte_tokenizer
from ..pipeline.imports import closure
from ..settings import ROOT
from .token_files import WRITERS, Rows, write_jsonl

CONVERSATIONS: list[list[Message]] = [
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"Who wrote book {number}?"},
        {"role": "assistant", "content": f"Writer {number}."},
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": f"In {1900 + number}."},
    ]
    for number in range(8)
]
QUESTION, FIRST_NEWLINE, LAST_STOP, LENGTH = 25, 54, 98, 100
"""Of every row: a token for each byte, one for <|im_start|>, one for <|im_end|>. 19 tokens of the
system's turn, 25 of the question (6 before its text), 22 of the answer (the 11th ends its header),
13 of the second question, and 11 + len("In 1900.") + 2."""

Row = dict[str, list[int]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer and a source."""
    path = tmp_path_factory.mktemp("project")
    byte_tokenizer(path / "tokenizer")
    write_source(path / "source.jsonl", CONVERSATIONS)
    return path


@pytest.fixture(scope="module")
def tokenizer(project: Path) -> ChatTokenizer:
    return ChatTokenizer(str(project / "tokenizer"), TODAY)


@pytest.fixture(scope="module")
def right(tokenizer: ChatTokenizer) -> list[Row]:
    return [token_row(tokenizer, messages) for messages in CONVERSATIONS]


def write_source(path: Path, conversations: list[list[Message]]) -> Path:
    lines = (json.dumps({"messages": messages}) + "\n" for messages in conversations)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def token_row(tokenizer: ChatTokenizer, messages: list[Message]) -> Row:
    row = label(tokenizer, messages)
    return {"input_ids": row.input_ids.tolist(), "labels": row.labels.tolist()}


class Verdict:
    """What the command left in its report directory."""

    def __init__(self, directory: Path, code: int) -> None:
        self.code = code
        self.record = json.loads((directory / "verdict.json").read_text(encoding="utf-8"))
        with (directory / "findings.csv").open(encoding="utf-8", newline="") as file:
            self.findings = list(csv.DictReader(file))

    def values(self) -> dict[str, Any]:
        """The value of every check that does not pass."""
        checks = self.record["checks"]
        return {check["id"]: check["value"] for check in checks if check["status"] != "pass"}

    def evidence(self, name: str) -> list[str]:
        (check,) = (check for check in self.record["checks"] if check["id"] == name)
        found: list[str] = check["evidence"]
        return found


def judge(project: Path, tokens: Path, directory: Path, **options: Any) -> Verdict:
    given = {"source": project / "source.jsonl", "tokenizer": project / "tokenizer", **options}
    code = run(Options(tokens=tokens, report=directory / "report", **given))
    return Verdict(directory / "report", code)


def judge_rows(project: Path, rows: Rows, directory: Path, **options: Any) -> Verdict:
    return judge(project, write_jsonl(directory / "t.jsonl", rows), directory, **options)


@pytest.mark.parametrize("name", WRITERS)
def test_right_labels_pass_in_every_format(
    project: Path, right: list[Row], tmp_path: Path, name: str
) -> None:
    verdict = judge(project, WRITERS[name](tmp_path / name, right), tmp_path)
    assert (verdict.code, verdict.values(), verdict.findings) == (0, {}, [])
    assert verdict.record["status"] == "pass"


def edited(rows: Rows, edit: Callable[[Row], None], *numbers: int) -> list[Row]:
    """Copies of rows, of which those named are edited."""
    copies = [{name: list(values) for name, values in row.items()} for row in rows]
    for number in numbers or range(len(copies)):
        edit(copies[number])
    return copies


def supervised(row: Row) -> list[int]:
    return [t for t, target in enumerate(row["labels"]) if target != IGNORE_INDEX]


def unmask_header_newlines(row: Row) -> None:
    for t in supervised(row):
        if t - 1 not in supervised(row):
            row["labels"][t - 1] = row["input_ids"][t - 1]
            return


def unmask_newline_after_stop(row: Row) -> None:
    row["labels"][-1] = row["input_ids"][-1]


def unmask_question(row: Row) -> None:
    row["labels"][QUESTION : QUESTION + 3] = row["input_ids"][QUESTION : QUESTION + 3]


def mask_first_answer_token(row: Row) -> None:
    row["labels"][supervised(row)[0]] = IGNORE_INDEX


def mask_last_stop(row: Row) -> None:
    row["labels"][supervised(row)[-1]] = IGNORE_INDEX


def cut_off_stop(row: Row) -> None:
    for values in row.values():
        del values[-2:]


def mask_all(row: Row) -> None:
    row["labels"] = [IGNORE_INDEX] * len(row["labels"])


def other_label(row: Row) -> None:
    row["labels"][supervised(row)[0]] += 1


def id_outside(row: Row) -> None:
    row["input_ids"][3] = 5000


def shorten_labels(row: Row) -> None:
    del row["labels"][-1]


def lengthen_labels(row: Row) -> None:
    row["labels"].append(IGNORE_INDEX)


@pytest.mark.parametrize(
    ("fault", "code", "values", "position"),
    [
        (unmask_header_newlines, 1, {"header_supervised": 1}, FIRST_NEWLINE),
        (unmask_newline_after_stop, 0, {"scaffold_differs": 1}, LAST_STOP + 1),
        (unmask_question, 1, {"prompt_supervised": 3}, QUESTION),
        (mask_first_answer_token, 1, {"content_masked": 1}, FIRST_NEWLINE + 1),
        (mask_last_stop, 1, {"stop_masked": 1}, LAST_STOP),
        (cut_off_stop, 1, {"stop_missing": 1}, -1),
        (other_label, 1, {"label_differs": 1}, FIRST_NEWLINE + 1),
        (id_outside, 1, {"id_outside_vocabulary": 1}, 3),
    ],
)
def test_a_fault_in_one_row_is_named_at_its_token(
    project: Path,
    right: list[Row],
    tmp_path: Path,
    fault: Callable[[Row], None],
    code: int,
    values: dict[str, int],
    position: int,
) -> None:
    verdict = judge_rows(project, edited(right, fault, 0), tmp_path)
    assert (verdict.code, verdict.values()) == (code, values)
    (finding,) = verdict.findings
    assert (finding["source"], finding["row"]) == ("source.jsonl:1", "t.jsonl:1")
    assert int(finding["position"]) == position


def test_a_finding_says_which_message_and_which_token(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    rows = edited(edited(right, unmask_header_newlines, 0), unmask_newline_after_stop, 1)
    verdict = judge_rows(project, edited(rows, mask_first_answer_token, 2), tmp_path)
    assert verdict.evidence("header_supervised") == [
        f"source.jsonl:1 (t.jsonl:1) token {FIRST_NEWLINE} '\\n': before message 2 (assistant)"
    ]
    assert verdict.evidence("scaffold_differs") == [
        f"source.jsonl:2 (t.jsonl:2) token {LAST_STOP + 1} '\\n': after message 4 (assistant)"
    ]
    assert verdict.evidence("content_masked") == [
        f"source.jsonl:3 (t.jsonl:3) token {FIRST_NEWLINE + 1} 'W': in message 2 (assistant)"
    ]


def test_a_row_that_trains_nothing_is_named(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    verdict = judge_rows(project, edited(right, mask_all, 4), tmp_path)
    assert verdict.code == 1
    answers = len("Writer 4.") + len("In 1904.")
    assert verdict.values() == {
        "no_supervised_token": 1,
        "content_masked": answers,
        "stop_masked": 2,
    }


def test_labels_of_another_length_are_named_and_the_other_rows_judged(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    rows = edited(edited(right, shorten_labels, 3), lengthen_labels, 5)
    verdict = judge_rows(project, edited(rows, mask_last_stop, 4, 6), tmp_path)
    assert (verdict.code, verdict.values()) == (
        1,
        {"unreadable_rows": 2, "stop_masked": 2, "unmatched_source_rows": 2},
    )
    assert verdict.evidence("unreadable_rows") == [
        f"t.jsonl:4: {LENGTH - 1} values in 'labels' for {LENGTH} tokens in 'input_ids'",
        f"t.jsonl:6: {LENGTH + 1} values in 'labels' for {LENGTH} tokens in 'input_ids'",
    ]
    places = [(one["source"], one["row"], one["position"]) for one in verdict.findings]
    assert places == [
        ("source.jsonl:5", "t.jsonl:5", str(LAST_STOP)),
        ("source.jsonl:7", "t.jsonl:7", str(LAST_STOP)),
    ]
    assert refusal(project, edited(right, shorten_labels), tmp_path) == (
        f"t.jsonl: no row can be read: t.jsonl:1: {LENGTH - 1} values in 'labels' for {LENGTH} "
        "tokens in 'input_ids'"
    )


def test_labels_of_another_length_in_a_packed_row_are_named(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    lengths = [len(row["input_ids"]) for row in right]
    rows = [pack(right[n : n + 4], seq_lengths=lengths[n : n + 4]) for n in (0, 4)]
    verdict = judge_rows(project, edited(rows, shorten_labels, 1), tmp_path)
    assert verdict.evidence("unreadable_rows") == [
        f"t.jsonl:2: {4 * LENGTH - 1} values in 'labels' for {4 * LENGTH} tokens in 'input_ids'"
    ]


def test_inverted_labels_are_explained(project: Path, right: list[Row], tmp_path: Path) -> None:
    def invert(row: Row) -> None:
        pairs = zip(row["input_ids"], row["labels"], strict=True)
        row["labels"] = [token if target < 0 else IGNORE_INDEX for token, target in pairs]

    verdict = judge_rows(project, edited(right, invert), tmp_path)
    assert verdict.code == 1
    assert verdict.values()["stop_masked"] == 2 * len(right)
    assert verdict.record["causes"][0].startswith("the labels are inverted")


def test_the_policy_is_what_the_options_say(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    verdict = judge_rows(project, right, tmp_path, turns="last")
    first_answers = len(right) * (len("Writer 0.") + 1)
    assert verdict.values() == {"prompt_supervised": first_answers}
    assert verdict.findings[0]["tokens"] == "'Writer 0'"

    def last_only(row: Row) -> None:
        for t in supervised(row)[: len("Writer 0.") + 1]:
            row["labels"][t] = IGNORE_INDEX

    last = edited(right, last_only)
    assert judge_rows(project, last, tmp_path, turns="last").code == 0
    assert judge_rows(project, last, tmp_path).values() == {
        "content_masked": len(right) * len("Writer 0."),
        "stop_masked": len(right),
    }


def shift(row: Row) -> None:
    row["labels"] = [*row["labels"][1:], IGNORE_INDEX]


def test_labels_shifted_by_one_are_recognised(
    project: Path, right: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shifted = edited(right, shift)
    assert judge_rows(project, shifted, tmp_path).code == 0
    assert "labels pre-shifted by one: yes (told by the ids they copy)" in capsys.readouterr().out
    assert judge_rows(project, shifted, tmp_path, pre_shifted="yes").code == 0
    assert "label_differs" in judge_rows(project, shifted, tmp_path, pre_shifted="no").values()
    fault = edited(edited(right, unmask_header_newlines, 0), shift)
    (finding,) = judge_rows(project, fault, tmp_path).findings
    assert (finding["kind"], int(finding["position"])) == ("header_supervised", FIRST_NEWLINE)


def refusal(project: Path, rows: Rows, directory: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        judge_rows(project, rows, directory, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{directory}/", "").replace(f"{project}/", "")


def test_labels_of_other_tokens_cannot_be_judged(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    def all_other(row: Row) -> None:
        row["labels"] = [7 if target >= 0 else target for target in row["labels"]]

    wrong = edited(right, all_other)
    assert refusal(project, wrong, tmp_path).startswith(
        "t.jsonl: in 8 of 8 rows, labels are copies neither of their own tokens nor of the next"
    )
    assert "label_differs" in judge_rows(project, wrong, tmp_path, pre_shifted="no").values()


@pytest.mark.parametrize("column", ["assistant_masks", "completion_mask"])
def test_masks_are_judged_like_labels(
    project: Path, right: list[Row], tmp_path: Path, column: str
) -> None:
    def as_mask(row: Row) -> None:
        row[column] = [int(target >= 0) for target in row.pop("labels")]

    assert judge_rows(project, edited(right, as_mask), tmp_path).code == 0
    wrong = edited(edited(right, mask_last_stop, 5), as_mask)
    assert judge_rows(project, wrong, tmp_path).values() == {"stop_masked": 1}
    assert "which nobody shifts" in refusal(project, wrong, tmp_path, pre_shifted="yes")


def test_padding_on_either_side_is_no_fault_but_supervised_padding_is(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    def pad(row: Row) -> None:
        row["attention_mask"] = [0, 0] + [1] * len(row["input_ids"]) + [0]
        row["input_ids"] = [0, 0, *row["input_ids"], 0]
        row["labels"] = [IGNORE_INDEX, IGNORE_INDEX, *row["labels"], IGNORE_INDEX]

    def supervise(row: Row) -> None:
        row["labels"][-1] = 0

    padded = edited(right, pad)
    assert judge_rows(project, padded, tmp_path).code == 0
    verdict = judge_rows(project, edited(padded, supervise, 2), tmp_path)
    assert (verdict.code, verdict.values()) == (1, {"padding_supervised": 1})
    assert verdict.findings[0]["position"] == str(2 + LENGTH)
    moved = judge_rows(project, edited(edited(right, mask_last_stop, 0), pad), tmp_path)
    assert moved.findings[0]["position"] == str(2 + LAST_STOP)


def test_dropped_and_shuffled_rows_find_their_conversation(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    order = [6, 0, 3, 7, 1]
    rows = edited([right[number] for number in order], mask_last_stop, 2)
    verdict = judge_rows(project, rows, tmp_path)
    assert verdict.values() == {"stop_masked": 1, "unmatched_source_rows": 3}
    assert verdict.findings[0]["source"] == "source.jsonl:4"
    assert verdict.evidence("unmatched_source_rows") == [
        "source.jsonl:3",
        "source.jsonl:5",
        "source.jsonl:6",
    ]


def test_the_same_conversation_twice_is_matched_in_order(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    twice = write_source(tmp_path / "twice.jsonl", [CONVERSATIONS[0], *CONVERSATIONS])
    rows = edited([right[0], *right], mask_last_stop, 1)
    verdict = judge_rows(project, rows, tmp_path, source=twice)
    assert verdict.values() == {"stop_masked": 1}
    assert verdict.findings[0]["source"] == "twice.jsonl:2"


def test_a_conversation_and_its_beginning_are_told_apart(
    project: Path, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    beginnings = [messages[:3] for messages in CONVERSATIONS]
    source = write_source(tmp_path / "both.jsonl", [*beginnings, *CONVERSATIONS])
    rows = [token_row(tokenizer, messages) for messages in (*CONVERSATIONS, *beginnings)]
    assert judge_rows(project, rows, tmp_path, source=source).values() == {}


def test_a_row_of_no_conversation_is_not_judged_and_fails(
    project: Path, tokenizer: ChatTokenizer, right: list[Row], tmp_path: Path
) -> None:
    stranger = token_row(
        tokenizer,
        [
            {"role": "user", "content": "Something entirely different, please."},
            {"role": "assistant", "content": "Certainly: ocean, violin, umbrella."},
        ],
    )
    verdict = judge_rows(project, [*right, stranger], tmp_path)
    assert (verdict.code, verdict.values()) == (1, {"unmatched_token_rows": 1})
    assert verdict.evidence("unmatched_token_rows") == ["t.jsonl:9"]


def test_a_row_in_which_little_is_left_is_judged_by_its_place(
    project: Path, tokenizer: ChatTokenizer, right: list[Row], tmp_path: Path
) -> None:
    other = [{**message, "content": "?"} for message in CONVERSATIONS[3]]
    rows = [*right[:3], token_row(tokenizer, other), *right[4:]]
    verdict = judge_rows(project, rows, tmp_path)
    assert verdict.values()["content_dropped"] == 5
    assert {finding["source"] for finding in verdict.findings} == {"source.jsonl:4"}


def test_a_message_that_the_template_drops_is_named(
    project: Path, tokenizer: ChatTokenizer, right: list[Row], tmp_path: Path
) -> None:
    rows = [token_row(tokenizer, CONVERSATIONS[0][1:]), *right[1:]]
    verdict = judge_rows(project, rows, tmp_path)
    assert verdict.values() == {"content_dropped": 1}
    assert "message 0 (system) is not in the row" in verdict.findings[0]["detail"]


@pytest.mark.parametrize("length", [30, FIRST_NEWLINE + 4, FIRST_NEWLINE + 11, 85])
def test_a_row_that_was_cut_off_warns(
    project: Path, right: list[Row], tmp_path: Path, length: int
) -> None:
    def cut(row: Row) -> None:
        for values in row.values():
            del values[length:]

    verdict = judge_rows(project, edited(right, cut, 0), tmp_path)
    assert set(verdict.values()) - {"no_supervised_token"} == {"truncated_rows"}
    assert verdict.evidence("truncated_rows") == ["source.jsonl:1 (t.jsonl:1)"]


def pack(rows: Rows, **extra: list[int]) -> Row:
    joined = {name: [one for row in rows for one in row[name]] for name in rows[0]}
    return {**joined, **extra}


def test_packed_rows_are_judged_where_they_say_how_they_are_packed(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    wrong = edited(right, mask_last_stop, 1)
    lengths = [len(row["input_ids"]) for row in wrong]
    rows = [pack(wrong[n : n + 4], seq_lengths=lengths[n : n + 4]) for n in (0, 4)]
    verdict = judge_rows(project, rows, tmp_path)
    assert verdict.values() == {"stop_masked": 1}
    (finding,) = verdict.findings
    assert (finding["source"], finding["row"]) == ("source.jsonl:2", "t.jsonl:1 part 2")
    assert int(finding["position"]) == LENGTH + LAST_STOP
    assert "packed rows cannot be judged without 'seq_lengths'" in refusal(
        project, [pack(right[:4]), pack(right[4:])], tmp_path
    )


def test_packed_lengths_that_no_row_has_are_named_by_row(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    lengths = [len(row["input_ids"]) for row in right[:2]]
    rows = [
        pack(right[:2], seq_lengths=lengths),
        pack(right[2:4], seq_lengths=[2 * LENGTH, -1]),
        pack(right[4:6], seq_lengths=[2**62] * 4 + [2 * LENGTH]),
        pack(right[6:], seq_lengths=[LENGTH, LENGTH - 1]),
    ]
    verdict = judge_rows(project, rows, tmp_path)
    assert (verdict.code, verdict.values()) == (
        1,
        {"unreadable_rows": 3, "unmatched_source_rows": 6},
    )
    assert verdict.evidence("unreadable_rows") == [
        "t.jsonl:2: 'seq_lengths' holds -1; each must be 1 or more",
        f"t.jsonl:3: 'seq_lengths' add up to {2**64 + 2 * LENGTH}, the row has {2 * LENGTH} tokens",
        f"t.jsonl:4: 'seq_lengths' add up to {2 * LENGTH - 1}, the row has {2 * LENGTH} tokens",
    ]


def test_another_source_or_another_tokenizer_cannot_be_judged(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    other: list[Message] = [
        {"role": "user", "content": "Name three completely unrelated gemstones"},
        {"role": "assistant", "content": "Opal, topaz and garnet, for instance"},
    ]
    source = write_source(tmp_path / "other.jsonl", [other])
    told = refusal(project, right, tmp_path, source=source)
    assert told.startswith("t.jsonl: only 0 of 8 rows (0%) hold a conversation of other.jsonl")

    def renumber(row: Row) -> None:
        row["input_ids"] = [token + 1000 for token in row["input_ids"]]
        row["labels"] = [target + 1000 if target >= 0 else target for target in row["labels"]]

    told = refusal(project, edited(right, renumber), tmp_path)
    assert "8 rows hold ids beyond its vocabulary of 259" in told


def test_broken_lines_are_counted_named_and_fail(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", right)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[4] = lines[4][:40]
    lines.append('{"input_ids": [5], "labels": [5], "attention_mask": [1, 1]}')
    path.write_text("\n".join(lines), encoding="utf-8")
    verdict = judge(project, path, tmp_path)
    assert (verdict.code, verdict.values()) == (
        1,
        {"unreadable_rows": 2, "unmatched_source_rows": 1},
    )
    broken, misfit = verdict.evidence("unreadable_rows")
    assert broken.startswith("t.jsonl:5: not valid JSON")
    assert misfit == "t.jsonl:9: 2 values in 'attention_mask' for 1 tokens in 'input_ids'"


def test_a_file_without_one_good_row_is_refused(project: Path, tmp_path: Path) -> None:
    rows: Any = [{"ids": [1, 2], "text": "a"}]
    assert refusal(project, rows, tmp_path) == (
        "t.jsonl: no row can be read: t.jsonl:1: has no input_ids; its columns are ids, text"
    )


def test_bad_lines_of_the_source_are_named(project: Path, right: list[Row], tmp_path: Path) -> None:
    source = write_source(tmp_path / "half.jsonl", CONVERSATIONS)
    source.write_text(source.read_text(encoding="utf-8") + "{}\n", encoding="utf-8")
    verdict = judge_rows(project, right, tmp_path, source=source)
    assert (verdict.code, verdict.values()) == (0, {"unreadable_source_rows": 1})
    assert verdict.evidence("unreadable_source_rows")[0].startswith(
        "half.jsonl:9: has no 'messages'"
    )
    source.write_text("{}\n", encoding="utf-8")
    assert "holds no conversation" in refusal(project, right, tmp_path, source=source)
    assert "does not exist" in refusal(project, right, tmp_path, source=tmp_path / "none")


def test_the_report_is_the_same_wherever_it_is_made(
    project: Path, right: list[Row], tmp_path: Path
) -> None:
    reports = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        judge_rows(project, edited(right, mask_last_stop), tmp_path / place)
        files = sorted((tmp_path / place / "report").iterdir())
        reports.append([(file.name, file.read_bytes()) for file in files])
    assert reports[0] == reports[1]
    assert [name for name, _ in reports[0]] == ["findings.csv", "index.html", "verdict.json"]
    assert not any(str(tmp_path).encode() in content for _, content in reports[0])


def test_the_verdict_is_bound_to_all_code_that_the_command_can_import() -> None:
    empty = {"stages/__init__.py", "stages/commands/__init__.py"}
    bound = {*empty, *(f"stages/{name}" for name in code_files())}
    assert closure(ROOT, "commands/audit_labels") - bound == set()


def exit_code(project: Path, *arguments: str) -> Any:
    given = ("--source", str(project / "source.jsonl"), "--tokenizer", str(project / "tokenizer"))
    with pytest.raises(SystemExit) as ended:
        main(["audit-labels", *given, *arguments])
    return ended.value.code


def test_the_command_exits_with_0_1_or_2(
    project: Path, right: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(write_jsonl(tmp_path / "good.jsonl", right))
    bad = str(write_jsonl(tmp_path / "bad.jsonl", edited(right, mask_last_stop)))
    assert exit_code(project, "--tokens", good) == 0
    assert exit_code(project, "--tokens", bad) == 1
    assert "fail: stop_masked" in capsys.readouterr().out
    assert exit_code(project, "--tokens", f"{good}.none") == 2
    assert exit_code(project, "--tokens", str(tmp_path)) == 2
    assert exit_code(project, "--tokens", good, "--source", str(tmp_path)) == 2
    assert "(--source) is a directory; name one file" in capsys.readouterr().err
    assert exit_code(project, "--tokens", good, "--supervise", "content,answers") == 2
    assert "--supervise: 'answers' cannot be supervised" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "good.jsonl"]


def test_the_command_line_has_the_defaults_of_the_options() -> None:
    given = ["--tokens", "a", "--source", "b", "--tokenizer", "c"]
    parsed = options_of(build_parser().parse_args(["audit-labels", *given]))
    assert parsed == Options(Path("a"), Path("b"), Path("c"))


def test_every_rule_can_fail_and_every_failure_has_a_cause() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        check = judge_rule(rule, Measured(1), {}, None)
        assert (check.status, bool(check.remedy)) == (rule.severity, True)
        assert len(rank_causes([check], CAUSES)) == (rule.severity == "fail")
