"""What the self-test finds over the run that comes with the repository, recorded in default.json.

python -m tests.faults.default MATRIX   records the matrix.json of a full self-test
"""

import json
import sys
from pathlib import Path
from typing import Any

from stages.provenance.records import write_json

RECORD = Path(__file__).parent / "default.json"


def summary_of(matrix: dict[str, Any]) -> dict[str, Any]:
    """The table that must not change unnoticed: by fault its gate, the checks of it that must see
    the fault and do, and whether the cause is named; by number what became of it.
    """
    return {
        "faults": {
            one["name"]: {
                "gate": one["gate"],
                "status": one["status"],
                "seen_by": [check for check in one["must_see"] if _sees(one, check)],
                "cause_named": one["cause_named"],
            }
            for one in matrix["faults"]
        },
        "list": {str(one["number"]): one["status"] for one in matrix["list"]},
        "variations": matrix["variations"],
        "controls": {one["name"]: one["caught"] == one["rows"] for one in matrix["controls"]},
    }


def _sees(outcome: dict[str, Any], check: str) -> bool:
    return check in outcome["found"].get(outcome["gate"], [])


def read_record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


if __name__ == "__main__":
    write_json(RECORD, summary_of(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
