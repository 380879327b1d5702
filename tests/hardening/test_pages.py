"""Nothing that a file from outside holds becomes markup: not on a page, not on the terminal."""

import html.parser
import json
from pathlib import Path

import pytest

from stages.report.terminal import console, print_table

from ..chat.tokenizers import byte_tokenizer
from ..project import Project
from .outcome import holdshort, inside, observe, stage

EVIL = (
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror=alert(2)>'",
    "<!--<script>",
    "</style></title></textarea><svg/onload=alert(3)>",
    "{{ 7 * 7 }}{% raise %}",
    "javascript:alert(4)",
    "[/red][bold]&amp;]]>\u2028",
)


class Tags(html.parser.HTMLParser):
    """The tags of a page, their attributes, and the texts of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.handlers += [value for _, value in attrs if value and "javascript:" in value]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.scripts and self.tags[-1] == "script":
            self.scripts[-1] += data


def assert_harmless(page: str) -> Tags:
    found = Tags(page)
    assert not {"img", "iframe", "object", "embed", "link", "base"} & set(found.tags)
    assert found.handlers == []
    assert found.tags.count("script") <= 2
    return found


def evil_row(text: str, number: int) -> dict[str, object]:
    return {
        "id": text,
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "content": f"{text} {number}"},
            {"role": "assistant", "content": text, "name": text},
        ],
    }


@pytest.fixture(scope="module")
def evil(fresh_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose rows, and the name of whose data file, are markup."""
    project = fresh_template.copy(tmp_path_factory.mktemp("pages") / "project")
    rows = [json.dumps(evil_row(EVIL[n % len(EVIL)], n)) for n in range(60)]
    rows += [json.dumps({"messages": [{"role": one, "content": "a"}]}) for one in EVIL]
    rows += [json.dumps({one: 1}) for one in EVIL]
    name = "data/'><img src=x onerror=alert(5)>.jsonl"
    project.write(name, "".join(f"{row}\n" for row in rows))
    project.set_params(data__path=name, data__on_bad_row="report", gates__mask__report_rows=100)
    return project


def test_no_text_of_a_row_becomes_markup_on_the_pages_of_the_gates(evil: Project) -> None:
    with inside(evil.path):
        done = stage("hash_data")
        assert done.code == 0, str(done)
        assert_harmless(evil.read("reports/hash_data/index.html"))
        numbers = evil.json("metrics/hash_data.json")
        numbers["hash_data"]["passed"] = True  # its rows repeat, which is another matter
        evil.write("metrics/hash_data.json", json.dumps(numbers))
        done = stage("mask_report")
    assert done.code == 0, str(done)
    found = assert_harmless(evil.read("reports/mask_report/index.html"))
    data = json.loads(found.scripts[0])
    shown = {row["source"] for row in data["rows"]}
    assert any("onerror=alert(5)" in source for source in shown)  # whole, and as text


def test_no_escape_of_a_row_reaches_the_terminal(evil: Project, tmp_path: Path) -> None:
    row = {"messages": [{"role": "\x1b]0;title\x07", "content": 5}], "a\x1b[2J\nerror: fine": 1}
    evil.write("data/escapes.jsonl", json.dumps(row) + "\n")
    evil.set_params(data__path="data/escapes.jsonl", data__on_bad_row="stop")
    with inside(evil.path):
        done = stage("hash_data")
    assert "\x1b" not in done.errors + done.output
    assert "\x07" not in done.errors + done.output
    assert len(done.errors.splitlines()) == 1


def test_no_text_of_labels_becomes_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    byte_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "source.jsonl").write_text(
        "".join(json.dumps(evil_row(text, n)) + "\n" for n, text in enumerate(EVIL)),
        encoding="utf-8",
    )
    from stages.chat.tokenizer import ChatTokenizer

    from ..chat.tokenizers import TODAY

    tokenizer = ChatTokenizer("tokenizer", TODAY)
    with Path("'><script>1.jsonl").open("w", encoding="utf-8") as file:
        for n, text in enumerate(EVIL):
            messages = evil_row(text, n)["messages"]
            ids = tokenizer.encode([tokenizer.render(messages)])[0].input_ids.tolist()  # type: ignore[arg-type]
            file.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")
    done = holdshort(
        *("audit-labels", "--tokens", "'><script>1.jsonl", "--source", "source.jsonl"),
        *("--tokenizer", "tokenizer", "--report", "report"),
    )
    assert done.code == 1, str(done)
    assert_harmless(Path("report/index.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", EVIL)
def test_brackets_of_others_are_no_markup_of_the_terminals(text: str) -> None:
    def show() -> None:
        console.print(f"row {text}")
        print_table(text, (text,), [(text,)])

    done = observe(show)
    assert not done.trace, str(done)
    assert text.split("\u2028")[0] in done.output
