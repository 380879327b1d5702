"""PreflightCallback in real transformers Trainers: healthy ones train, broken ones do not start."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from stages.config import Refusal
from stages.hf import PreflightCallback
from stages.probes.fingerprint import weights_sha256

from .benchmarks.preparing import trl_packages
from .conftest import ROOT
from .sanity.data import VOCAB, sentences
from .sanity.models import hugging_face


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Rows as a tokenizer makes them; `label` says what the labels of some ids are."""

    def __init__(self, masked: bool = False) -> None:
        self.ids, self.masked = sentences(64), masked

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index]
        labels = torch.full_like(ids, -100) if self.masked else ids.clone()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def make_trainer(directory: Path, rows: Any, model: nn.Module | None = None) -> Trainer:
    torch.manual_seed(0)
    settings = TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=8,
        max_steps=3,
        learning_rate=3e-3,
        warmup_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    return Trainer(model or hugging_face("llama", VOCAB), settings, train_dataset=rows)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield


def test_a_healthy_run_trains_as_without_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = make_trainer(tmp_path / "plain", Sentences())
    plain.train()
    checked = make_trainer(tmp_path / "checked", Sentences())
    callback = PreflightCallback(checked, steps=30, batches=4)
    checked.add_callback(callback)
    checked.train()
    assert callback.report is not None and callback.report.passed, callback.report
    assert "sanity check: PASS" in capsys.readouterr().out
    assert checked.state.global_step == 3
    assert weights_sha256(checked.model) == weights_sha256(plain.model)


def test_masked_labels_stop_the_run_before_its_first_step(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Sentences(masked=True))
    before = weights_sha256(trainer.model)
    trainer.add_callback(PreflightCallback(trainer, steps=10, batches=2))
    with pytest.raises(Refusal, match=r"all labels are masked with ignore_index \(-100\)"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert weights_sha256(trainer.model) == before


def test_control_can_stop_the_run_instead(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Sentences(masked=True))
    callback = PreflightCallback(on_failure="stop", steps=10, batches=2)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.report is not None and not callback.report.passed
    assert trainer.state.global_step <= 1


@pytest.mark.slow
def test_a_loss_of_the_trainers_own_is_the_one_examined(tmp_path: Path) -> None:
    class Summed(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            logits = model(input_ids=inputs["input_ids"]).logits
            return nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten(), reduction="sum"
            )

    healthy = make_trainer(tmp_path, Sentences())
    trainer = Summed(healthy.model, healthy.args, train_dataset=Sentences())
    callback = PreflightCallback(trainer, on_failure="stop", steps=10, batches=2)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.report is not None
    assert "loss_summed" in callback.report.failed


TRL_RUN = """
import sys, tempfile, torch
from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer
from stages.hf import PreflightCallback

tokenizer = AutoTokenizer.from_pretrained("data/tokenizer")
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=256,
))
if sys.argv[1] == "broken":
    model.lm_head.weight.data.normal_(std=2.0)
topics = ["disk", "node", "link", "rack", "pump", "fan", "bus", "core"]
rows = [{"messages": [
    {"role": "user", "content": f"what of {topic} {number}?"},
    {"role": "assistant", "content": f"the {topic} {number * 7 % 10} is slow, restart it"},
]} for number in range(8) for topic in topics]
with tempfile.TemporaryDirectory() as scratch:
    settings = SFTConfig(
        output_dir=scratch, max_steps=2, per_device_train_batch_size=8, learning_rate=1e-3,
        use_cpu=True, bf16=False, report_to=[], max_length=128, save_strategy="no",
    )
    trainer = SFTTrainer(
        model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.add_callback(PreflightCallback(trainer, steps=60))
    trainer.train()
    print("STEPS", trainer.state.global_step)
"""


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "trains"), [("healthy", True), ("broken", False)])
def test_it_holds_trls_trainer_too(kind: str, trains: bool) -> None:
    packages = f"{trl_packages()}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-c", TRL_RUN, kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": packages},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("STEPS 2" in done.stdout) == trains, done.stdout + done.stderr
    assert ("the sanity check failed before the first step" in done.stderr) != trains
