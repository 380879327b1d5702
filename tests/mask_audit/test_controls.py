"""Each planted corruption is caught where it was planted, and a blind audit fails the gate."""

import datetime
from collections.abc import Callable, Sequence

import pytest

from stages.chat.conversation import Message
from stages.chat.labels import Role
from stages.chat.token_store import TokenRow
from stages.chat.tokenizer import ChatTokenizer
from stages.config.schema import Labels
from stages.mask_audit import audit as audit_module
from stages.mask_audit.audit import audit_collated, audit_rows
from stages.mask_audit.controls import (
    MIN_CONTROLS,
    ON_BATCHES,
    ON_PACKS,
    ON_ROWS,
    Control,
    judge,
    run_controls,
)
from stages.mask_audit.corrupt_batches import plant_in_batch
from stages.mask_audit.corrupt_rows import plant_in_row
from stages.mask_audit.expected import Expected, Fault
from stages.mask_audit.findings import Audit, Finding, Kind
from stages.mask_audit.specimens import Specimen, undecided_tokens
from stages.mask_report import controls_missed
from stages.verdict.judging import judge_all
from stages.verdict.rules.mask_report import RULES

from ..chat.test_labels import TWO_TURNS, label
from ..chat.tokenizers import CHATML, chat_tokenizer
from ..settings import ROOT, make_params

POLICY = make_params().labels
WITH_BOS = "{{ '<|endoftext|>' }}" + CHATML
THINKING = CHATML.replace(
    "message['content'] + '<|im_end|>",
    "(('<think>' + message['reasoning_content'] + '</think>') "
    "if message.get('reasoning_content') else '') + message['content'] "
    "+ (('<call>' + message['tool_calls'][0]['function']['name'] + '</call>') "
    "if message.get('tool_calls') else '') + '<|im_end|>",
)
CALL = {"type": "function", "function": {"name": "look", "arguments": {}}}
ROWS: list[list[Message]] = [
    TWO_TURNS,
    TWO_TURNS[:3],
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}],
    [*TWO_TURNS, {"role": "user", "content": "g"}, {"role": "assistant", "content": "é 😀"}],
]
REASONED: list[Message] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes", "reasoning_content": "hmm"},
    {"role": "user", "content": "more"},
    {"role": "assistant", "content": "so", "tool_calls": [CALL]},
]


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def incidents_tokenizer() -> ChatTokenizer:
    return ChatTokenizer(str(ROOT / "data/tokenizer"), datetime.date(2026, 1, 1))


@pytest.fixture(params=["byte_tokenizer", "incidents_tokenizer"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    chosen: ChatTokenizer = request.getfixturevalue(request.param)
    return chosen


def specimens_of(
    tokenizer: ChatTokenizer, rows: Sequence[list[Message]] = ROWS, policy: Labels = POLICY
) -> list[Specimen]:
    specimens = []
    for number, messages in enumerate(rows):
        row = label(tokenizer, messages, policy.turns)
        stored = TokenRow(f"a:{number}", row.input_ids, row.labels, row.roles)
        undecided = undecided_tokens(stored, tokenizer, policy)
        specimens.append(Specimen(stored, messages, undecided))
    return specimens


def run(
    tokenizer: ChatTokenizer,
    rows: Sequence[list[Message]] = ROWS,
    policy: Labels = POLICY,
    *,
    packing: bool = False,
) -> dict[str, Control]:
    specimens = specimens_of(tokenizer, rows, policy)
    controls = run_controls(specimens, tokenizer, policy, packing=packing)
    return {control.name: control for control in controls}


def gate(controls: Sequence[Control]) -> str:
    measured = {"controls_missed": controls_missed(list(controls))}
    checks = {check.id: check for check in judge_all(RULES, measured, dict(LIMITS))}
    return checks["controls_missed"].status


LIMITS = {key: 0.0 for rule in RULES for key in rule.limits}
NEVER_HERE = {
    "one reasoning token masked",
    "one token of a call masked",
    "the beginning-of-sequence token supervised",
}


def test_every_control_is_caught_on_every_row(tokenizer: ChatTokenizer) -> None:
    controls = run(tokenizer)
    assert {name: one.missed for name, one in controls.items() if one.missed} == {}
    assert {name for name, one in controls.items() if not one.applied} == NEVER_HERE
    assert all(one.caught == one.applied for one in controls.values())
    assert len(controls) - len(NEVER_HERE) == 26
    assert gate(list(controls.values())) == "pass"


def test_controls_on_packed_rows_are_caught_where_rows_are_packed(
    tokenizer: ChatTokenizer,
) -> None:
    controls, plain = run(tokenizer, packing=True), run(tokenizer)
    packed = {name: one for name, one in controls.items() if name not in plain}
    assert set(packed) == set(ON_PACKS)
    assert {name: one.missed for name, one in packed.items() if one.missed} == {}
    assert {one.kinds for one in packed.values()} == {
        ("positions_wrong",),
        ("target_across_border",),
    }
    assert all(one.caught == one.applied == 3 for one in packed.values())


def test_controls_count_rows_and_say_what_the_audit_called_them(
    byte_tokenizer: ChatTokenizer,
) -> None:
    controls = run(byte_tokenizer)
    told = {name: (one.applied, one.kinds) for name, one in controls.items()}
    assert told["one stop token masked"] == (4, ("stop_masked",))
    assert told["a header supervised"] == (4, ("header_supervised",))
    assert told["one user token supervised"] == (4, ("prompt_supervised",))
    assert told["one system or tool token supervised"] == (3, ("prompt_supervised",))
    assert told["all but the last answer masked"] == (2, ("content_masked", "stop_masked"))
    assert told["an id beyond the vocabulary"] == (4, ("id_outside_vocabulary",))
    assert told["batch: one token changed"] == (4, ("collated_tokens_differ",))
    assert told["batch: rows swapped"] == (8, ("attention_mask_wrong",))


def test_a_control_that_fits_no_row_says_why(byte_tokenizer: ChatTokenizer) -> None:
    controls = run(byte_tokenizer)
    assert controls["the beginning-of-sequence token supervised"].reason == (
        "no row has a beginning-of-sequence token (labels.turns is all)"
    )
    last = make_params(labels__turns="last").labels
    control = run(byte_tokenizer, policy=last)["all but the last answer masked"]
    assert (control.applied, control.reason) == (
        0,
        "no row has two supervised answers (labels.turns is last)",
    )


def test_with_the_last_answer_alone_all_others_are_caught(tokenizer: ChatTokenizer) -> None:
    controls = run(tokenizer, policy=make_params(labels__turns="last").labels)
    assert [one.missed for one in controls.values() if one.missed] == []
    assert gate(list(controls.values())) == "pass"


def test_reasoning_and_calls_are_caught_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = chat_tokenizer(tmp_path_factory.mktemp("thinking"), THINKING)
    controls = run(tokenizer, [REASONED, TWO_TURNS])
    assert [one.missed for one in controls.values() if one.missed] == []
    assert controls["one reasoning token masked"].kinds == ("reasoning_differs",)
    assert controls["one token of a call masked"].kinds == ("call_differs",)


# Which controls do what a kind of finding names; another row's labels may do any of it.
SHIFTED = "batch: labels shifted left by one"
BLIND: dict[Kind, set[str]] = {
    "header_supervised": {
        "labels inverted",
        "labels shifted left by one",
        "a header supervised",
        SHIFTED,
    },
    "stop_masked": {
        "labels inverted",
        "labels shifted left by one",
        "all labels masked",
        "all but the last answer masked",
        "one stop token masked",
        "every stop token masked",
        "batch: stop tokens masked as if they were padding",
        SHIFTED,
    },
    "content_masked": {
        "labels inverted",
        "labels shifted right by one",
        "all labels masked",
        "all but the last answer masked",
        "first content token masked",
        "one content token masked",
    },
    "prompt_supervised": {
        "labels inverted",
        "one user token supervised",
        "one system or tool token supervised",
    },
    "scaffold_differs": {
        "labels shifted right by one",
        "the token after a stop token supervised",
    },
}


@pytest.mark.parametrize("kind", BLIND)
def test_an_audit_blind_to_one_kind_fails_exactly_the_controls_of_that_kind(
    byte_tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    blind(monkeypatch, kind)
    controls = run(byte_tokenizer)
    missed = {name for name, one in controls.items() if one.missed}
    assert missed - {"labels of another row"} == BLIND[kind]
    assert gate(list(controls.values())) == "fail"
    evidence = controls_missed(list(controls.values())).evidence
    assert all(line.partition(":")[0] in missed or "batch" in line for line in evidence)


def blind(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    compare: Callable[..., None] = audit_module.compare

    def see_less(*arguments: object) -> None:
        *rest, into = arguments
        seen = Audit()
        compare(*rest, seen)
        assert isinstance(into, Audit)
        for finding in seen.findings:
            if finding.kind != kind:
                into.add(finding)

    monkeypatch.setattr(audit_module, "compare", see_less)


def test_the_evidence_names_control_row_token_and_what_was_found(
    byte_tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind(monkeypatch, "stop_masked")
    specimens = specimens_of(byte_tokenizer)
    stop = int((specimens[0].stored.roles == Role.STOP).nonzero()[0][-1])
    evidence = controls_missed(run_controls(specimens, byte_tokenizer, POLICY)).evidence
    assert (
        f"one stop token masked: a:0 token {stop}: expected stop_masked or prompt_supervised, "
        "found nothing"
    ) in evidence


EXPECTED = Expected("a:1", (Fault(("content_masked",), (3,)),), frozenset([3, 4]))


def found(kind: Kind, source: str, position: int) -> Finding:
    return Finding(kind, source, position, 1, "")


RIGHT = found("content_masked", "a:1", 3)


@pytest.mark.parametrize(
    ("findings", "missed"),
    [
        ([RIGHT], set()),
        ([RIGHT, found("stop_masked", "a:1", 4)], set()),
        ([], {"a:1"}),
        ([found("content_masked", "a:1", 4)], {"a:1"}),
        ([found("stop_masked", "a:1", 3)], {"a:1"}),
        ([RIGHT, found("stop_masked", "a:1", 5)], {"a:1"}),
        ([RIGHT, found("content_dropped", "a:1", -1)], {"a:1"}),
        ([RIGHT, found("content_masked", "a:2", 3)], {"a:2"}),
        ([found("content_masked", "a:2", 3)], {"a:1", "a:2"}),
    ],
)
def test_naming_another_row_token_or_kind_is_a_miss(
    findings: list[Finding], missed: set[str]
) -> None:
    sources, told = judge([EXPECTED], findings)
    assert sources == missed
    assert bool(told) == bool(missed)


@pytest.mark.parametrize("name", ON_ROWS)
def test_one_corrupted_row_in_a_thousand_is_named(
    byte_tokenizer: ChatTokenizer, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    tokenizer, said = byte_tokenizer, [TWO_TURNS, TWO_TURNS[:3]]
    if name in NEVER_HERE:
        template = THINKING if "supervised" not in name else WITH_BOS
        tokenizer = chat_tokenizer(tmp_path_factory.mktemp("other"), template)
        said = [REASONED if template == THINKING else TWO_TURNS, TWO_TURNS[:3]]
    if name.startswith("the beginning"):
        tokenizer._tokenizer.bos_token = "<|endoftext|>"
    one, other = specimens_of(tokenizer, said)
    planted = plant_in_row(name, [one, other], 0, tokenizer, POLICY)
    assert planted is not None
    rows = [other.row] * 1000
    rows[617] = planted.row
    audit = Audit()
    audit_rows(rows, tokenizer, POLICY, audit)
    assert {finding.source for finding in audit.findings} == {"a:0"}
    assert judge([planted.expected], audit.findings) == (set(), ())


@pytest.mark.parametrize("name", ON_BATCHES)
@pytest.mark.parametrize("index", [0, 1])
def test_one_corrupted_row_of_a_batch_is_named(
    byte_tokenizer: ChatTokenizer, name: str, index: int
) -> None:
    one, other = (specimen.stored for specimen in specimens_of(byte_tokenizer)[:2][::-1])
    rows = [one, other] if index == 0 else [other, one]
    planted = plant_in_batch(name, rows, index, byte_tokenizer)
    assert planted is not None
    audit = Audit()
    audit_collated(planted.batch, planted.rows, byte_tokenizer, audit)
    sources = {"a:0", "a:1"} if "swapped" in name else {one.source}
    assert {finding.source for finding in audit.findings} == sources
    assert judge(planted.expected, audit.findings) == (set(), ())


def test_the_same_rows_give_the_same_controls(byte_tokenizer: ChatTokenizer) -> None:
    assert run(byte_tokenizer) == run(byte_tokenizer)


def test_rows_with_faults_of_their_own_prove_nothing_and_that_blocks(
    byte_tokenizer: ChatTokenizer,
) -> None:
    broken: list[Message] = [*TWO_TURNS[:-1], {"role": "assistant", "content": "other"}]
    specimens = [Specimen(s.stored, broken, s.undecided) for s in specimens_of(byte_tokenizer)[:1]]
    controls = run_controls(specimens, byte_tokenizer, POLICY)
    assert {control.applied for control in controls} == {0}
    measured = controls_missed(controls)
    assert measured.note == (
        f"0 controls could be tried, {MIN_CONTROLS} are needed: no row is free of faults of its own"
    )
    assert gate(controls) == "not_judged"


def test_one_sound_row_is_enough(byte_tokenizer: ChatTokenizer) -> None:
    controls = run(byte_tokenizer, [TWO_TURNS])
    assert sum(control.applied > 0 for control in controls.values()) >= MIN_CONTROLS
    assert gate(list(controls.values())) == "pass"
