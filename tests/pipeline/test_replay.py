"""A training step that goes wrong leaves what it takes to take it again, to the bit."""

from pathlib import Path

import pytest

from stages.chat.token_store import TokenStore
from stages.training.order import BatchOrder

from ..project import Project

STEPS, SAVE_STEPS, SPOILED = 12, 3, 7
ROWS_PER_STEP = 16
MODEL = """
import torch
from torch import nn
from stages.models.tiny_gpt import CausalLMOutput, TinyGPT

class Guard(nn.Module):
    def forward(self, logits, spoiled):
        return logits.masked_fill(spoiled[:, None, None], torch.nan)

class Spoiled(TinyGPT):
    def __init__(self, vocab_size, trigger):
        super().__init__(vocab_size)
        self.guard, self.trigger = Guard(), trigger

    def forward(self, input_ids, **inputs):
        logits = super().forward(input_ids, **inputs).logits
        spoiled = (input_ids * inputs["attention_mask"]).sum(1) == self.trigger
        return CausalLMOutput(self.guard(logits, spoiled))

def model(vocab_size, trigger):
    return Spoiled(vocab_size, trigger)
"""


@pytest.fixture(scope="module")
def spoiled(fresh_template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose model breaks on one row, which step 7 is the first to see."""
    project = fresh_template.copy(tmp_path_factory.mktemp("spoiled") / "project")
    project.plug_in(MODEL)
    project.repro("mask_report")
    store = TokenStore("train", project.path / "artifacts/tokens")
    sums = [int(row.input_ids.sum()) for row in store]
    rows = BatchOrder(len(store), ROWS_PER_STEP, 42).indices(SPOILED)
    row = next(row for row in rows if sums.count(sums[row]) == 1)
    project.write("spoiled_row", store[row].source)
    project.set_params(
        train__max_steps=STEPS,
        train__save_steps=SAVE_STEPS,
        model={
            "_target_": "stages.plugins.mine.model",
            "name": "mine",
            "tokenizer": "data/tokenizer",
            "frozen": [],
            "trigger": sums[row],
        },
    )
    project.repro("manifest")
    return project


@pytest.mark.slow
def test_a_step_that_breaks_is_kept_and_replayed_to_the_bit(
    spoiled: Project, tmp_path: Path
) -> None:
    project = spoiled.copy(tmp_path / "project")
    nothing = project.holdshort("replay")
    assert nothing.returncode == 2
    assert "holds no incident" in nothing.stdout

    output = project.repro(code=255)
    assert f"training stopped at step {SPOILED}: the loss is nan" in output
    assert not project.exists("models/final")
    [directory] = (project.path / "anomalies").glob("*/*")
    incident = directory.relative_to(project.path)
    assert directory.name == f"step-{SPOILED}"
    assert project.read("spoiled_row") in project.json(f"{incident}/incident.json")["rows"]
    assert "anomalies" not in project.git("status", "--porcelain")

    replayed = project.holdshort("replay")
    assert replayed.returncode == 0, replayed.stdout
    where = f"guard (Guard), forward, {project.read('spoiled_row')}"
    assert f"not finite, from finite numbers: {where}" in replayed.stdout
    assert "the bits of the record" in replayed.stdout
    assert project.holdshort("replay", str(incident)).stdout == replayed.stdout

    project.set_params(train__learning_rate=0.001)
    other = project.holdshort("replay")
    assert (other.returncode, "Traceback" in other.stdout) == (1, False)


@pytest.mark.matrix
def test_a_step_that_breaks_can_be_skipped(spoiled: Project, tmp_path: Path) -> None:
    project = spoiled.copy(tmp_path / "project")
    project.set_params(train__on_anomaly="skip")
    output = project.repro()
    assert f"step {SPOILED}: the loss is nan; skipped" in output
    assert project.json("metrics/full_train.json")["full_train"]["anomalies"] == 1
    assert project.exists("models/final/model.safetensors")
    assert "the loss is nan" in project.read("reports/full_train/index.html")
