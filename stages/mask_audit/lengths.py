"""What would another data.max_length cost? Answered from the lengths of all rows alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHORTEST_RUNG = 64


@dataclass(frozen=True)
class Cost:
    """What `max_length` tokens would cost.

    rows: longer ones; tokens_dropped: lost when these are left out (`truncation: drop`);
    tokens_cut: lost when these are cut (`truncation: keep_start`).
    """

    max_length: int
    rows: int
    tokens_dropped: int
    tokens_cut: int


def cost_of(max_length: int, lengths: Mapping[int, int]) -> Cost:
    """lengths: tokens of a row -> rows of that length."""
    longer = {length: rows for length, rows in lengths.items() if length > max_length}
    return Cost(
        max_length=max_length,
        rows=sum(longer.values()),
        tokens_dropped=sum(length * rows for length, rows in longer.items()),
        tokens_cut=sum((length - max_length) * rows for length, rows in longer.items()),
    )


def ladder(lengths: Iterable[int], max_length: int) -> list[int]:
    """Powers of two and the numbers halfway between, with `max_length` among them.

    From the last rung below the shortest row, or SHORTEST_RUNG, to the first that all rows fit.
    """
    known = sorted(lengths)
    shortest, longest = (known[0], known[-1]) if known else (0, 0)
    rungs = [SHORTEST_RUNG]
    while rungs[-1] < longest:
        power = rungs[-1]
        rungs += [power * 3 // 2, power * 2]
    first = max((rung for rung in rungs if rung < shortest), default=SHORTEST_RUNG)
    last = min(rung for rung in rungs if rung >= longest)
    return sorted({*(rung for rung in rungs if first <= rung <= last), max_length})
