"""A page opens offline, shows what was found, and shows it as text."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stages.report.page import Section, Table, TokenView, report_directory, worst_first, write_page
from stages.verdict.judging import Check, Status
from stages.verdict.record import Verdict

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_check(name: str, status: Status = "pass", **changes: Any) -> Check:
    record: dict[str, Any] = {
        "id": name,
        "rule": f"rule of {name}",
        "status": status,
        "value": 0.75,
        "limit": 0.5,
        "margin": -0.25,
        "unit": "nats",
        "n": 8,
        "seed": 42,
        "message": f"message of {name}",
        "remedy": "" if status == "pass" else f"remedy of {name}",
        "evidence": [],
    }
    return Check(**{**record, **changes})


def make_verdict(*checks: Check, **changes: Any) -> Verdict:
    record: dict[str, Any] = {
        "gate": "overfit_gate",
        "schema": 1,
        "status": "fail",
        "passed": False,
        "checks": list(checks),
        "causes": [],
        "not_covered": [],
        "inputs": {},
        "outputs": {},
        "params": {},
        "params_sha256": "",
        "code_sha256": "",
        "environment": {},
        "environment_sha256": "",
    }
    return Verdict(**{**record, **changes})


class Page(HTMLParser):
    """The elements and the visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"]:
            self.scripts.append(data)
        elif data.strip() and self.tags[-1:] != ["style"]:
            self.words.append(" ".join(data.split()))


def write(stage: str = "overfit_gate", **parts: Any) -> Page:
    path = write_page(stage, parts.pop("documentation", "What is it?\n\nMore."), **parts)
    assert path == Path("reports") / stage / "index.html"
    return Page(path.read_text(encoding="utf-8"))


def make_view(text: str) -> TokenView:
    return TokenView(text, [text, "b"], [3, 4], [-100, 4], [text, "stop"], [{"kind": text}])


def everything(text: str) -> dict[str, Any]:
    """A page with `text` in every field that a run can fill."""
    check = make_check(
        text, "fail", rule=text, message=text, remedy=text, unit=text, value=text, evidence=[text]
    )
    return {
        "documentation": text,
        "verdict": make_verdict(check, causes=[text], not_covered=[text]),
        "sections": [Section(text, text, table=Table([text], [[text]], total=9))],
        "conversations": [make_view(text)],
        "summary": {text: text},
    }


def test_a_page_escapes_every_field() -> None:
    harmless, evil = write(**everything("harmless")), write(**everything(EVIL))
    assert evil.tags == harmless.tags
    assert "img" not in evil.tags
    assert [script for script in evil.scripts if "alert(1)</script>" in script] == []
    shown = " ".join(EVIL.split())
    assert evil.words.count(shown) == harmless.words.count("harmless") >= 11


def test_the_name_of_a_stage_is_escaped() -> None:
    assert "img" not in write("<img src=x>").tags


def test_the_tokens_arrive_in_the_viewer_as_they_are() -> None:
    page = write(conversations=[make_view(EVIL)])
    assert json.loads(page.scripts[0]) == [
        {
            "source": EVIL,
            "tokens": [EVIL, "b"],
            "ids": [3, 4],
            "labels": [-100, 4],
            "roles": [EVIL, "stop"],
            "findings": [{"kind": EVIL}],
        }
    ]


def test_a_page_without_conversations_has_no_script() -> None:
    assert "script" not in write(verdict=make_verdict()).tags


def test_a_page_fetches_nothing() -> None:
    page = write(**everything("text"))
    assert {"link", "img", "iframe", "object"}.isdisjoint(page.tags)
    assert [name for name, _ in page.attributes if name in ("src", "href", "action")] == []
    assert "http" not in Path("reports/overfit_gate/index.html").read_text(encoding="utf-8")


def test_the_same_findings_give_the_same_bytes() -> None:
    write(**everything("text"))
    first = Path("reports/overfit_gate/index.html").read_bytes()
    write(**everything("text"))
    assert Path("reports/overfit_gate/index.html").read_bytes() == first


def test_the_page_begins_with_the_stage_its_status_and_its_question() -> None:
    page = write(verdict=make_verdict(status="not_judged"))
    assert page.words[:4] == [
        "overfit_gate: not_judged",
        "overfit_gate",
        "NOT JUDGED",
        "What is it?",
    ]


def test_a_check_is_shown_with_all_that_a_reader_needs() -> None:
    page = write(verdict=make_verdict(make_check("loss", "fail", evidence=["row 7"])))
    for word in ("loss", "rule of loss", "message of loss", "remedy of loss", "row 7"):
        assert word in page.words
    assert page.words[-3:] == ["-0.25", "8", "42"]


def test_the_worst_check_comes_first() -> None:
    checks = [
        make_check("one", "pass"),
        make_check("two", "warn"),
        make_check("three", "not_judged"),
        make_check("four", "fail"),
        make_check("five", "pass"),
    ]
    order = [check.id for check in worst_first(checks)]
    assert order == ["four", "three", "two", "one", "five"]
    words = write(verdict=make_verdict(*checks)).words
    assert [word for word in words if word in order] == order


def test_long_evidence_is_cut_and_counted() -> None:
    rows = [f"row {number}" for number in range(25)]
    words = write(verdict=make_verdict(make_check("loss", "fail", evidence=rows))).words
    assert [word for word in words if word.startswith("row ")] == rows[:20]
    assert "5 more" in words


def test_causes_are_ranked_and_what_is_not_covered_is_told() -> None:
    page = write(verdict=make_verdict(causes=["first", "second"], not_covered=["the rest"]))
    place = page.words.index("Cause 1.")
    assert page.words[place : place + 4] == ["Cause 1.", "first", "Cause 2.", "second"]
    assert "the rest" in page.words


def test_numbers_are_shown_with_four_digits() -> None:
    page = write(
        summary={"loss": 0.123456, "rows": 123456},
        sections=[Section("T", table=Table(["a", "b"], [[1e-09, None], [2.0, "x"]]))],
    )
    for word in ("0.1235", "123456", "1e-09", "None", "2", "x"):
        assert word in page.words


def test_a_table_that_shows_only_some_rows_says_so() -> None:
    table = Table(["row"], [[1], [2]], total=9)
    assert "2 of 9 shown." in write(sections=[Section("T", table=table)]).words
    whole = Table(["row"], [[1], [2]], total=2)
    assert [w for w in write(sections=[Section("T", table=whole)]).words if "shown" in w] == []


def test_a_chart_is_part_of_the_page() -> None:
    page = write(sections=[Section("Curve", charts=["<svg><title>drawn</title></svg>"])])
    assert "svg" in page.tags
    assert "drawn" in page.words


def test_a_report_has_a_directory_of_its_own() -> None:
    assert report_directory("probe") == Path("reports/probe")
    assert Path("reports/probe").is_dir()
