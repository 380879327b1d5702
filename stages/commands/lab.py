"""Does training work here at all? A small LoRA model learns eight sequences by heart.

    holdshort lab [--seed 42]

The diagnostic of the protocol by itself, with its own model (`models.tiny_lora`) and sequences: it
needs no project and reads no params.yaml. Trains with the production step and collator in three
fresh processes (the seed, the same again, the next). Writes reports/lab/overfit_run_record.json.
Exit code: 0 passed, 1 failed, 2 bad input.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..chat.collator import Batch, collate
from ..chat.labels import IGNORE_INDEX
from ..chat.token_store import TokenRow
from ..config.errors import UserError
from ..config.fresh_process import in_fresh_processes
from ..config.launch import pinned_environment
from ..config.protocol import read_protocol
from ..config.schema import Optimizer, OverfitGate, Run
from ..models.build import count_parameters
from ..models.tiny_lora import TinyLoRALanguageModel, is_adapter
from ..probes.fingerprint import (
    RunTrace,
    digests_of,
    first_difference,
    optimizer_sha256,
    weights_sha256,
)
from ..probes.initial_loss import InitialLoss, measure_initial_loss
from ..provenance.code import sources_sha256
from ..provenance.environment import compute_environment
from ..provenance.hashing import files_below
from ..provenance.records import finite, write_json
from ..report.terminal import console, print_table, print_verdict
from ..training.determinism import make_deterministic
from ..training.loss import causal_lm_loss
from ..training.optimizer import build_optimizer
from ..training.schedule import constant_schedule
from ..training.setup import Trainer, make_autocast, make_scaler
from ..training.step import train_step
from ..verdict.judging import Measured, judge_all, overall_status, passes, rank_causes
from ..verdict.record import Binding, Verdict, make_verdict
from ..verdict.rules.lab import CAUSES, NOT_COVERED, RULES

RECORD = Path("reports/lab/overfit_run_record.json")
MODEL = {"vocab_size": 64, "d_model": 32, "n_layers": 1, "n_heads": 8, "r": 16, "lora_alpha": 32}
PAD, STOP = 0, 63
SEQUENCES, SEQUENCES_SEED = 8, 0
"""The sequences never follow --seed: another seed must show in the weights."""
LEARNING_RATE, MAX_GRAD_NORM = 0.006, 1.0
ADAM = Optimizer(adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8)
THREADS = 1
SEEDS = 2**32
SHOWN_EVERY = 10


@dataclass(frozen=True)
class Exercise:
    """A prompt, and the answer to learn; its last token is STOP."""

    prompt: list[int]
    answer: list[int]

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer


@dataclass(frozen=True)
class LabelFaults:
    """Places ("sequence 3, token 5") whose label is not what the exercise asks for.

    masked, masked_stops: of answers, without their stop tokens, and of stop tokens.
    """

    outside_answer: list[str]
    masked: list[str]
    masked_stops: list[str]


@dataclass(frozen=True)
class LabRun:
    """What one run showed.

    trace: loss before, and gradient norm of, steps 0 to max_steps, in nats per supervised token;
    frozen, adapters: how many tensors must stay as they were, and how many must not.
    """

    initial: InitialLoss
    trace: RunTrace
    labels: LabelFaults
    frozen: int
    frozen_changed: list[str]
    adapters: int
    adapters_unchanged: list[str]
    parameters: dict[str, int]


def make_exercises() -> list[Exercise]:
    """Always the same: prompts of 6 to 10 random tokens, answers of 4 to 8 and the stop token."""
    generator = np.random.default_rng(SEQUENCES_SEED)

    def some_tokens(shortest: int, longest: int) -> list[int]:
        length = generator.integers(shortest, longest, endpoint=True)
        return [int(token) for token in generator.integers(PAD + 1, STOP, length)]

    return [Exercise(some_tokens(6, 10), [*some_tokens(4, 8), STOP]) for _ in range(SEQUENCES)]


def make_batch(exercises: Sequence[Exercise]) -> Batch:
    """All exercises through the production collator, their prompts masked."""
    rows = []
    for number, exercise in enumerate(exercises):
        input_ids = np.array(exercise.tokens, np.int32)
        labels = input_ids.copy()
        labels[: len(exercise.prompt)] = IGNORE_INDEX
        roles = np.zeros(len(input_ids), np.uint8)
        rows.append(TokenRow(f"sequence {number}", input_ids, labels, roles))
    return collate(rows, PAD)


def find_label_faults(batch: Batch, exercises: Sequence[Exercise]) -> LabelFaults:
    """Hold the labels that reach `forward` against the exercises, token by token."""
    faults = LabelFaults([], [], [])
    for number, (labels, exercise) in enumerate(
        zip(batch["labels"].tolist(), exercises, strict=True)
    ):
        answer = range(len(exercise.prompt), len(exercise.tokens))
        for token, label in enumerate(labels):
            place = f"sequence {number}, token {token}"
            if token not in answer:
                if label != IGNORE_INDEX:
                    faults.outside_answer.append(place)
            elif label != exercise.tokens[token]:
                stops = token == answer[-1]
                (faults.masked_stops if stops else faults.masked).append(place)
    return faults


def build_trainer(device: torch.device, run: Run) -> Trainer:
    """The lab's model with the production step, loss and optimizer; no decay, no schedule."""
    model = TinyLoRALanguageModel(**MODEL).to(device)
    optimizer = build_optimizer(model, ADAM, learning_rate=LEARNING_RATE, weight_decay=0.0)
    return Trainer(
        model=model,
        optimizer=optimizer,
        scheduler=constant_schedule(optimizer),
        step_fn=train_step,
        loss_fn=causal_lm_loss,
        max_grad_norm=MAX_GRAD_NORM,
        autocast=make_autocast(run),
        scaler=make_scaler(run),
    )


def memorise(
    trainer: Trainer, batch: Batch, exercises: Sequence[Exercise], max_steps: int
) -> LabRun:
    """Take steps 0 to max_steps on one batch: the last shows what max_steps updates have led to."""
    model = trainer.model
    initial = measure_initial_loss(
        model, batch, trainer.loss_fn, trainer.autocast, MODEL["vocab_size"]
    )
    before = digests_of(model.state_dict())
    steps = [trainer.step([batch]) for _ in range(max_steps + 1)]
    after = digests_of(model.state_dict())
    return LabRun(
        initial=initial,
        trace=RunTrace(
            [step.loss for step in steps],
            [step.grad_norm for step in steps],
            weights_sha256(model),
            optimizer_sha256(trainer.optimizer),
        ),
        labels=find_label_faults(batch, exercises),
        frozen=sum(not is_adapter(name) for name in before),
        frozen_changed=[n for n in before if not is_adapter(n) and after[n] != before[n]],
        adapters=sum(is_adapter(name) for name in before),
        adapters_unchanged=[n for n in before if is_adapter(n) and after[n] == before[n]],
        parameters=count_parameters(model),
    )


def run_once(limits: OverfitGate, seed: int) -> LabRun:
    """One run from its seed, in a process that started with the pinned environment."""
    run = Run(seed=seed, device="cpu", precision="fp32", cpu_threads=THREADS, hardware=None)
    device = make_deterministic(run)
    exercises = make_exercises()
    return memorise(build_trainer(device, run), make_batch(exercises), exercises, limits.max_steps)


def measure(run: LabRun, again: RunTrace, other_seed: RunTrace) -> dict[str, Measured]:
    """What the rules ask of the runs."""
    initial, losses = run.initial, run.trace.losses
    last = len(losses) - 2  # the protocol counts its steps from 1, the record from 0
    difference = first_difference(run.trace, again)
    same = first_difference(run.trace, other_seed) is None

    def names(found: list[str], of: int) -> Measured:
        return Measured(len(found), of, evidence=tuple(found))

    return {
        "prompt_supervised": names(run.labels.outside_answer, SEQUENCES),
        "answer_masked": names(run.labels.masked, SEQUENCES),
        "stop_masked": names(run.labels.masked_stops, SEQUENCES),
        "loss_error": Measured(
            initial.error_to_reference,
            initial.tokens,
            f"loss {initial.loss:.6g}, cross-entropy {initial.reference:.6g} nats",
        ),
        "initial_loss_error": Measured(
            initial.error_to_uniform,
            initial.tokens,
            f"cross-entropy {initial.reference:.4f}, ln K {initial.uniform:.4f} nats",
        ),
        "overfit_loss": Measured(
            losses[last], SEQUENCES, f"loss of step {last}, {losses[0]:.4f} at step 0"
        ),
        "frozen_changed": names(run.frozen_changed, run.frozen),
        "adapter_unchanged": names(run.adapters_unchanged, run.adapters),
        "rerun_differs": Measured(
            int(difference is not None), 2, f"first difference: {difference}" if difference else ""
        ),
        "other_seed_same": Measured(int(same), 2),
    }


def bind(seed: int, limits: dict[str, Any]) -> Binding:
    """What the verdict is bound to: the lab's settings and limits, this code, its libraries."""
    package = Path(__file__).parents[1]
    roots = (
        Path(__file__),
        *(package / name for name in ("chat", "models", "probes", "training")),
    )
    files = [file for root in roots for file in files_below(root) if file.suffix == ".py"]
    code = {file.relative_to(package).as_posix(): file for file in files}
    params = {
        "seed": seed,
        "learning_rate": LEARNING_RATE,
        "max_grad_norm": MAX_GRAD_NORM,
        **asdict(ADAM),
        "gates.overfit.max_steps": limits["gates.overfit.max_steps"],
        **{key: limits[key] for rule in RULES for key in rule.limits},
    }
    environment = compute_environment("cpu", "fp32", THREADS)
    return Binding("lab", params, sources_sha256(code), environment)


def record_of(run: LabRun, verdict: Verdict) -> dict[str, Any]:
    """The record, the same bytes for the same run: no time, no name of a host, no path."""
    steps = zip(run.trace.losses, run.trace.grad_norms, strict=True)
    return {
        "model": {"name": TinyLoRALanguageModel.__name__, **MODEL, **run.parameters},
        "sequences": SEQUENCES,
        "supervised_tokens": run.initial.tokens,
        "uniform_loss": run.initial.uniform,
        "initial_loss": finite(run.initial.reference),
        "steps": [
            {"step": step, "loss": finite(loss), "grad_norm": finite(norm)}
            for step, (loss, norm) in enumerate(steps)
        ],
        "weights_sha256": run.trace.weights,
        "optimizer_sha256": run.trace.optimizer,
        "verdict": asdict(verdict),
    }


def print_steps(trace: RunTrace) -> None:
    last = len(trace.losses) - 1
    rows = [
        (str(step), f"{trace.losses[step]:.4f}", f"{trace.grad_norms[step]:.4f}")
        for step in (*range(0, last, SHOWN_EVERY), last)
    ]
    print_table(f"{SEQUENCES} sequences by heart", ("step", "loss", "gradient norm"), rows)


def run(seed: int) -> int:
    """Exit code: 0 passed, 1 failed. Raises UserError for an impossible seed."""
    if not 0 <= seed < SEEDS:
        raise UserError(f"--seed is {seed}: use a whole number from 0 to {SEEDS - 1}")
    gates, limits = read_protocol()
    os.environ.update(pinned_environment(THREADS))
    binding = bind(seed, limits)
    with console.status("learning eight sequences by heart, three times"):
        first, again, other = in_fresh_processes(
            partial(run_once, gates.overfit), [seed, seed, (seed + 1) % SEEDS], at_once=3
        )
    checks = judge_all(RULES, measure(first, again.trace, other.trace), binding.params, seed)
    verdict = make_verdict(
        binding,
        overall_status(checks, RULES),
        checks,
        causes=rank_causes(checks, CAUSES),
        not_covered=NOT_COVERED,
    )
    write_json(RECORD, record_of(first, verdict))
    print_steps(first.trace)
    print_verdict(verdict, str(RECORD))
    return 0 if passes(verdict.status) else 1
