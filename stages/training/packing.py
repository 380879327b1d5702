"""Which documents share a row, and which rows a micro-batch? Told by their lengths alone."""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Numbers in groups: those of group i are members[starts[i]:starts[i + 1]], int64."""

    members: Integers
    starts: Integers

    @classmethod
    def singles(cls, count: int) -> Self:
        """Each of 0 .. count - 1 in a group of its own."""
        return cls(np.arange(count), np.arange(count + 1))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, group: int) -> list[int]:
        found: list[int] = self.members[self.starts[group] : self.starts[group + 1]].tolist()
        return found

    def sums(self, values: Integers) -> Integers:
        """The sum over each group of one value per number."""
        return np.add.reduceat(values[self.members], self.starts[:-1])


def pack_by_length(lengths: Integers, max_length: int) -> Groups:
    """Best-fit decreasing: the longest first, each into the fullest row with room for it.

    lengths: tokens of every document, int64 [N], none above max_length. Source: Johnson et al.,
    "Worst-case performance bounds for simple one-dimensional packing algorithms" (1974): at most
    11/9 of the fewest rows possible, and some.
    """
    longest_first = np.argsort(-lengths, kind="stable")
    row_of = np.zeros(len(lengths), np.int64)
    with_room: dict[int, list[int]] = {}
    rooms: list[int] = []
    rows = 0
    for document in longest_first.tolist():
        length = int(lengths[document])
        at = bisect_left(rooms, length)
        if at == len(rooms):
            row, room = rows, max_length - length
            rows += 1
        else:
            row, room = with_room[rooms[at]].pop(), rooms[at] - length
            if not with_room[rooms[at]]:
                del with_room[rooms.pop(at)]
        row_of[document] = row
        if room not in with_room:
            with_room[room] = []
            insort(rooms, room)
        with_room[room].append(row)
    ordered = longest_first[np.argsort(row_of[longest_first], kind="stable")]
    starts = np.concatenate(([0], np.cumsum(np.bincount(row_of, minlength=rows))))
    return Groups(ordered, starts)


def batch_by_tokens(lengths: Integers, order: Integers, max_tokens: int) -> Groups:
    """Rows in groups, each as many as fit: their number times the longest is at most `max_tokens`.

    lengths: tokens of every row, int64 [N], none above max_tokens; order: that in which they are
    taken, int64 [N].
    """
    starts, longest = [0], 0
    for place, length in enumerate(lengths[order].tolist()):
        longest = max(longest, length)
        if (place + 1 - starts[-1]) * longest > max_tokens:
            starts.append(place)
            longest = length
    return Groups(order, np.array([*starts, len(order)]))
