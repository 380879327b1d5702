"""A row with faults, token by token, for the page."""

from collections.abc import Sequence

import numpy as np

from ..chat.labels import ROLE_OF_MESSAGE, Role
from ..chat.tokenizer import ChatTokenizer
from ..report.token_view import TokenFinding, TokenView
from .locating import Found, Located, Locator


def view_of(
    one: Found,
    findings: Sequence[Located],
    locator: Locator,
    tokenizer: ChatTokenizer,
    anchor: str,
) -> TokenView:
    """The row with what was found in it; anchor: its name on the page."""
    row = one.row
    at = {int(position): token for token, position in enumerate(row.positions)}
    return TokenView(
        anchor=anchor,
        source=f"{one.conversation.source} ({row.name})",
        split="tokens",
        status="cut" if one.truncated else "kept",
        tokens=[_piece(int(token), tokenizer) for token in row.input_ids],
        ids=row.input_ids.tolist(),
        labels=row.labels.tolist(),
        roles=_roles(one, findings, locator),
        findings=[
            TokenFinding(finding.kind, at.get(finding.position, -1), finding.count, str(finding))
            for finding in findings
        ],
    )


def _roles(one: Found, findings: Sequence[Located], locator: Locator) -> list[str]:
    """Who says each token; the template does what no message holds."""
    roles = np.full(len(one.row.input_ids), Role.SCAFFOLD.name.lower(), object)
    if all(finding.kind != "id_outside_vocabulary" for finding in findings):
        anatomy = locator.anatomy(one)
        for place in anatomy.places:
            said_by = str(one.conversation.messages[place.index]["role"])
            role = ROLE_OF_MESSAGE.get(said_by, Role.OTHER).name.lower()
            roles[(anatomy.starts < place.end) & (anatomy.ends > place.start)] = role
    said: list[str] = roles.tolist()
    return said


def _piece(token: int, tokenizer: ChatTokenizer) -> str | bytes:
    return tokenizer.pieces([token])[0] if 0 <= token < tokenizer.vocab_size else f"<{token}>"
