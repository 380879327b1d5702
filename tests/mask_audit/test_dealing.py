"""Every row of the training split is dealt once in the first epoch, or named."""

from pathlib import Path

import pytest

from stages.chat.token_store import TokenStore
from stages.mask_audit.findings import Audit
from stages.mask_report import check_dealt

from ..parts import make_rows, write_store


@pytest.mark.parametrize(
    ("dealt", "named"),
    [
        ([2, 0, 1, 3], []),
        ([2, 0, 1, 3, 0, 1], []),
        ([2, 0, 2, 3], ["rows.jsonl:2", "rows.jsonl:3"]),
        ([2, 0], ["rows.jsonl:2", "rows.jsonl:4"]),
    ],
)
def test_a_row_that_is_not_dealt_once_is_named(
    tmp_path: Path, dealt: list[int], named: list[str]
) -> None:
    write_store(tmp_path, "train", make_rows(4))
    audit = Audit()
    check_dealt(dealt, TokenStore("train", tmp_path), audit)
    assert [finding.source for finding in audit.findings] == named
    assert audit.faults["row_not_dealt_once"] == len(named)
