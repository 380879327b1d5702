"""Train, but only what every gate has cleared.

Reads clearance.json, artifacts/tokens/ and, before anything else, the manifest and all verdicts
again. Trains with checkpoints to resume from, evaluates on held-out rows, and writes models/final/,
metrics/full_train.json and reports/full_train/. Where train.num_processes is more than 1, it starts
that many ranks of itself, or is one of them: rank 0 authorises, reports and writes.

    python -m stages.full_train
"""

from .config.launch import is_rank, pin_process, run_stage

pin_process(__name__, "full_train")

import datetime
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from .chat.tokenizer import ChatTokenizer
from .config import Params, Refusal
from .config.load import declared_values
from .config.schema import HubModel
from .curves.columns import Rows, to_run_log
from .curves.diagnosis import Diagnosis, diagnose
from .curves.report_files import diagnosis_section
from .curves.signature import Known
from .models.build import build_model, count_parameters, is_pretrained
from .models.hub_save import (
    MERGED,
    Logits,
    compare_reloaded,
    logits_of,
    stop_tokens_agree,
    write_hub_model,
)
from .models.record import MODEL, ModelRecord
from .models.save import save_model, write_plain
from .provenance.environment import compute_environment
from .provenance.records import format_value, read_json, read_metrics, write_metrics
from .report.page import Section, Table, report_directory, write_page
from .report.plots import Chart, draw
from .report.terminal import TrainingProgress, console
from .training.checkpoint import CheckpointDirectory
from .training.evaluation import Answer, Turn, answer_turns, first_turns, share_exact, share_stopped
from .training.incident import Incident, keep_incident
from .training.parallel import ALONE, check_replicas, join, model_state
from .training.ranks import (
    first_rank_first,
    largest_over_ranks,
    leave,
    on_first_rank,
    rank,
    wait,
    world_size,
)
from .training.run import Run, start_run, take_step, validation_loss
from .training.signals import StopRequest, catching_stop_signals
from .training.state import capture, restore
from .verdict.clearance import CLEARANCE, MANIFEST, authorise

LOG = Path("logs/full_train.csv")
ANSWERS_SHOWN = 50
BASE_ANSWERS = 16
"""Turns that the base model answers too: they stand beside those of the trained one."""
SAVED_TOLERANCE = 1e-6
"""Of the largest logit: the same weights compute the same in another process."""
MERGED_TOLERANCE = 1e-3
"""Of the largest logit: W + BA is rounded once more than Wx + BAx."""


class StepLog:
    """A line for every step that was computed, with its time: appended to, and ignored by git."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, Any], seconds: float) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._file.write(f"{now},{line['step']},{line['loss']!r},{seconds:.4f}\n")


def handle_anomaly(
    line: Mapping[str, Any], run: Run, params: Params, checkpoints: CheckpointDirectory
) -> None:
    """Keep what is needed to look at a step that went wrong.

    Raises Refusal where train.on_anomaly, or a weight that is no number any more, ends the run.
    """
    step, reason, skipped = line["step"], line["anomaly"], params.train.on_anomaly == "skip"
    lost = not math.isfinite(line["loss"]) or not math.isfinite(line["grad_norm"])
    rows = run.batches.rows_of_step(step)
    incident = Incident(
        run=checkpoints.fingerprint,
        step=step,
        reason=reason,
        loss=repr(line["loss"]),
        grad_norm=repr(line["grad_norm"]),
        learning_rate=line["learning_rate"],
        rows=[row.source for row in rows],
    )
    kept = ""
    if rank() == 0:
        kept = f"its {len(rows)} rows are in {keep_incident(incident, rows, checkpoints.latest())}"
    wait()
    if params.train.on_anomaly == "stop" or (lost and not skipped):
        raise Refusal(
            f"training stopped at step {step}: {reason}. No model was written; {kept}, and "
            "`holdshort replay` takes that step again and names module and rows. Lower "
            "train.learning_rate, warm up longer, or set train.on_anomaly to skip"
        )
    console.print(f"step {step}: {reason}; {'skipped' if skipped else 'went on'}; {kept}")


def train(run: Run, params: Params, checkpoints: CheckpointDirectory) -> None:
    """Take all steps that are missing; stop with a checkpoint when a signal asks for it."""
    first = run.done
    if first:
        console.print(f"resuming after {first} of {run.steps} steps")
    with catching_stop_signals() as request, reporting(run) as report:
        while run.done < run.steps:
            began = time.perf_counter()
            with ended_by(request):
                line = take_step(run, params)
                if line["anomaly"]:
                    handle_anomaly(line, run, params, checkpoints)
                run.telemetry.append(line)
                report(line, time.perf_counter() - began)
                if request.signal is None and run.team.has_lost_launcher():
                    request.signal = signal.SIGTERM
                asked = int(largest_over_ranks(request.signal or 0))
            if asked:
                request.signal = asked
                save(run, checkpoints)
                stop_early(request, run)
            if run.done == run.steps or line["validation_loss"] is not None:
                check_replicas(run.trainer.model, run.done)
            if run.done % params.train.save_steps == 0 and run.done < run.steps:
                save(run, checkpoints)
    console.print(f"computed {run.steps - first} of {run.steps} steps here, from step {first}")


@contextmanager
def ended_by(request: StopRequest) -> Iterator[None]:
    """When another rank is gone, this one fails in what they do together; its launcher asked it
    to stop, and has the reason from the other."""
    try:
        yield
    except RuntimeError:
        if world_size() == 1 or request.signal is None:
            raise
        sys.exit(request.exit_code)


@contextmanager
def reporting(run: Run) -> Iterator[Callable[[Mapping[str, Any], float], None]]:
    """What shows and logs a step and its seconds: on rank 0; nothing on the others."""
    if rank() > 0:
        yield lambda line, seconds: None
        return
    with TrainingProgress(run.steps, run.done) as bar, StepLog(LOG) as log:

        def report(line: Mapping[str, Any], seconds: float) -> None:
            log.write(line, seconds)
            speed = line["supervised_tokens"] / seconds
            bar.advance(line["loss"], line["learning_rate"], line["grad_norm"], speed)

        yield report


def save(run: Run, checkpoints: CheckpointDirectory) -> None:
    """Write a checkpoint of all ranks, once their weights are known to be the same."""
    check_replicas(run.trainer.model, run.done)
    state = capture(run)
    if rank() == 0:
        checkpoints.save(run.done, state)
    wait()


def stop_early(request: StopRequest, run: Run) -> None:
    console.print(
        f"stopped after {run.done} of {run.steps} steps; the checkpoint is saved, and `dvc repro` "
        "goes on from there"
    )
    wait()
    sys.exit(request.exit_code)


def part_company(run: Run, params: Params) -> Run:
    """The trained run on rank 0, alone and with a whole model; the other ranks end here."""
    if world_size() == 1:
        return run
    model = run.trainer.model
    if run.team.sharded:
        state = model_state(model)
        if rank() == 0:
            model = build_model(params.model, run.meta.vocab_size, run.device)
            model.load_state_dict(state)
    is_first = rank() == 0
    leave()
    if not is_first:
        sys.exit(0)
    return replace(run, trainer=replace(run.trainer, model=model, wrapped=None), team=ALONE)


@dataclass(frozen=True)
class Quality:
    """How good the model is on held-out rows, beside the untrained one.

    base_answers: of a pretrained model before this training, to the first of the turns.
    """

    validation_loss: float
    untrained_validation_loss: float
    answers: list[Answer]
    base_answers: list[Answer]

    @property
    def exact_match(self) -> float:
        return share_exact(self.answers)

    @property
    def stop_rate(self) -> float:
        return share_stopped(self.answers)


def evaluate(run: Run, params: Params) -> Quality:
    """Loss and greedy answers of the trained model, and the loss of the untrained one."""
    with console.status("evaluating on held-out rows"):
        turns = first_turns(run.validation, params.train.eval_generations)
        answers = answer(run, params, turns)
        untrained = start_run(params)
        loss = validation_loss(untrained, params)
        shown = turns[:BASE_ANSWERS] if is_pretrained(params.model) else []
        base_answers = answer(untrained, params, shown)
    return Quality(run.telemetry[-1]["validation_loss"], loss, answers, base_answers)


def answer(run: Run, params: Params, turns: Sequence[Turn]) -> list[Answer]:
    """What the model of `run` says, greedily."""
    return answer_turns(
        run.trainer.model,
        turns,
        meta=run.meta,
        max_new_tokens=params.train.max_new_tokens,
        batch_size=params.train.per_device_eval_batch_size,
        device=run.device,
    )


def draw_column(
    title: str, telemetry: pd.DataFrame, column: str, unit: str = "", log: bool = False
) -> str:
    """One column of the telemetry over the steps."""
    line = {column: telemetry[column].tolist()}
    return draw(Chart(title, telemetry["step"].tolist(), line, y_label=unit, log_y=log))


def diagnose_run(run: Run, params: Params) -> Diagnosis:
    """What the telemetry shows; `holdshort diagnose` says the same of telemetry.csv."""
    rows = [(f"step {line['step']}", line) for line in run.telemetry]
    log = to_run_log(Rows("telemetry", rows, max_steps=run.steps), {})
    return diagnose(log, Known(max_grad_norm=params.train.max_grad_norm))


def write_telemetry(run: Run, path: Path) -> pd.DataFrame:
    """A line for every step, each number so that it reads back to the same bits."""
    telemetry = pd.DataFrame(run.telemetry)
    telemetry.to_csv(path, index=False, lineterminator="\n")
    return telemetry


def write_reports(
    run: Run, quality: Quality, diagnosis: Diagnosis, tokenizer: ChatTokenizer
) -> None:
    """telemetry.csv, answers.csv and the page."""
    directory = report_directory("full_train")
    telemetry = write_telemetry(run, directory / "telemetry.csv")
    answers = pd.DataFrame(
        {
            "source": [answer.turn.source for answer in quality.answers],
            "exact": [answer.exact for answer in quality.answers],
            "stopped": [answer.stopped for answer in quality.answers],
            "model": tokenizer.decode_batch([answer.tokens for answer in quality.answers]),
            "reference": tokenizer.decode_batch([answer.turn.answer for answer in quality.answers]),
        }
    )
    if quality.base_answers:
        base = tokenizer.decode_batch([answer.tokens for answer in quality.base_answers])
        answers.insert(3, "base model", pd.Series(base, dtype=object))
        answers["base model"] = answers["base model"].fillna("")
    answers.to_csv(directory / "answers.csv", index=False, lineterminator="\n")
    evaluated = telemetry.dropna(subset="validation_loss")
    charts = [
        draw_column("Loss", telemetry, "loss", "nats per token"),
        draw_column("Validation loss", evaluated, "validation_loss", "nats per token"),
        draw_column("Gradient norm before clipping", telemetry, "grad_norm", "global L2", log=True),
        draw_column("Learning rate", telemetry, "learning_rate"),
    ]
    shown = answers.sort_values("exact", kind="stable").head(ANSWERS_SHOWN)
    table = Table(list(shown.columns), shown.to_numpy().tolist(), total=len(answers))
    write_page(
        "full_train",
        __doc__,
        summary=summarise(run, quality),
        sections=[
            diagnosis_section(diagnosis),
            Section("Curves", charts=charts),
            *describe_anomalies(run),
            Section("Answers on held-out rows", "Wrong ones first.", table=table),
        ],
    )


def describe_anomalies(run: Run) -> list[Section]:
    """The steps that went wrong, if any did."""
    rows = [(line["step"], line["anomaly"]) for line in run.telemetry if line["anomaly"]]
    return [Section("Anomalies", table=Table(("step", "what"), rows))] if rows else []


def summarise(run: Run, quality: Quality) -> dict[str, Any]:
    """The numbers for metrics/full_train.json."""
    return {
        "steps": run.steps,
        "train_loss": run.telemetry[-1]["loss"],
        "anomalies": sum(line["anomaly"] is not None for line in run.telemetry),
        "validation_loss": quality.validation_loss,
        "untrained_validation_loss": quality.untrained_validation_loss,
        "exact_match": quality.exact_match,
        "stop_rate": quality.stop_rate,
        "answers": len(quality.answers),
        **count_parameters(run.trainer.model),
    }


@dataclass(frozen=True)
class LogitsProbe:
    """A held-out row, and the trained model's logits on it: float32 [T, V]."""

    ids: list[int]
    logits: Logits

    @classmethod
    def of(cls, run: Run) -> Self:
        ids = run.validation[0].input_ids.tolist()
        return cls(ids, logits_of(run.trainer.model, ids))


def verify_saved(
    trained: LogitsProbe, run: Run, params: HubModel, tokenizer: ChatTokenizer
) -> dict[str, Any]:
    """Load models/final/ in fresh processes; its numbers for metrics/full_train.json.

    Raises Refusal, and removes the model, when it is not the one that was trained.
    """
    with console.status("loading what was written in a fresh process"):
        found = compare_reloaded(MODEL, params, trained.ids, trained.logits, run.device)
    scale = float(np.abs(trained.logits).max())
    faults = []
    if found.saved > SAVED_TOLERANCE * scale:
        faults.append(f"its logits differ by {found.saved:.3g} from the trained model's")
    if found.merged is not None and found.merged > MERGED_TOLERANCE * scale:
        faults.append(f"the merged model's logits differ by {found.merged:.3g}")
    if not found.base:
        faults.append("its logits are the base model's: nothing was learned")
    written = [MODEL, *([MODEL / MERGED] if params.save_merged else [])]
    if not all(stop_tokens_agree(directory, tokenizer) for directory in written):
        faults.append("its generation_config stops at another token than the template writes")
    if faults:
        shutil.rmtree(MODEL)
        raise Refusal(f"{MODEL} is not the model that was trained and was removed: {faults[0]}")
    return {
        "saved_logits_difference": found.saved,
        "merged_logits_difference": found.merged,
        "base_logits_difference": found.base,
    }


def model_card(digest: str, summary: Mapping[str, Any], params: Params) -> str:
    """models/final/README.md."""
    lines = [
        f"# {params.model.name}, trained by holdshort",
        "",
        f"Cleared by the manifest with the digest `{digest}` ({MANIFEST}).",
        "",
        "| measured | value |",
        "|---|---|",
        *(
            f"| {name.replace('_', ' ')} | {format_value(value)} |"
            for name, value in summary.items()
        ),
        "",
        "Validation loss is in nats per supervised token over the whole validation split; exact "
        "match and stop rate are of greedy generations on held-out turns.",
        "",
        "`holdshort verify DIRECTORY` says whether these files are those that were trained.",
    ]
    return "\n".join(lines) + "\n"


def model_writer(run: Run, params: Params, tokenizer: ChatTokenizer) -> Callable[[Path], None]:
    """What writes the trained model into a directory."""
    model = run.trainer.model
    if isinstance(params.model, HubModel):
        return partial(write_hub_model, model=model, params=params.model, tokenizer=tokenizer)
    config = asdict(params.model) | {"vocab_size": run.meta.vocab_size}
    return partial(write_plain, model=model, config=config)


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """A line for each signature of a failure."""
    for signature in diagnosis.faults:
        line = f"diagnosis: {signature.title}: {signature.evidence[0]}"
        console.print(line, style="yellow")


def record_maker(digest: str, params: Params) -> Callable[[Path], ModelRecord]:
    """What makes the record of a model directory of this run."""
    run = params.run
    return partial(
        ModelRecord.of,
        manifest=digest,
        clearance=read_json(CLEARANCE, "run `dvc repro manifest`"),
        environment=compute_environment(run.device, run.precision, run.cpu_threads),
        params=declared_values("full_train"),
    )


def print_quality(quality: Quality, baselines: Mapping[str, Any]) -> None:
    """The model's score beside those that need no model."""
    console.print(
        f"validation loss {quality.validation_loss:.4f} nats "
        f"(untrained {quality.untrained_validation_loss:.4f})"
    )
    if quality.answers:
        console.print(
            f"exact match on {len(quality.answers)} held-out turns: {quality.exact_match:.3f} "
            f"(most frequent answer {baselines['majority_exact_match']:.3f}, keyword table "
            f"{baselines['keyword_exact_match']:.3f}); stop rate {quality.stop_rate:.3f}"
        )


def authorise_here(params: Params) -> str:
    """The digest of this run, if it was cleared. Raises Refusal otherwise."""
    run = params.run
    return authorise(compute_environment(run.device, run.precision, run.cpu_threads))


def main(params: Params) -> None:
    if params.train.num_processes > 1 and not is_rank():
        from .training.launcher import run_ranks

        authorise_here(params)  # refused before any rank is started
        sys.exit(run_ranks("full_train", params.train.num_processes, params.run.device))
    team = join(params.train, params.run)
    console.quiet = rank() > 0
    digest = on_first_rank(partial(authorise_here, params))
    baselines = read_metrics("hash_data")
    checkpoints = CheckpointDirectory(digest, params.train.save_total_limit)
    with checkpoints.locked() if rank() == 0 else nullcontext():
        run = start_run(params, team)
        if state := first_rank_first(checkpoints.load_latest):
            restore(run, state)
        train(run, params, checkpoints)
        run = part_company(run, params)
        quality = evaluate(run, params)
        summary = summarise(run, quality)
        tokenizer = ChatTokenizer(params.model.tokenizer, datetime.date(2000, 1, 1))
        diagnosis = diagnose_run(run, params)
        write_reports(run, quality, diagnosis, tokenizer)
        hub = params.model if isinstance(params.model, HubModel) else None
        trained = LogitsProbe.of(run) if hub else None  # before merging changes the model
        save_model(
            MODEL,
            model_writer(run, params, tokenizer),
            tokenizer,
            model_card(digest, summary, params),
            record_maker(digest, params),
        )
        if hub and trained:
            summary |= verify_saved(trained, run, hub, tokenizer)
        write_metrics("full_train", summary)
        checkpoints.remove()
    print_quality(quality, baselines)
    print_diagnosis(diagnosis)


if __name__ == "__main__":
    run_stage("full_train", main)
