"""Does a template's own `{% generation %}` mark what the policy supervises?

Trainers that use such markers would train on what they mark; the labels here are made without them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from ..chat.conversation import Conversation
from ..chat.labels import IGNORE_INDEX, Labelled
from ..chat.tokenizer import ChatTokenizer, Encoded
from ..config.schema import Labels
from .findings import Audit, Finding


def can_compare(conversation: Conversation, tokenizer: ChatTokenizer, policy: Labels) -> bool:
    """Markers know neither last turns nor weights."""
    weighted = any(message.get("weight", 1) == 0 for message in conversation.messages)
    return tokenizer.has_markers and policy.turns == "all" and not weighted


def compare_with_markers(
    source: str,
    encoded: Encoded,
    spans: Sequence[tuple[int, int]],
    row: Labelled,
    tokenizer: ChatTokenizer,
    audit: Audit,
) -> None:
    """Add a finding when the marked spans disagree with the labels of a whole row.

    A marked token is one that overlaps a marked span, as transformers counts it.
    """
    marked = np.zeros(len(encoded.input_ids), bool)
    for start, end in spans:
        marked[bisect_right(encoded.ends, start) : bisect_left(encoded.starts, end)] = True
    differs = np.flatnonzero(marked != (row.labels != IGNORE_INDEX))
    if len(differs):
        first = int(differs[0])
        shown = tokenizer.decode([int(encoded.input_ids[first])])
        side = "marks" if marked[first] else "leaves out"
        detail = f"the template {side} {shown!r}, the policy does not"
        audit.add(Finding("markers_differ", source, first, len(differs), detail))
