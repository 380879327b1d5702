"""What happened in that step? Take it again, watched, from the checkpoint before it.

Reads a directory below anomalies/ (see training/incident.py), params.yaml and artifacts/tokens/,
which must be those of the run. Goes to the step, says which of its rows have the highest loss,
takes it, compares its bits with the recorded ones, and names the module and the row at which a
number that is not finite begins. Writes nothing. Exit code: 0 the step was reproduced, 1 not.

    holdshort replay [DIRECTORY]
"""

import copy
import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..chat.collator import Batch
from ..chat.token_store import TokenRow
from ..chat.tokenizer import ChatTokenizer
from ..config import Params, UserError, load_params
from ..config.errors import reading
from ..probes.evaluating import evaluating
from ..probes.initial_loss import reference_loss
from ..probes.non_finite import Origin, watching_origins
from ..provenance.environment import compute_environment
from ..report.terminal import console, print_table, progress
from ..training.checkpoint import load_state
from ..training.incident import Incident, latest_incident
from ..training.run import Run, start_run
from ..training.state import capture, restore
from ..training.step import forward
from ..verdict.clearance import authorise

ROWS_SHOWN = 8
TEXT_SHOWN = 60
"""Characters of a row's end: a stop token and what stands before it."""


@dataclass(frozen=True)
class Replay:
    """A step taken again.

    losses: of each row before the step, nats per supervised token, as the micro-batches have them;
    origins: where non-finite numbers begin; operation: the one whose gradient is the first that is
    not a number, in the words of torch's anomaly detection.
    """

    loss: float
    grad_norm: float
    losses: list[list[float]]
    origins: list[Origin]
    operation: str | None = None

    def reproduces(self, incident: Incident) -> bool:
        """Are loss and gradient norm those of the record, bit for bit?"""
        return (repr(self.loss), repr(self.grad_norm)) == (incident.loss, incident.grad_norm)


def go_to(run: Run, checkpoint: Path | None, step: int) -> None:
    """Restore the checkpoint of an incident, if it has one, and take the steps that are missing.

    Raises UserError for a checkpoint of another training or of later steps.
    """
    if checkpoint is not None:
        state = load_state(checkpoint)
        with reading(checkpoint, "a checkpoint of this training", "run the training again"):
            restore(run, state)
    if not run.done <= step < run.steps:
        raise UserError(
            f"step {step} cannot be taken again: {run.done} of {run.steps} steps are done before it"
        )
    with progress("steps") as bar:
        for _ in bar.track(range(run.done, step), description=f"to step {step}"):
            run.telemetry.append({"loss": run.next_step().loss})


@torch.no_grad()
def row_losses(run: Run, batches: Sequence[Batch]) -> list[list[float]]:
    """Mean cross-entropy of each row of each micro-batch, without dropout."""
    model, losses = run.trainer.model, []
    with evaluating(model), run.trainer.autocast():
        for batch in batches:
            rows = zip(forward(model, batch), batch["labels"], strict=True)
            losses.append([reference_loss(row[None], labels[None]) for row, labels in rows])
    return losses


def take_again(run: Run) -> Replay:
    """Take the step that comes next; once more under anomaly detection when it is not finite."""
    losses = row_losses(run, run.batches.of_step(run.done))
    before = copy.deepcopy(capture(run))
    with watching_origins(run.trainer.model) as origins:
        result = run.next_step()
    operation = None
    if not math.isfinite(result.grad_norm):
        restore(run, before)
        operation = first_bad_operation(run)
    return Replay(result.loss, result.grad_norm, losses, origins, operation)


def first_bad_operation(run: Run) -> str | None:
    """The sentence with which torch refuses the first NaN of a backward pass."""
    try:
        with torch.autograd.detect_anomaly(check_nan=True):
            run.next_step()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


@dataclass(frozen=True)
class StepRows:
    """Rows of a step in the order of its micro-batches, which have `sizes` rows each."""

    rows: Sequence[TokenRow]
    sizes: Sequence[int]

    def at(self, batch: int, row: int) -> TokenRow | None:
        """The row at a place of a micro-batch; None where several documents share a place."""
        if sum(self.sizes) != len(self.rows):
            return None
        return self.rows[sum(self.sizes[:batch]) + row]

    def name(self, batch: int, row: int) -> str:
        found = self.at(batch, row)
        return f"row {row} of micro-batch {batch}" if found is None else found.source

    def end(self, batch: int, row: int, tokenizer: ChatTokenizer) -> str:
        """The last characters of a row, where it is known."""
        found = self.at(batch, row)
        return "" if found is None else tokenizer.decode(found.input_ids.tolist())[-TEXT_SHOWN:]


def show(replay: Replay, incident: Incident, rows: StepRows, tokenizer: ChatTokenizer) -> None:
    """The rows with the highest loss, where it begins, and whether the bits are the same."""
    places = [
        (math.inf if math.isnan(loss) else loss, batch, row)
        for batch, losses in enumerate(replay.losses)
        for row, loss in enumerate(losses)
    ]
    print_table(
        f"rows of step {incident.step} with the highest loss before it",
        ("row", "loss", "ends with"),
        [
            (rows.name(batch, row), f"{loss:.4g}", repr(rows.end(batch, row, tokenizer)))
            for loss, batch, row in sorted(places, reverse=True)[:ROWS_SHOWN]
        ],
    )
    for origin in replay.origins[:ROWS_SHOWN]:
        where = "" if origin.row is None else f", {rows.name(origin.batch, origin.row)}"
        console.print(f"not finite, from finite numbers: {origin}{where}")
    if replay.operation:
        console.print(f"backward: {replay.operation}")
    same = replay.reproduces(incident)
    console.print(
        f"step {incident.step}: loss {replay.loss!r}, gradient norm {replay.grad_norm!r}: "
        + ("the bits of the record" if same else "not those of the record")
    )
    if not same:
        console.print(f"recorded: loss {incident.loss}, gradient norm {incident.grad_norm}")


def authorised_params(incident: Incident) -> Params:
    """params.yaml, if it is that of the run. Raises UserError when another run is set up here."""
    params = load_params("full_train")
    run = params.run
    if authorise(compute_environment(run.device, run.precision, run.cpu_threads)) != incident.run:
        raise UserError(
            "the incident is of another run: data, params, code or environment are not those of "
            "the training that met it; check out its commit and run `dvc repro manifest`"
        )
    return params


def run(directory: Path | None) -> int:
    """Exit code: 0 reproduced, 1 not."""
    directory = directory or latest_incident()
    incident = Incident.read(directory)
    params = authorised_params(incident)
    console.print(f"{directory}: {incident.reason}")
    checkpoint = incident.checkpoint_in(directory)
    training = start_run(params)
    go_to(training, checkpoint, incident.step)
    rows = training.batches.rows_of_step(incident.step)
    replay = take_again(training)
    step_rows = StepRows(rows, [len(losses) for losses in replay.losses])
    tokenizer = ChatTokenizer(params.model.tokenizer, datetime.date(2000, 1, 1))
    show(replay, incident, step_rows, tokenizer)
    return 0 if replay.reproduces(incident) else 1
