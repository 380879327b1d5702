"""What is odd about a row, whatever its labels are.

Rules of the protocol's gate 1 that concern the text: what the template or the tokenizer adds, and
what a conversation holds that is no plain text.
"""

from collections.abc import Iterator, Sequence

from ..chat.conversation import ASSISTANT
from ..chat.labels import ROLE_OF_MESSAGE
from ..chat.tokenizer import ChatTokenizer
from .findings import Audit, Finding, Kind, Row
from .row_reader import texts_of


def check_rows(
    rows: Sequence[Row], texts: Sequence[str], tokenizer: ChatTokenizer, audit: Audit
) -> None:
    """Add what is odd about each row, of which `texts` are the renderings, to `audit`."""
    for row, text in zip(rows, texts, strict=True):
        for kind, position, detail in _oddities(row, text, tokenizer):
            audit.add(Finding(kind, row.source, position, 1, detail))


def _oddities(row: Row, text: str, tokenizer: ChatTokenizer) -> Iterator[tuple[Kind, int, str]]:
    bos, header = tokenizer.bos_token_id, tokenizer.header
    if bos is not None and row.input_ids[:2].tolist() == [bos, bos]:
        yield "double_bos", 1, "the row begins with two BOS tokens"
    if header and text.endswith(header):
        yield "open_generation_prompt", -1, f"the row ends with an open header {header!r}"
    roles = [message["role"] for message in row.messages]
    if roles[-1] != ASSISTANT:
        yield "ends_without_answer", -1, f"the last message is of role {roles[-1]!r}"
    for role in dict.fromkeys(roles):
        if role not in ROLE_OF_MESSAGE:
            yield "unknown_role", -1, f"role {role!r} is none of {', '.join(ROLE_OF_MESSAGE)}"
    if tokenizer.default_system and not {"system", "developer"} & set(roles):
        yield "default_system_injected", -1, f"the template adds {tokenizer.default_system!r}"
    for index, message in enumerate(row.messages):
        for said in texts_of(message):
            if found := tokenizer.control_tokens.search(said):
                detail = f"message {index} ({message['role']}) holds the token {found[0]!r}"
                yield "control_token_in_content", -1, detail
