"""What does a log show, all in all?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .causes import Cause, rank
from .loss_signatures import judge_loss
from .norm_signatures import judge_norm
from .rate_signatures import judge_rate
from .run_log import RunLog
from .signature import Known, NotJudged, Signature
from .validation_signatures import judge_validation

NOT_COVERED = (
    "whether generations end: a masked stop token shows in no curve (mask_report, full_train)",
    "labels that are wrong but consistent, masks that supervise prompts, leaks of the future",
    "faults whose curves look sound: the gates look into data, model and step",
)


@dataclass(frozen=True)
class Diagnosis:
    """faults: what a sound run does not show; remarks: what it may show."""

    faults: Sequence[Signature]
    remarks: Sequence[Signature]
    not_judged: Sequence[NotJudged]

    @property
    def could_judge(self) -> bool:
        """Was there a training loss whose shape could be judged?"""
        return not any(one.id in ("loss", "shape of the loss") for one in self.not_judged)

    @property
    def exit_code(self) -> int:
        """0 nothing found, 1 a signature found, 2 not enough evidence."""
        return 1 if self.faults else 0 if self.could_judge else 2

    def causes_of(self, signature: Signature) -> list[Cause]:
        """First those that other signatures of this log support."""
        return rank(signature.id, [one.id for one in (*self.faults, *self.remarks)])


def diagnose(log: RunLog, known: Known) -> Diagnosis:
    """Everything that the curves of `log` show."""
    # a loss on its way to infinity, or one that begins with 0: no comparison holds of NaN
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = [
            *judge_loss(log, known),
            *judge_validation(log),
            *judge_rate(log),
            *judge_norm(log, known),
        ]
    signatures = [one for one in found if isinstance(one, Signature)]
    return Diagnosis(
        faults=[one for one in signatures if one.is_fault],
        remarks=[one for one in signatures if not one.is_fault],
        not_judged=[one for one in found if isinstance(one, NotJudged)],
    )
