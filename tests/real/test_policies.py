"""Under every policy, labels and audit agree on every row that holds all that was said."""

from dataclasses import replace

import msgspec
import pytest

from stages.mask_audit.audit import FAULT_OF_WANT
from stages.mask_audit.findings import Audit
from stages.mask_audit.prepare import Preparer

from .compare import DATA, LABELS, chat_tokenizer, parsed
from .conversations import CONVERSATIONS
from .fetch import FetchError
from .oracles import ORACLES

pytestmark = pytest.mark.network

POLICIES = {
    "last turn": replace(LABELS, turns="last"),
    "straddling masked": replace(LABELS, straddling="mask"),
    "scaffold too": replace(LABELS, supervise=[*LABELS.supervise, "scaffold"]),
    "content alone": replace(LABELS, supervise=["content"]),
    "content alone, straddling masked": replace(LABELS, supervise=["content"], straddling="mask"),
    "reasoning alone": replace(LABELS, supervise=["reasoning"]),
}
LOSSES = {"content_dropped", "call_dropped"}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", ORACLES)
def test_labels_and_audit_agree(family: str, policy: str) -> None:
    try:
        tokenizer = chat_tokenizer(family)
    except FetchError as error:
        pytest.fail(str(error))
    conversations = [
        msgspec.structs.replace(parsed(messages, tools), source=name)
        for name, (messages, tools) in CONVERSATIONS.items()
    ]
    audit = Audit()
    prepared = list(Preparer(tokenizer, DATA, POLICIES[policy]).prepare(conversations, audit))
    lossy = {finding.source for finding in audit.findings if finding.kind in LOSSES}
    faults = {*FAULT_OF_WANT.values(), "markers_differ"}
    found = [one for one in audit.findings if one.kind in faults and one.source not in lossy]
    assert found == []
    assert sum(one.dropped is None for one in prepared) >= len(conversations) // 2
