"""However many rows are broken, nearly half or a single one, gate 1 fails and names them."""

from typing import Any

from ..project import ROWS, Project

STOP_MASKED = """
from stages.chat.collator import collate

def collator(rows, pad_token_id, first, last):
    batch = collate(rows, pad_token_id)
    for index, row in enumerate(rows):
        if first <= int(row.source.rpartition(":")[2]) <= last:
            labels = batch["labels"][index]
            labels[labels == 2] = -100
    return batch
"""


def judged(project: Project, first: int, last: int) -> dict[str, Any]:
    """gates/mask_report.json after a collator that masks stop tokens of some lines."""
    target = {"_target_": "stages.plugins.mine.collator", "first": first, "last": last}
    project.set_params(data__collator=target)
    done = project.stage("mask_report")
    assert done.returncode == 0, done.stdout
    verdict: dict[str, Any] = project.json("gates/mask_report.json")
    verdict["checks"] = {check["id"]: check for check in verdict["checks"]}
    return verdict


def test_nearly_half_of_the_rows_and_a_single_row_fail_alike(fresh: Project) -> None:
    fresh.plug_in(STOP_MASKED)
    assert fresh.stage("hash_data").returncode == 0
    for first, last in ((1, 117), (100, 100)):
        verdict = judged(fresh, first, last)
        check = verdict["checks"]["collated_stop_masked"]
        assert (verdict["status"], check["status"]) == ("fail", "fail")
        lines = fresh.read("data/incidents.jsonl").splitlines()[first - 1 : last]
        assert check["value"] == sum(line.count('"role":"assistant"') for line in lines)
        named = {line.partition(" token ")[0] for line in check["evidence"]}
        allowed = {f"data/incidents.jsonl:{line}" for line in range(first, last + 1)}
        assert named and named <= allowed
        others = {name for name, one in verdict["checks"].items() if one["status"] == "fail"}
        assert others == {"collated_stop_masked"}
        assert verdict["checks"]["controls_missed"]["status"] == "pass"
        assert len(allowed) / ROWS < 0.49


def test_the_numbers_count_controls_and_the_page_lists_them(fresh: Project) -> None:
    assert fresh.stage("hash_data").returncode == 0
    assert fresh.stage("mask_report").returncode == 0
    numbers = fresh.json("metrics/mask_report.json")["mask_report"]
    assert (numbers["controls_applied"], numbers["controls_caught"]) == (26, 26)
    page = fresh.read("reports/mask_report/index.html")
    for name in ("every stop token masked", "batch: one pad supervised"):
        assert name in page
    assert "not tried: no row has a supervised reasoning token" in page
