"""What the audit must say of a row that was corrupted on purpose.

It is told from the roles in the token store, of which the audit of rows knows nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..chat.labels import IGNORE_INDEX, Role
from ..chat.token_store import TokenRow
from .findings import Finding, Kind

IntLabels = NDArray[np.int32]

ANSWERED = (Role.CONTENT, Role.REASONING, Role.TOOL_CALL)
KINDS: dict[Role, tuple[Kind, ...]] = {
    Role.HEADER: ("header_supervised",),
    Role.STOP: ("stop_masked", "prompt_supervised"),
    Role.CONTENT: ("content_masked", "reasoning_differs", "call_differs", "prompt_supervised"),
    Role.OTHER: ("prompt_supervised", "scaffold_differs"),
}
"""What a change of labels may be called. Text between parts of an answer belongs to either."""


@dataclass(frozen=True)
class Fault:
    """A finding that must be there: one of these kinds, at one of these tokens.

    positions: the first corrupted token, and those before it of which nobody can tell; -1 for a
    fault of the whole row. message: the message that its detail must name then.
    """

    kinds: tuple[Kind, ...]
    positions: tuple[int, ...] = (-1,)
    message: int | None = None

    def is_named_by(self, finding: Finding) -> bool:
        said = self.message is None or f"message {self.message} " in f"{finding.detail} "
        return finding.kind in self.kinds and finding.position in self.positions and said

    def __str__(self) -> str:
        place = f"token {self.positions[-1]}" if self.message is None else f"message {self.message}"
        return f"{place}: expected {' or '.join(self.kinds)}"


@dataclass(frozen=True)
class Expected:
    """What the audit must say of one corrupted row. touched: the tokens that it may name; also:
    kinds that may be found of the row as a whole."""

    source: str
    faults: tuple[Fault, ...]
    touched: frozenset[int]
    also: tuple[Kind, ...] = ()


def expected_of_labels(
    row: TokenRow, labels: IntLabels, undecided: NDArray[np.bool_] | None = None
) -> Expected:
    """What must be said of a row whose labels, int32 [T], were changed to `labels`.

    The first token of each group: header; what is said, thought or called; stop; all else; and
    labels that are no copies of their tokens.
    undecided: bool [T], tokens of which nobody can tell whether they are the template's.
    """
    was, now = row.labels != IGNORE_INDEX, labels != IGNORE_INDEX
    changed, other = was != now, now & (labels != row.input_ids)
    groups = {role: changed & (row.roles == role) for role in (Role.HEADER, Role.STOP)}
    groups[Role.CONTENT] = changed & np.isin(row.roles, ANSWERED)
    groups[Role.OTHER] = changed & ~np.logical_or.reduce(list(groups.values()))
    unsure = np.zeros(len(was), bool) if undecided is None else undecided
    faults = [
        Fault(KINDS[role], positions)
        for role, group in groups.items()
        if (positions := _first(group, unsure))
    ]
    if other.any():
        faults.append(Fault(("label_differs_from_input",), (int(other.argmax()),)))
    if not now.any():
        faults.append(Fault(("no_supervised_token",)))
    touched = frozenset(np.flatnonzero(changed | other).tolist())
    return Expected(row.source, tuple(faults), touched)


def _first(group: NDArray[np.bool_], unsure: NDArray[np.bool_]) -> tuple[int, ...]:
    """The first position of a group that is sure, after the unsure ones before it."""
    positions = np.flatnonzero(group)
    sure = np.flatnonzero(~unsure[positions])
    return tuple(positions[: sure[0] + 1].tolist()) if len(sure) else ()
