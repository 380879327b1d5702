"""Does a template's own `{% generation %}` mark what the policy supervises?

Trainers that use such markers would train on what they mark; the labels here are made without them.
"""

import numpy as np

from ..chat.conversation import Conversation
from ..chat.labels import IGNORE_INDEX, Labelled
from ..chat.tokenizer import ChatTokenizer, Encoded
from ..config.schema import Labels
from .findings import Audit, Finding


def compare_with_markers(
    conversation: Conversation,
    encoded: Encoded,
    row: Labelled,
    tokenizer: ChatTokenizer,
    policy: Labels,
    audit: Audit,
) -> None:
    """Add a finding when the markers disagree with the labels; only whole rows can be compared.

    A marked token is one that overlaps a marked stretch, as transformers counts it.
    """
    weighted = any(message.get("weight", 1) == 0 for message in conversation.messages)
    if not tokenizer.has_markers or policy.turns == "last" or weighted:
        return
    marked = np.zeros(len(encoded.input_ids), bool)
    for start, end in tokenizer.marked_spans(conversation.messages, conversation.tools):
        marked |= (encoded.starts < end) & (encoded.ends > start)
    differs = np.flatnonzero(marked != (row.labels != IGNORE_INDEX))
    if len(differs):
        first = int(differs[0])
        shown = tokenizer.decode([int(encoded.input_ids[first])])
        side = "marks" if marked[first] else "leaves out"
        detail = f"the template {side} {shown!r}, the policy does not"
        audit.add(Finding("markers_differ", conversation.source, first, len(differs), detail))
