"""Which rows of the data differ between two records? Known by what they say, named by line.

Reads artifacts/dataset/, in which hash_data keeps every conversation with a digest of what it says
and the place it came from.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ..chat.split import SPLITS
from ..config.errors import UserError
from ..provenance.drift import ABSENT, MISSING, Drift
from .record import Record

DATASET = "artifacts/dataset"


class Row(msgspec.Struct, frozen=True):
    """`id` is a digest of what the row says, `source` the file and line it came from."""

    id: str
    source: str


@dataclass(frozen=True)
class Rows:
    """The rows of a dataset in their order, and the split of each by its id."""

    rows: list[Row]
    splits: dict[str, str]


def read_rows(record: Record) -> Rows | None:
    """None when the dataset is not to be had. Raises UserError when it is damaged."""
    rows: list[Row] = []
    splits: dict[str, str] = {}
    for split in SPLITS:
        path = f"{DATASET}/{split}.jsonl"
        with record.open(path) as lines:
            if lines is None:
                return None
            try:
                found = [msgspec.json.decode(line, type=Row) for line in lines]
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UserError(f"{path} of {record.name} is damaged ({error})") from None
        rows += found
        splits |= dict.fromkeys((row.id for row in found), split)
    return Rows(rows, splits)


def without(rows: list[Row], others: list[Row]) -> dict[str, str]:
    """Source -> id of the rows that say what none of `others` says, each of these taken once."""
    left = Counter(row.id for row in others)
    found = {}
    for row in rows:
        if left[row.id]:
            left[row.id] -= 1
        else:
            found[row.source] = row.id
    return found


def compare_rows(then: Rows, now: Rows) -> Iterator[Drift]:
    """The counts, then every row that was changed in its place, removed or added."""
    gone, new = without(then.rows, now.rows), without(now.rows, then.rows)
    changed = [source for source in gone if source in new]
    kept = [row.id for row in now.rows if row.id in then.splits]
    other_split = sum(now.splits[one] != then.splits[one] for one in set(kept))
    is_moved = not gone and not new and kept != [row.id for row in then.rows]
    if not (gone or new or other_split or is_moved):
        return
    counts = (
        f"{len(now.rows)} rows: {len(changed)} changed, {len(gone) - len(changed)} removed, "
        f"{len(new) - len(changed)} added, {other_split} in another split"
    )
    counts += ", the rest in another order" if is_moved else ""
    yield Drift("rows", "all", f"{len(then.rows)} rows", counts, "another run")
    for source, one in gone.items():
        yield Drift("row", source, one, new.get(source, MISSING), "another run")
    for source, one in new.items():
        if source not in gone:
            yield Drift("row", source, ABSENT, one, "another run")
