"""PreflightCallback in real transformers Trainers: healthy ones train, broken ones do not start."""

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
    callback = PreflightCallback(checked, steps=40)
    checked.add_callback(callback)
    checked.train()
    assert callback.report is not None and callback.report.passed, callback.report
    assert "sanity check: PASS" in capsys.readouterr().out
    assert checked.state.global_step == 3
    assert weights_sha256(checked.model) == weights_sha256(plain.model)


def test_masked_labels_stop_the_run_before_its_first_step(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Sentences(masked=True))
    before = weights_sha256(trainer.model)
    trainer.add_callback(PreflightCallback(trainer, steps=20))
    with pytest.raises(Refusal, match=r"all labels are masked with ignore_index \(-100\)"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert weights_sha256(trainer.model) == before


def test_control_can_stop_the_run_instead(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Sentences(masked=True))
    callback = PreflightCallback(on_failure="stop", steps=20)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.report is not None and not callback.report.passed
    assert trainer.state.global_step <= 1


def test_a_loss_of_the_trainers_own_is_the_one_examined(tmp_path: Path) -> None:
    class Summed(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            logits = model(input_ids=inputs["input_ids"]).logits
            return nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten(), reduction="sum"
            )

    healthy = make_trainer(tmp_path, Sentences())
    trainer = Summed(healthy.model, healthy.args, train_dataset=Sentences())
    callback = PreflightCallback(trainer, on_failure="stop", steps=20)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.report is not None
    assert "loss_summed" in callback.report.failed
