"""A tokenizer and its chat template come from outside: no code of theirs runs, none hangs."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.chat.template_at_work import SECONDS, TemplateError
from stages.chat.tokenizer import ChatTokenizer

from ..chat.tokenizers import TODAY
from ..settings import ROOT
from .damage import flips, truncations
from .outcome import Outcome, assert_refused, holdshort

SOUND = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

ESCAPES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals of a function": "{{ lipsum.__globals__['os'].system('touch pwned') }}",
    "globals of a class": "{{ cycler.__init__.__globals__.os.system('touch pwned') }}",
    "globals of the clock": "{{ strftime_now.__globals__['os'].system('touch pwned') }}",
    "code of a macro": "{% macro f() %}{% endmacro %}{{ f.__call__.__code__ }}",
    "format": "{{ '{0.__class__}'.format(1).x }}",
    "a file": "{% include '/etc/passwd' %}",
    "a module": "{% import 'os' as os %}{{ os.system('touch pwned') }}",
    "a change of the messages": "{{ messages.append(1) }}",
    "a namespace of dunders": "{{ namespace(__class__=1) }}",
}
FAILURES = {
    "division by zero": "{{ 1 / 0 }}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a range beyond the limit": "{% for i in range(10 ** 9) %}{% endfor %}",
    "a power beyond float64": "{{ 1e308 ** 2 }}",
    "a text of 10 TB": "{{ 'a' * 10 ** 13 }}",
    "an unknown filter": "{{ 1 | nothing }}",
    "an unknown tag": "{% do 1 %}",
    "a loop without end tag": "{% for m in messages %}",
    "two hundred blocks": "{% if 1 %}" * 200 + "{% endif %}" * 200,
    "thousands of blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "thousands of brackets": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "an attribute of nothing": "{{ nothing.at.all }}",
    "its own refusal, painted": "{{ raise_exception('no\nway \x1b[31m') }}",
    "a clock of no format": "{{ strftime_now(5) }}",
    "half a surrogate pair": "{{ '\\ud800' }}",
    "100 million characters": "{{ 'a' * 10 ** 8 }}",
    "characters doubled and doubled": "{% set ns = namespace(x='ab') %}"
    "{% for i in range(25) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
}
ENDLESS = {
    "in silence": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "for answers with calls": "{% for m in messages if m.tool_calls %}{% for i in range(99999) %}"
    "{% for j in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
}

Files = dict[str, Any]


def tokenizer_json(**changes: Any) -> Files:
    whole = json.loads((ROOT / "data/tokenizer/tokenizer.json").read_text(encoding="utf-8"))
    return {"tokenizer.json": {**whole, **changes}}


def config(**changes: Any) -> Files:
    whole = json.loads((ROOT / "data/tokenizer/tokenizer_config.json").read_text(encoding="utf-8"))
    return {"tokenizer_config.json": {**whole, **changes}}


def with_model(**changes: Any) -> Files:
    whole = json.loads((ROOT / "data/tokenizer/tokenizer.json").read_text(encoding="utf-8"))
    return tokenizer_json(model={**whole["model"], **changes})


EVIL = b"open('pwned', 'w')"
PICKLE = b"cos\nsystem\n(S'touch pwned'\ntR."
DIRECTORIES: dict[str, Callable[[], Files]] = {
    "tokenizer.json of a list": lambda: {"tokenizer.json": b"[]"},
    "tokenizer.json of null": lambda: {"tokenizer.json": b"null"},
    "tokenizer.json of nothing": lambda: {"tokenizer.json": b""},
    "tokenizer.json of brackets": lambda: {"tokenizer.json": b"[" * 100_000},
    "an id below 0": lambda: with_model(vocab={"a": -1}),
    "a merge of unknown tokens": lambda: with_model(merges=["q q"]),
    "a model that is unknown": lambda: with_model(type="Evil"),
    "a normalizer that is unknown": lambda: tokenizer_json(normalizer={"type": "Evil"}),
    "a normalizer of a million characters": lambda: tokenizer_json(
        normalizer={"type": "Prepend", "prepend": "x" * 1_000_000}
    ),
    "a pattern that is none": lambda: tokenizer_json(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "("},
            "behavior": "Isolated",
            "invert": False,
        }
    ),
    "a stride beyond the truncation": lambda: tokenizer_json(
        truncation={
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 5,
        }
    ),
    "config of a list": lambda: {"tokenizer_config.json": b"[]"},
    "config of null": lambda: {"tokenizer_config.json": b"null"},
    "config of brackets": lambda: {"tokenizer_config.json": b"[" * 100_000},
    "a class that is a number": lambda: config(tokenizer_class=5),
    "a pad token that is a number": lambda: config(pad_token=5),
    "an end token that is an object": lambda: config(eos_token={"content": 5}),
    "added tokens of no object": lambda: config(added_tokens_decoder={"x": 1}),
    "a special map of a list": lambda: {"special_tokens_map.json": b"[]"},
    "code of its own": lambda: {
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}},
        "evil.py": EVIL,
    },
    "code of its own and of its config": lambda: {
        **config(auto_map={"AutoTokenizer": ["evil.T", "evil.T"]}, tokenizer_class="Evil"),
        "config.json": {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C"}},
        "evil.py": EVIL,
    },
    "a sentencepiece model of noise": lambda: {"tokenizer.json": None, "tokenizer.model": b"\0\1"},
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound tokenizer; what runs code leaves a file in the current directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "data/tokenizer", tmp_path / "tokenizer")
    (tmp_path / "source.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
        encoding="utf-8",
    )
    (tmp_path / "tokens.jsonl").write_text('{"input_ids": [5], "labels": [5]}\n', encoding="utf-8")
    return tmp_path / "tokenizer"


def audit(directory: Path) -> Outcome:
    """`holdshort audit-labels` with a tokenizer, which loads it as `mask_report` does."""
    return holdshort(
        *("audit-labels", "--tokens", "tokens.jsonl", "--source", "source.jsonl"),
        *("--tokenizer", directory.name),
    )


def write_template(directory: Path, template: str) -> None:
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


@pytest.mark.parametrize("name", [*ESCAPES, *FAILURES])
def test_a_template_that_reaches_out_or_fails_is_refused(directory: Path, name: str) -> None:
    write_template(directory, (ESCAPES | FAILURES)[name] + SOUND)
    assert_refused(audit(directory), "tokenizer")
    assert not Path("pwned").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_an_end_is_ended(directory: Path, name: str) -> None:
    write_template(directory, ENDLESS[name] + SOUND)
    assert_refused(audit(directory), f"did not end within {SECONDS:g} s", "mend the loop")


def test_a_template_is_rendered_in_another_thread_too(directory: Path) -> None:
    """Only the main thread can be interrupted; elsewhere a template has the time it takes."""
    found: list[str] = []

    def work() -> None:
        tokenizer = ChatTokenizer(str(directory), TODAY)
        found.append(tokenizer.render([{"role": "user", "content": "a"}]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [
        ChatTokenizer(str(directory), TODAY).render([{"role": "user", "content": "a"}])
    ]


def test_a_template_that_fails_over_one_row_refuses_that_row(directory: Path) -> None:
    write_template(directory, "{{ 1 // (messages | length - 3) }}" + SOUND)
    tokenizer = ChatTokenizer(str(directory), TODAY)
    with pytest.raises(TemplateError, match="by zero"):
        tokenizer.render([{"role": "user", "content": "a"}] * 3)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_that_is_no_tokenizer_is_refused(directory: Path, name: str) -> None:
    for file, content in DIRECTORIES[name]().items():
        if content is None:
            (directory / file).unlink()
        elif isinstance(content, bytes):
            (directory / file).write_bytes(content)
        else:
            (directory / file).write_text(json.dumps(content), encoding="utf-8")
    assert_refused(audit(directory), "tokenizer")
    assert not Path("pwned").exists()


def test_pickles_beside_a_tokenizer_are_not_opened(directory: Path) -> None:
    for name in ("tokenizer.pkl", "vocab.pkl", "tokenizer.bin", "pytorch_model.bin"):
        (directory / name).write_bytes(PICKLE)
    ChatTokenizer(str(directory), TODAY)
    assert not Path("pwned").exists()


@pytest.mark.slow
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_damaged_tokenizer_is_refused_or_still_one(directory: Path, file: str) -> None:
    content = (directory / file).read_bytes()
    for what, spoiled in (*truncations(content, 7, 3), *flips(content, 7, 12)):
        (directory / file).write_bytes(spoiled)
        done = audit(directory)
        assert_refused(done)
        assert done.code is not None, what


def test_a_truncation_that_the_tokenizer_brings_cuts_no_row(directory: Path) -> None:
    whole = ChatTokenizer(str(directory), TODAY).encode(["a b c d e f g h"])[0].input_ids
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    pad = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    (directory / "tokenizer.json").write_text(
        json.dumps(tokenizer_json(truncation=cut, padding=pad)["tokenizer.json"]), encoding="utf-8"
    )
    again = ChatTokenizer(str(directory), TODAY).encode(["a b c d e f g h"])[0].input_ids
    assert again.tolist() == whole.tolist()


def test_a_generation_block_may_be_written_in_any_way(directory: Path) -> None:
    write_template(directory, "{%+ generation +%}x{%+ endgeneration +%}" + SOUND)
    tokenizer = ChatTokenizer(str(directory), TODAY)
    assert tokenizer.has_markers
    assert tokenizer.inspected == ()
