"""Speed of full_train's steps: over a bare loop, with and without telemetry, and over TRL's.

Each pair takes the same rows in the same order, in the same precision and number of threads.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from stages.chat.collator import collate
from stages.chat.token_store import TokenStore, read_meta
from stages.config.launch import pinned_environment
from stages.config.load import load_params
from stages.config.schema import Params
from stages.full_train import reporting
from stages.models.tiny_gpt import TinyGPT
from stages.probes.overfit import choose_rows
from stages.provenance.base_model import find_base_model
from stages.training.run import Run, start_run, take_step

from ..conftest import ROOT
from ..project import Project, copy_repository
from ..short_rows import keep_short_rows
from .preparing import trl_packages

PAIRS = 5
STEPS = 20
BASE_STEPS = 6
"""Steps on the real model, after one that warms up."""
SHORT_ROWS = 60
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
"""The adapter of conf/model/hub.yaml."""
BASE_MODEL = (
    "+experiment=smollm2_135m_lora",
    "train.per_device_train_batch_size=2",
    "train.gradient_accumulation_steps=2",
    "train.eval_steps=1000",
    "gates.overfit.num_samples=8",
)


def tokenised(path: Path, *overrides: str, short_rows: int = 0) -> Project:
    """The repository with these params, its data hashed and labelled: all of it, or short rows."""
    project = copy_repository(ROOT, path)
    if short_rows:
        keep_short_rows(project, short_rows)
    composed = project.holdshort("compose", *overrides)
    assert composed.returncode == 0, composed.stdout
    project.commit("Start")
    project.repro("mask_report")
    return project


@contextmanager
def params_of(project: Project, stage: str = "full_train") -> Iterator[Params]:
    """params.yaml as a stage reads it, in the project's directory and with its threads."""
    with chdir(project.path):
        params = load_params(stage)
        os.environ.update(pinned_environment(params.run.cpu_threads))
        torch.set_num_threads(params.run.cpu_threads)
        yield params


def full_training(params: Params, steps: int) -> Callable[[], None]:
    """The next `steps` steps of full_train, with all that it does to each."""
    run = start_run(params)

    def work() -> None:
        with reporting(run) as report:
            for _ in range(steps):
                began = time.perf_counter()
                line = take_step(run, params)
                run.telemetry.append(line)
                report(line, time.perf_counter() - began)

    return work


def steps_alone(params: Params, steps: int) -> Callable[[], None]:
    """The same steps without telemetry."""
    run = start_run(params)

    def work() -> None:
        for _ in range(steps):
            run.telemetry.append({})
            run.trainer.step(run.batches.of_step(run.done - 1))

    return work


def bare_loop(params: Params, steps: int) -> Callable[[], None]:
    """The same training as plain PyTorch has it; batches come from the same place."""
    run: Run = start_run(params)
    train, model = params.train, TinyGPT(run.meta.vocab_size, **tiny_gpt_sizes(params))
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=train.learning_rate,
        betas=(train.optimizer.adam_beta1, train.optimizer.adam_beta2),
        weight_decay=train.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.steps)
    done = [0]

    def work() -> None:
        for _ in range(steps):
            batches = run.batches.of_step(done[0])
            done[0] += 1
            count = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
            for batch in batches:
                logits = model(batch["input_ids"], batch["attention_mask"]).logits
                loss = cross_entropy(
                    logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum"
                )
                (loss / count).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), train.max_grad_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    return work


def tiny_gpt_sizes(params: Params) -> dict[str, Any]:
    names = ("d_model", "n_layers", "n_heads", "max_length", "local_window", "dropout")
    return {name: getattr(params.model, name) for name in names}


def ratios(one: Callable[[], None], other: Callable[[], None]) -> float:
    """Median over pairs of seconds(one) / seconds(other), after a pair that does not count."""
    found = []
    for _ in range(PAIRS + 1):
        seconds = []
        for work in (one, other):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        found.append(seconds[0] / seconds[1])
    return statistics.median(found[1:])


def bench_training(scratch: Path) -> dict[str, float | str]:
    """train_vs_loop: our speed over the loop's; telemetry_cost: seconds with it over without."""
    project = tokenised(scratch / "project", "train.eval_steps=100000", "train.max_steps=100000")
    with params_of(project) as params:
        return {
            "train_vs_loop": ratios(bare_loop(params, STEPS), full_training(params, STEPS)),
            "telemetry_cost": ratios(full_training(params, STEPS), steps_alone(params, STEPS)),
        }


def keep_base_model() -> str:
    """Fetch SmolLM2 into the store; returns why it could not be, or nothing."""
    fetched = subprocess.run(
        [sys.executable, "-m", "stages.demo.smollm2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if not fetched.returncode:
        return ""
    return f"not_measured: {fetched.stdout.strip() or fetched.stderr.strip()}"


def bench_base_model(scratch: Path) -> dict[str, float | str]:
    """On SmolLM2-135M with LoRA.

    train_vs_trl: our tokens a second over SFTTrainer's; gates_vs_bare: seconds of gates 2 and 3
    over those of 35 plain steps on the rows of gate 2, taken twice.
    """
    if missing := keep_base_model():
        return {"train_vs_trl": missing, "gates_vs_bare": missing}
    project = tokenised(scratch / "project", *BASE_MODEL)
    with params_of(project) as params:
        found = [one_pair(params, scratch) for _ in range(3)]
    shortened = (*BASE_MODEL, "data.validation_fraction=0.2")
    short = tokenised(scratch / "short", *shortened, short_rows=SHORT_ROWS)
    return {"train_vs_trl": statistics.median(found), "gates_vs_bare": gates_over_bare(short)}


def gates_over_bare(project: Project) -> float:
    with params_of(project, "overfit_gate") as params:
        bare = sum(bare_seconds(params) for _ in range(2))
    began = time.perf_counter()
    project.repro("--force", "--single-item", "overfit_gate", "gradient_probe")
    return (time.perf_counter() - began) / bare


def bare_seconds(params: Params) -> float:
    """Seconds of gate 2's full number of steps, as transformers and PEFT alone take them."""
    directory = find_base_model(str(params.model.tokenizer), "model").directory
    base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    lora = LoraConfig(**LORA, task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=params.gates.overfit.learning_rate
    )
    store, meta = TokenStore("train"), read_meta()
    rows = choose_rows(store, params.gates.overfit.num_samples, params.run.seed)
    batch = collate([store[row] for row in rows], meta.pad_token_id)
    began = time.perf_counter()
    for _ in range(params.gates.overfit.max_steps):
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), params.train.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - began


def one_pair(params: Params, scratch: Path) -> float:
    """TRL's seconds over ours for the same steps."""
    ours = full_training(params, 1)
    run = start_run(params)
    rows = [
        {"input_ids": row.input_ids.tolist(), "labels": row.labels.tolist()}
        for step in range(BASE_STEPS + 1)
        for row in run.batches.rows_of_step(step)
    ]
    ours()
    began = time.perf_counter()
    for _ in range(BASE_STEPS):
        ours()
    seconds = time.perf_counter() - began
    return trl_training_seconds(params, rows, scratch) / seconds


def trl_training_seconds(params: Params, rows: list[dict[str, Any]], scratch: Path) -> float:
    model, train = params.model, params.train
    settings = {
        "model": str(find_base_model(str(model.tokenizer), "model").directory),
        "lora": LORA,
        "batch": train.per_device_train_batch_size,
        "accumulate": train.gradient_accumulation_steps,
        "steps": BASE_STEPS + 1,
        "learning_rate": train.learning_rate,
        "threads": params.run.cpu_threads,
    }
    (scratch / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    (scratch / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    script = Path(__file__).parent / "trl_training_side.py"
    done = subprocess.run(
        [sys.executable, str(script), str(scratch / "settings.json"), str(scratch / "rows.json")],
        env={**os.environ, "PYTHONPATH": str(trl_packages())},
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("SECONDS "):
            return float(line.split()[1])
    raise RuntimeError(f"TRL's training failed:\n{done.stderr[-2000:]}")
