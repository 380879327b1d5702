"""Full training calls a model as its gates do, from the first step to the model that is written."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages import full_train
from stages.chat.token_store import TOKENS
from stages.training import setup

from .parts import Bigram, Output, make_rows, pinned_process, write_store
from .settings import ROOT, make_params


class Demanding(Bigram):
    """A model that cannot be called without an attention mask."""

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None = None,
    ) -> Output:
        assert attention_mask is not None
        assert attention_mask.shape == input_ids.shape
        return super().forward(input_ids)


def test_a_model_that_demands_an_attention_mask_is_trained_evaluated_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup, "build_model", lambda *_: Demanding().train())
    monkeypatch.setattr(full_train, "authorise_here", lambda params: "0" * 64)
    Path("clearance.json").write_text("{}")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    Path("metrics").mkdir()
    baselines = {"majority_exact_match": 0.0, "keyword_exact_match": 0.0}
    Path("metrics/hash_data.json").write_text(json.dumps({"hash_data": baselines}))
    for split in ("train", "validation"):
        write_store(TOKENS, split, make_rows(12))
    params = make_params(
        model__tokenizer=str(ROOT / "data/tokenizer"),
        train__max_steps=6,
        train__eval_generations=3,
        train__max_new_tokens=4,
    )
    with pinned_process():
        full_train.main(params)
    found = json.loads(Path("metrics/full_train.json").read_text())["full_train"]
    assert found["validation_loss"] < found["untrained_validation_loss"]
    assert found["answers"] == 3
    assert set(load_file("models/final/model.safetensors")) == set(Bigram().state_dict())
