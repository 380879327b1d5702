"""A page opens offline, shows what was found, and shows it as text."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stages.config.errors import UserError
from stages.report.page import (
    Bar,
    Link,
    Section,
    Table,
    allowed,
    claim_directory,
    count_statuses,
    remark,
    report_directory,
    worst_first,
    write_page,
)
from stages.report.token_view import TokenFinding, TokenView
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
    return TokenView(
        anchor="row-1",
        source=text,
        split=text,
        status=text,
        tokens=[text, "b"],
        ids=[3, 4],
        labels=[-100, 4],
        roles=[text, "stop"],
        findings=[TokenFinding(text, 0, 1, text)],
        detail=text,
    )


def everything(text: str) -> dict[str, Any]:
    """A page with `text` in every field that a run can fill."""
    check = make_check(
        text, "fail", rule=text, message=text, remedy=text, unit=text, value=text, evidence=[text]
    )
    return {
        "documentation": text,
        "verdict": make_verdict(check, causes=[text], not_covered=[text]),
        "sections": [
            Section(
                text,
                text,
                table=Table([text], [[text], [[Link(text, "#row-1"), Link(text)]]], total=9),
                bars=[[Bar(text, 2, text), Bar(text, 1, text, {text: 1})]],
            )
        ],
        "conversations": [make_view(text)],
        "summary": {text: text},
    }


def test_a_page_escapes_every_field() -> None:
    harmless, evil = write(**everything("harmless")), write(**everything(EVIL))
    assert evil.tags == harmless.tags
    assert "img" not in evil.tags
    assert [script for script in evil.scripts if "alert(1)</script>" in script] == []
    shown = " ".join(EVIL.split())
    assert evil.words.count(shown) == harmless.words.count("harmless") >= 18


def test_the_name_of_a_stage_is_escaped() -> None:
    assert "img" not in write("<img src=x>").tags


def test_the_tokens_arrive_in_the_viewer_as_they_are() -> None:
    page = write(conversations=[make_view(EVIL)])
    data = json.loads(page.scripts[0])
    assert data["pieces"] == [EVIL, "b"]
    assert data["rows"][0]["source"] == EVIL
    assert data["rows"][0]["findings"] == [[EVIL, 0, 1, EVIL]]


def test_a_reader_without_javascript_is_told_so() -> None:
    page = write(conversations=[make_view("text")])
    assert "noscript" in page.tags
    assert any("needs JavaScript" in word for word in page.words)


def test_a_page_without_conversations_has_no_script() -> None:
    assert "script" not in write(verdict=make_verdict()).tags


def test_a_page_fetches_nothing() -> None:
    page = write(**everything("text"))
    assert {"link", "img", "iframe", "object"}.isdisjoint(page.tags)
    addresses = [value for name, value in page.attributes if name in ("src", "href", "action")]
    assert addresses
    assert [address for address in addresses if not str(address).startswith("#")] == []
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
    place = page.words.index("loss")
    assert page.words[place - 1 :] == [
        *("fail", "loss", "rule of loss", "0.75 nats", "-0.25", "8", "42"),
        *("message of loss", "Remedy:", "remedy of loss", "row 7"),
    ]


def test_the_message_of_a_check_is_not_told_twice() -> None:
    check = make_check("loss", "fail", message="0.75 nats (at most 0.5); 3 rows")
    assert (allowed(check), remark(check)) == ("at most 0.5", "3 rows")
    alone = make_check("loss", message="0.75 nats (at most 0.5)")
    assert (allowed(alone), remark(alone)) == ("at most 0.5", "")
    unjudged = make_check("loss", "not_judged", value=None, message="could not be judged: (no)")
    assert (allowed(unjudged), remark(unjudged)) == ("", "could not be judged: (no)")


def test_the_checks_are_counted_the_worst_first() -> None:
    checks = [make_check("a"), make_check("b", "not_judged"), make_check("c"), make_check("d")]
    assert count_statuses(checks) == "1 of 4 checks not judged, 3 pass"
    assert count_statuses(checks[2:]) == "2 of 2 checks pass"


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


def test_a_funnel_is_drawn_against_its_first_bar_and_names_what_was_lost() -> None:
    funnel = [Bar("loaded", 8000, "rows"), Bar("kept", 6000, "rows", {"too_long": 2000, "bad": 0})]
    page = write(sections=[Section("T", bars=[funnel])])
    styles = [value for name, value in page.attributes if name == "style"]
    assert styles == ["display:block;width:100.00%", "display:block;width:75.00%"]
    place = page.words.index("loaded")
    assert page.words[place:] == [
        *("loaded", "8,000 rows", "kept", "6,000 rows"),
        "\N{MINUS SIGN}2,000 too long",
    ]


def test_an_empty_funnel_is_drawn_too() -> None:
    page = write(sections=[Section("T", bars=[[Bar("loaded", 0, "rows")]])])
    assert ("style", "display:block;width:0.00%") in page.attributes


def test_links_in_a_table_lead_to_their_rows() -> None:
    table = Table(["examples"], [[[Link("there", "#row-3-token-5"), Link("nowhere")]]])
    page = write(sections=[Section("T", table=table)])
    assert [value for name, value in page.attributes if name == "href"] == ["#row-3-token-5"]
    assert page.words[-2:] == ["there", "nowhere"]


def test_a_list_that_holds_no_links_is_a_plain_cell() -> None:
    page = write(sections=[Section("T", table=Table(["betas"], [[[0.9, 0.95]], [(1, 2)]]))])
    assert page.words[-2:] == ["[0.9, 0.95]", "(1, 2)"]


def test_a_report_is_not_written_among_other_files(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "rows.jsonl").touch()
    with pytest.raises(UserError, match=r"taken holds other files, and no earlier report"):
        claim_directory(taken, "sweep.csv")
    with pytest.raises(UserError, match="is no directory"):
        claim_directory(taken / "rows.jsonl", "sweep.csv")
    (taken / "sweep.csv").touch()
    claim_directory(taken, "sweep.csv")
    claim_directory(tmp_path / "a/new", "sweep.csv")
    assert (tmp_path / "a/new").is_dir()
