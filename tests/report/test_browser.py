"""The token viewer in a real browser: filters, anchors, keys, copied text, and its speed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.report.page import Section, write_page
from stages.report.token_view import TokenFinding, TokenView

from .chromium import Browser

pytestmark = pytest.mark.browser
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)><!--"
TEXT = [
    "<s>",
    "say\thi",
    " to ",
    HOSTILE,
    "\n",
    "Gr",
    b"\xc3",
    b"\xbc",
    "\u200b",
    "\u202e!",
    "</s>",
]
COPIED = f"<s>say\thi to {HOSTILE}\nGrü\u200b\u202e!</s>"
ROLES = ["scaffold", *["user"] * 3, "header", *["content"] * 5, "stop"]
LABELS = [*[-100] * 5, *range(5, 11)]


def make_view(number: int, *findings: TokenFinding, **changes: Any) -> TokenView:
    values: dict[str, Any] = {
        "anchor": f"row-{number}",
        "source": f"a.jsonl:{number}",
        "split": "train",
        "status": "kept",
        "tokens": TEXT,
        "ids": range(11),
        "labels": LABELS,
        "roles": ROLES,
        "findings": findings,
    }
    return TokenView(**{**values, **changes})


MASKED = TokenFinding("stop_masked", 10, 1, "tokens '</s>'")
LEAKED = TokenFinding("prompt_supervised", 2, 2, "tokens ' to '")
REFUSED = make_view(
    9, status="dropped: refused", tokens=[], ids=[], labels=[], roles=[], detail="because"
)
VIEWS = [
    make_view(1),
    make_view(3, MASKED, labels=[*LABELS[:10], -100]),
    make_view(5, LEAKED, MASKED, split="validation"),
    make_view(7, status="cut", tokens=["needle", *TEXT[1:]], roles=["system", *ROLES[1:]]),
    REFUSED,
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        filler = [Section(f"Part {number}", "text") for number in range(30)]
        return write_page("gate", "What?", sections=filler, conversations=VIEWS).absolute()


def shown(browser: Browser) -> list[str]:
    found = browser.evaluate("[...document.querySelectorAll('#rows > .row')].map(row => row.id)")
    return [str(name) for name in found]


def text_of(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector({selector!r}).textContent"))


def style_of(browser: Browser, selector: str, name: str) -> str:
    element = f"document.querySelector({selector!r})"
    return str(browser.evaluate(f"getComputedStyle({element}).{name}"))


def is_in_view(browser: Browser, selector: str) -> bool:
    """Whether the middle of the element lies inside the window, under nothing else."""
    return bool(
        browser.evaluate(
            f"(node => {{ const box = node.getBoundingClientRect();"
            "const top = document.elementFromPoint((box.left + box.right) / 2,"
            "(box.top + box.bottom) / 2);"
            f"return top !== null && node.contains(top); }})(document.querySelector({selector!r}))"
        )
    )


def test_the_page_opens_without_an_error_and_shows_all_rows(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert shown(browser) == ["row-1", "row-3", "row-5", "row-7", "row-9"]
    assert text_of(browser, "#count").startswith("5 of 5 rows on this page match")
    assert text_of(browser, "#count").endswith("findings in them: 3")
    assert browser.errors == []


def test_hostile_text_stays_text(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.evaluate("document.title") == "gate"
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert text_of(browser, "#row-1-token-3") == HOSTILE


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("?kind=*", ["row-3", "row-5"]),
        ("?kind=stop_masked", ["row-3", "row-5"]),
        ("?kind=prompt_supervised", ["row-5"]),
        ("?split=validation", ["row-5"]),
        ("?status=cut", ["row-7"]),
        ("?status=dropped%3A+refused", ["row-9"]),
        ("?q=NEEDLE", ["row-7"]),
        ("?q=gr%C3%BC", ["row-1", "row-3", "row-5", "row-7"]),
        ("?q=a.jsonl%3A3", ["row-3"]),
        ("?roles=system", ["row-7"]),
        ("?roles=system,stop&split=train", ["row-1", "row-3", "row-7"]),
        ("?split=validation&status=cut", []),
        ("?kind=unknown", ["row-1", "row-3", "row-5", "row-7", "row-9"]),
    ],
)
def test_filters_choose_rows(browser: Browser, page: Path, query: str, rows: list[str]) -> None:
    browser.open(page, query)
    assert shown(browser) == rows
    assert text_of(browser, "#count").startswith(f"{len(rows)} of 5 rows on this page match")


def test_a_filter_can_be_set_by_hand_and_stands_in_the_address(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    browser.evaluate(
        "(box => { box.value = 'cut'; box.dispatchEvent(new Event('input')); })"
        "(document.getElementById('status'))"
    )
    assert shown(browser) == ["row-7"]
    assert browser.evaluate("location.search") == "?status=cut"
    browser.press("Escape")
    assert len(shown(browser)) == 5
    assert browser.evaluate("location.search") == ""


def test_the_legend_counts_tokens_and_fades_the_others(browser: Browser, page: Path) -> None:
    browser.open(page)
    legend = browser.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#legend button')]"
        ".map(button => [button.dataset.role, button.lastChild.textContent]))"
    )
    assert legend == {
        "supervised": "23",
        "masked": "21",
        "scaffold": "3",
        "user": "12",
        "header": "4",
        "content": "20",
        "stop": "4",
        "system": "1",
    }
    browser.evaluate("document.querySelector('#legend [data-role=stop]').click()")
    assert shown(browser) == ["row-1", "row-3", "row-5", "row-7"]
    assert style_of(browser, "#row-1-token-10", "opacity") == "1"
    assert float(style_of(browser, "#row-1-token-1", "opacity")) < 0.5


def test_an_anchor_scrolls_to_its_token_and_marks_it(browser: Browser, page: Path) -> None:
    browser.open(page, "#row-5-token-2")
    assert browser.evaluate("document.querySelector('.here').id") == "row-5-token-2"
    assert is_in_view(browser, "#row-5-token-2")
    facts = text_of(browser, "#inspector")
    for fact in ("token 2 of 11", '" to "', "id 2", "label -100 (masked)", "role user"):
        assert fact in facts
    assert "prompt_supervised (first of 2): tokens ' to '" in facts


def test_an_anchor_shows_its_row_even_when_a_filter_hides_it(browser: Browser, page: Path) -> None:
    browser.open(page, "?status=cut#row-5-token-10")
    assert browser.evaluate("document.querySelector('.here').id") == "row-5-token-10"


def test_an_anchor_of_a_row_that_is_not_there_says_so(browser: Browser, page: Path) -> None:
    browser.open(page, "#row-400")
    assert text_of(browser, "#count") == (
        "row 400 is not among the rows on this page; rows.csv has it"
    )


def test_a_row_that_has_no_tokens_shows_its_reason(browser: Browser, page: Path) -> None:
    browser.open(page, "#row-9")
    assert "because" in text_of(browser, "#row-9 header")


def test_supervised_tokens_are_told_apart_without_colour(browser: Browser, page: Path) -> None:
    browser.open(page)
    for name, supervised, masked in (
        ("fontWeight", "700", "400"),
        ("borderBottomColor", style_of(browser, "#row-1-token-10", "color"), "rgba(0, 0, 0, 0)"),
    ):
        assert style_of(browser, "#row-1-token-10", name) == supervised
        assert style_of(browser, "#row-3-token-10", name) == masked
    tags = "[...document.querySelectorAll('#row-1 .run')].map(run => run.dataset.tag ?? '')"
    assert browser.evaluate(tags) == ["", "user", "header", "answer", "stop"]


def test_what_is_copied_is_what_the_row_says(browser: Browser, page: Path) -> None:
    browser.open(page)
    copied = browser.evaluate(
        "(getSelection().selectAllChildren(document.querySelector('#row-1 .tokens')),"
        "getSelection().toString())"
    )
    assert copied == COPIED


def test_pieces_of_a_character_are_shown_as_bytes(browser: Browser, page: Path) -> None:
    browser.open(page)
    bytes_shown = "[...document.querySelectorAll('#row-1 .bytes')].map(node => node.dataset.b)"
    assert browser.evaluate(bytes_shown) == ["C3", "BC"]
    assert [text_of(browser, f"#row-1-token-{place}") for place in (6, 7)] == ["", "ü"]
    assert "\ufffd" not in text_of(browser, "#row-1")


def test_white_space_and_what_cannot_be_seen_is_marked(browser: Browser, page: Path) -> None:
    browser.open(page)
    for selector, mark in ((".sp", "\u00b7"), (".nl", "\u21b5"), (".tab", "\u2192")):
        content = f"getComputedStyle(document.querySelector('#row-1 {selector}'), '::before')"
        assert browser.evaluate(f"{content}.content") == f'"{mark}"'
    marks = "[...document.querySelectorAll('#row-1 [data-c]')].map(node => node.dataset.c)"
    assert browser.evaluate(marks) == ["U+200B", "U+202E"]


def test_keys_step_through_findings_and_tokens(browser: Browser, page: Path) -> None:
    browser.open(page)
    places = []
    for key in ("n", "n", "n", "n", "p", "ArrowLeft", "Home", "ArrowRight", "End", "j", "k"):
        browser.press(key)
        places.append(browser.evaluate("document.querySelector('.here').id"))
    assert places == [
        *("row-3-token-10", "row-5-token-2", "row-5-token-10", "row-3-token-10"),
        *("row-5-token-10", "row-5-token-9", "row-5-token-0", "row-5-token-1"),
        *("row-5-token-10", "row-7", "row-5"),
    ]


def test_the_focused_token_tells_its_facts_and_gives_its_link(browser: Browser, page: Path) -> None:
    browser.open(page)
    for key in ("n", "Enter"):
        browser.press(key)
    assert browser.evaluate("document.activeElement.id") == "row-3-token-10"
    told = "document.querySelector('[aria-live]').textContent"
    assert "label -100 (masked)" in browser.evaluate(told)
    assert "stop_masked: tokens '</s>'" in browser.evaluate(told)
    assert browser.evaluate("location.hash") == "#row-3-token-10"


def test_enter_in_the_search_goes_to_the_next_match(browser: Browser, page: Path) -> None:
    browser.open(page, "?q=to+%3C")
    browser.evaluate("document.getElementById('search').focus()")
    places = []
    for _ in range(2):
        browser.press("Enter")
        places.append(browser.evaluate("document.querySelector('.here').id"))
    assert places == ["row-1-token-2", "row-3-token-2"]
    hit = "[...document.querySelectorAll('#row-1 .hit')].map(node => node.id)"
    assert browser.evaluate(hit) == ["row-1-token-2", "row-1-token-3"]


def test_without_javascript_a_note_says_what_is_missing(browser: Browser, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert is_in_view(browser, "h1")
        assert "needs JavaScript" in text_of(browser, "noscript")
        assert style_of(browser, "noscript", "display") != "none"
        assert style_of(browser, "#tools", "display") == "none"
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_dark_page_is_dark(browser: Browser, page: Path) -> None:
    backgrounds = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", features=[feature])
        browser.open(page)
        backgrounds[scheme] = style_of(browser, "body", "backgroundColor")
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert backgrounds == {"light": "rgb(253, 253, 252)", "dark": "rgb(23, 24, 22)"}


def test_a_very_long_row_is_shown_in_parts(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ids = range(5000)
    parts = {"tokens": [f" w{token}" for token in ids], "ids": ids, "roles": ["content"] * 5000}
    late = TokenFinding("stop_masked", 4500, 1, "tokens")
    view = make_view(1, late, labels=[-100] * 5000, **parts)
    path = write_page("gate", "What?", conversations=[view])
    places = (
        "(all => [all.length, all[0].id, all.at(-1).id])([...document.querySelectorAll('.row .t')])"
    )
    browser.open(path)
    assert browser.evaluate(places) == [2000, "row-1-token-0", "row-1-token-1999"]
    browser.press("n")
    assert browser.evaluate(places) == [1500, "row-1-token-3500", "row-1-token-4999"]
    assert is_in_view(browser, "#row-1-token-4500")
    browser.evaluate("document.querySelector('.tokens .more').click()")
    assert browser.evaluate(places) == [2000, "row-1-token-1500", "row-1-token-3499"]
    browser.evaluate("[...document.querySelectorAll('.tokens .more')].at(-1).click()")
    assert browser.evaluate(places) == [1500, "row-1-token-3500", "row-1-token-4999"]


def test_a_full_sample_of_long_rows_is_quick(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    views = []
    for number in range(1, 401):
        ids = [(number * 7919 + place * 104_729) % 20_000 for place in range(500)]
        views.append(
            make_view(
                number,
                *([TokenFinding("stop_masked", 499, 1, "tokens")] if number % 2 else []),
                tokens=[f" w{token}" for token in ids],
                ids=ids,
                labels=[-100] * 250 + ids[250:],
                roles=["user"] * 250 + ["content"] * 249 + ["stop"],
            )
        )
    path = write_page("gate", "What?", conversations=views)
    assert path.stat().st_size < 2_000_000
    browser.open(path)
    assert browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") < 3000
    for act in (
        "document.getElementById('kind').value = '*'; document.getElementById('kind').oninput()",
        "document.querySelector('#legend [data-role=stop]').click()",
        "document.getElementById('clear').click()",
    ):
        milliseconds = browser.evaluate(
            f"(start => {{ {act}; document.body.offsetHeight; return performance.now() - start; }})"
            "(performance.now())"
        )
        assert milliseconds < 1000
        assert browser.evaluate("document.querySelectorAll('#rows *').length") < 10_000
    browser.evaluate("location.hash = '#row-399-token-499'")
    browser.evaluate("new Promise(done => setTimeout(done, 50))")
    assert is_in_view(browser, "#row-399-token-499")
