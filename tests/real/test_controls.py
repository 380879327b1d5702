"""Every corruption that gate 1 plants is caught on real tokenizer families too."""

from collections.abc import Iterator

import msgspec
import pytest

from stages.chat.token_store import TokenRow
from stages.mask_audit.controls import MIN_CONTROLS, Control, run_controls
from stages.mask_audit.findings import Audit
from stages.mask_audit.specimens import Specimen, undecided_tokens

from .compare import LABELS, chat_tokenizer, parsed, preparer
from .conversations import CONVERSATIONS
from .fetch import FetchError
from .oracles import ORACLES

pytestmark = [pytest.mark.network, pytest.mark.slow]

_ran: dict[str, list[Control]] = {}


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Printed at the end, past pytest's capture."""
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n" + as_table(_ran))


def as_table(ran: dict[str, list[Control]]) -> str:
    """Rows caught of rows tried, by control and family."""
    lines = [f"{'control':50}" + "".join(f"{family:>13}" for family in ran)]
    for together in zip(*ran.values(), strict=True):
        cells = [f"{one.caught} of {one.applied}" if one.applied else "-" for one in together]
        lines.append(f"{together[0].name:50}" + "".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def specimens_of(family: str) -> list[Specimen]:
    """All conversations of which the pipeline makes a row."""
    conversations = [
        msgspec.structs.replace(parsed(messages, tools), source=name)
        for name, (messages, tools) in CONVERSATIONS.items()
    ]
    tokenizer, specimens = chat_tokenizer(family), []
    for prepared in preparer(family).prepare(conversations, Audit()):
        row, said = prepared.row, prepared.conversation
        if row is not None and not prepared.dropped:
            stored = TokenRow(said.source, row.input_ids, row.labels, row.roles)
            undecided = undecided_tokens(stored, tokenizer, LABELS)
            specimens.append(Specimen(stored, said.messages, undecided))
    return specimens


@pytest.mark.parametrize("family", ORACLES)
def test_every_control_is_caught_on_every_conversation(family: str) -> None:
    try:
        tokenizer = chat_tokenizer(family)
    except FetchError as error:
        pytest.fail(str(error))
    _ran[family] = run_controls(specimens_of(family), tokenizer, LABELS)
    missed = [f"{one.name}: {told}" for one in _ran[family] for told in one.missed]
    assert not missed, "\n".join(missed)
    assert sum(one.applied > 0 for one in _ran[family]) >= MIN_CONTROLS
