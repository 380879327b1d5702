"""Counts tell of all findings, also of those that are not kept."""

from stages.mask_audit.findings import Audit, Finding, Kind


def finding(kind: Kind, row: int, count: int = 1) -> Finding:
    return Finding(kind, f"a.jsonl:{row}", 0, count, "detail")


def audit(*findings: Finding, limit: int | None = None) -> Audit:
    made = Audit(limit=limit)
    for one in findings:
        made.add(one)
    return made


def test_rows_with_several_findings_of_a_kind_count_once() -> None:
    found = audit(
        finding("stop_masked", 1),
        finding("content_masked", 1, 5),
        finding("stop_masked", 1),
        finding("stop_masked", 2),
    )
    assert found.rows_of == {"stop_masked": 2, "content_masked": 1}
    assert found.faults == {"stop_masked": 3, "content_masked": 5}


def test_the_first_of_each_kind_are_kept_and_all_are_counted() -> None:
    many = [finding("stop_masked", row) for row in range(5)]
    rare = finding("content_masked", 9)
    added, included = audit(*many, rare, limit=2), Audit(limit=2)
    included.include(audit(*many[:3]))
    included.include(audit(*many[3:], rare))
    for found in (added, included):
        assert found.findings == [*many[:2], rare]
        assert found.faults == {"stop_masked": 5, "content_masked": 1}
        assert found.rows_of == {"stop_masked": 5, "content_masked": 1}
