"""Masks of real tokenizer families, held against oracles that were written by hand."""

from collections.abc import Iterator

import pytest

from .compare import Comparison, Turn, chat_tokenizer, compare, oracle_fault
from .conversations import CONVERSATIONS
from .fetch import FetchError
from .oracles import ORACLES

pytestmark = [pytest.mark.network, pytest.mark.slow]

MIN_JUDGED = 0.99
"""Share of assistant turns that must be judged, of those that the template writes in full."""

_compared: dict[str, Comparison] = {}


@pytest.fixture(params=ORACLES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        chat_tokenizer(name)
    except FetchError as error:
        pytest.fail(str(error))
    return name


@pytest.fixture
def comparison(family: str) -> Comparison:
    if family not in _compared:
        _compared[family] = Comparison()
        for name, (messages, tools) in CONVERSATIONS.items():
            compare(family, name, messages, tools, _compared[family])
    return _compared[family]


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Printed at the end, past pytest's capture."""
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n" + as_table(_compared))


HEAD = (
    *("family", "turns", "right", "reported", "found", "wrong", "right of whole"),
    *("refused", "straddling", "frame masked", "frame supervised", "false alarms", "untold"),
)


def as_table(compared: dict[str, Comparison]) -> str:
    rows = [HEAD, *(as_row(family, found) for family, found in compared.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [zip(row, widths, strict=True) for row in rows]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in line) for line in lines)


FACTS = {
    *("content_trimmed", "reasoning_dropped", "markers_differ", "default_system_injected"),
    *("control_token_in_content", "ends_without_answer", "unknown_role", "open_generation_prompt"),
}


def as_row(family: str, found: Comparison) -> tuple[str, ...]:
    whole = [turn for turn in found.turns if turn.lossless]
    right = len(found.of("right", lossless=True))
    share = f"{right} of {len(whole)} = {right / len(whole):.1%}"
    counts = [
        len(found.turns),
        *(len(found.of(outcome)) for outcome in ("right", "reported", "found", "wrong")),
    ]
    tokens = (found.straddling, found.free[False], found.free[True])
    told = (len(false_alarms(found)), len(untold_losses(found)))
    return family, *map(str, counts), share, *map(str, (len(found.refused), *tokens, *told))


def false_alarms(found: Comparison) -> list[Turn]:
    """Right labels that the audit faults; what it tells of a template or of a text is no fault."""
    return [turn for turn in found.of("right", lossless=True) if set(turn.findings) - FACTS]


def untold_losses(found: Comparison) -> list[Turn]:
    """Turns of which the template leaves something out, and neither drop nor finding says so."""
    return [turn for turn in found.of("right") if turn.lost and not turn.findings]


def listed(turns: list[Turn]) -> str:
    return "\n".join(
        f"{turn.family} | {turn.conversation} | turn {turn.index} | {turn.outcome}: {turn.reason}"
        f"{' | audit: ' + ', '.join(turn.findings) if turn.findings else ''}"
        for turn in turns
    )


def test_the_oracle_writes_what_the_template_writes(family: str) -> None:
    wrong = {
        name: fault
        for name, (messages, tools) in CONVERSATIONS.items()
        if (fault := oracle_fault(family, messages, tools))
    }
    assert wrong == {}


def test_no_turn_is_silently_wrong(comparison: Comparison) -> None:
    wrong = comparison.of("wrong")
    assert not wrong, f"{len(wrong)} turns:\n{listed(wrong)}"


def test_nearly_every_turn_is_judged_and_right(comparison: Comparison) -> None:
    whole = [turn for turn in comparison.turns if turn.lossless]
    others = [turn for turn in whole if turn.outcome != "right"]
    assert len(others) <= (1 - MIN_JUDGED) * len(whole), (
        f"{len(others)} of {len(whole)} turns are not:\n{listed(others)}"
    )


def test_the_audit_finds_nothing_in_right_rows(comparison: Comparison) -> None:
    alarms = false_alarms(comparison)
    assert not alarms, f"{len(alarms)} turns:\n{listed(alarms)}"


def test_every_supervised_token_has_the_role_of_what_put_it_there(comparison: Comparison) -> None:
    assert comparison.roles == []
