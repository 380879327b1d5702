"""The terminal shows a verdict on one screen, and text as it is."""

import pytest

from stages.report import terminal
from stages.report.terminal import (
    TrainingProgress,
    print_table,
    print_tokens,
    print_verdict,
    progress,
)

from .test_page import make_check, make_verdict


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal.console, "width", 200)


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]


def test_every_check_has_a_line_with_value_and_what_is_allowed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = make_check("loss", message="0.25 nats (below 0.5); lowest", value=0.25)
    none = make_check("norm", "not_judged", value=None, message="could not be judged: (no) rows")
    print_verdict(make_verdict(good, none, status="not_judged"))
    lines = printed(capsys)
    assert lines[0].strip() == "overfit_gate: NOT_JUDGED"
    assert ["loss", "pass", "0.25 nats", "below 0.5"] in map(cells, lines)
    assert ["norm", "not_judged", "- nats", "-"] in map(cells, lines)


def test_what_does_not_pass_is_told_with_evidence_and_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [f"row {number}" for number in range(7)]
    bad = make_check("loss", "fail", message="0.75 nats (below 0.5)", evidence=rows)
    print_verdict(make_verdict(make_check("norm"), bad, causes=["first", "second"]))
    lines = printed(capsys)
    start = lines.index("fail: loss: rule of loss")
    assert lines[start:] == [
        "fail: loss: rule of loss",
        "  0.75 nats (below 0.5)",
        *(f"    row {number}" for number in range(5)),
        "    ... 2 more in the report",
        "  remedy: remedy of loss",
        "cause 1: first",
        "cause 2: second",
        "evidence: reports/overfit_gate/index.html",
    ]


def test_a_table_has_its_columns_and_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("a curve", ("step", "loss"), [("0", "4.1589"), ("10", "nan")])
    lines = printed(capsys)
    assert lines[0].strip() == "a curve"
    assert [cells(line) for line in lines if "│" in line or "┃" in line] == [
        ["step", "loss"],
        ["0", "4.1589"],
        ["10", "nan"],
    ]


def test_a_blocked_gate_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict(make_verdict(status="blocked", causes=["'mask_report' did not pass"]))
    assert printed(capsys) == [
        "overfit_gate: BLOCKED",
        "cause 1: 'mask_report' did not pass",
        "evidence: reports/overfit_gate/index.html",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "data/rows.jsonl:100: not JSON",
        "[red]not red[/red]",
        "[/]",
        ":warning: :fire:",
        "a\\[b]",
    ],
)
def test_what_was_found_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], text: str) -> None:
    bad = make_check("loss", "fail", rule=text, message=text, remedy=text, evidence=[text])
    print_verdict(make_verdict(bad, causes=[text]))
    lines = printed(capsys)
    for line in (
        f"fail: loss: {text}",
        f"  {text}",
        f"    {text}",
        f"  remedy: {text}",
        f"cause 1: {text}",
    ):
        assert line in lines


def test_every_token_is_shown_with_its_label(capsys: pytest.CaptureFixture[str]) -> None:
    print_tokens("row 1", ["a b", "\n", '"', "\\", "[red]", "<|end|>"], [-100, -100, 5, 6, 7, 8])
    assert printed(capsys) == [
        "row 1",
        'Token: "a b" -> Label: -100 (Masked)',
        'Token: "\\n" -> Label: -100 (Masked)',
        'Token: "\\"" -> Label: 5 (SUPERVISED)',
        'Token: "\\\\" -> Label: 6 (SUPERVISED)',
        'Token: "[red]" -> Label: 7 (SUPERVISED)',
        'Token: "<|end|>" -> Label: 8 (SUPERVISED)',
    ]


def test_a_label_of_zero_is_supervised(capsys: pytest.CaptureFixture[str]) -> None:
    print_tokens("row", ["a"], [0])
    assert printed(capsys)[1] == 'Token: "a" -> Label: 0 (SUPERVISED)'


@pytest.mark.parametrize(
    ("token", "shown"), [("\r", "\\r"), ("\t", "\\t"), ("\x1b[2J", "\\x1b[2J"), ("\x07", "\\x07")]
)
def test_a_control_character_is_shown_and_not_sent(
    capsys: pytest.CaptureFixture[str], token: str, shown: str
) -> None:
    print_tokens("row", [token], [-100])
    assert capsys.readouterr().out == f'row\nToken: "{shown}" -> Label: -100 (Masked)\n'


def test_tokens_and_labels_of_unequal_number_are_a_mistake_in_the_code() -> None:
    with pytest.raises(ValueError, match="shorter"):
        print_tokens("row", ["a", "b"], [1])


def test_progress_is_silent_when_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(2, 0) as bar, progress("rows") as other:
        bar.advance(0.5, 0.1, 1.0, 100.0)
        other.add_task("labelling", total=2)
    assert capsys.readouterr().out.strip() == ""
