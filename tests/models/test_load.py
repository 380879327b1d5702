"""What was saved comes back into the model that the run builds; other files are refused by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.config import UserError
from stages.config.schema import TinyGPTModel
from stages.models.build import build_model
from stages.models.load import ADAPTER, load_trained
from stages.models.save import write_plain

from ..parts import VOCABULARY, pinned_process
from ..settings import make_params

CPU = torch.device("cpu")


def tiny(**values: object) -> TinyGPTModel:
    model = make_params(model__d_model=32, **{f"model__{k}": v for k, v in values.items()}).model
    assert isinstance(model, TinyGPTModel)
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_weights_come_back_to_the_bit(tmp_path: Path, tied: bool) -> None:
    params = tiny(tie_word_embeddings=tied)
    with pinned_process():
        trained, other = (build_model(params, VOCABULARY, CPU) for _ in range(2))
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(torch.randn_like(parameter))
    write_plain(tmp_path, trained, {})
    load_trained(other, tmp_path, params)
    for name, tensor in trained.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_another_shape_another_name_and_a_lack_are_refused(tmp_path: Path) -> None:
    params = tiny()
    with pinned_process():
        model = build_model(params, VOCABULARY, CPU)
    write_plain(tmp_path, model, {})
    weights = tmp_path / "model.safetensors"
    whole = load_file(weights)
    for change, told in (
        ({"lm_head.weight": torch.zeros(3, 3)}, "holds another model"),
        ({"stranger": torch.zeros(1)}, "stranger is unknown"),
    ):
        save_file({**whole, **change}, weights)
        with pytest.raises(UserError, match=told):
            load_trained(model, tmp_path, params)
    save_file({name: t for name, t in whole.items() if name != "lm_head.weight"}, weights)
    with pytest.raises(UserError, match=r"lm_head\.weight is missing"):
        load_trained(model, tmp_path, params)


@pytest.mark.parametrize("content", [b"", b"\x00" * 40])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    params = tiny()
    with pinned_process():
        model = build_model(params, VOCABULARY, CPU)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors: not readable"):
        load_trained(model, tmp_path, params)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    params = tiny()
    with pinned_process():
        model = build_model(params, VOCABULARY, CPU)
    with pytest.raises(UserError, match="is missing"):
        load_trained(model, tmp_path, params)


def test_an_adapter_comes_back_over_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .llama import hub_params, keep_llama

    monkeypatch.setenv("HOLDSHORT_MODELS", str(tmp_path / "store"))
    params = hub_params(keep_llama(tmp_path)).model
    with pinned_process():
        trained, other = (build_model(params, 2048, CPU) for _ in range(2))
    adapter = {n: p for n, p in trained.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for parameter in adapter.values():
            parameter.add_(torch.randn_like(parameter))
    trained.save_pretrained(str(tmp_path / "saved"))  # type: ignore[operator]
    load_trained(other, tmp_path / "saved", params)
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, trained.get_parameter(name)), name
    saved = load_file(tmp_path / "saved" / ADAPTER)
    save_file(dict(list(saved.items())[1:]), tmp_path / "saved" / ADAPTER)
    with pytest.raises(UserError, match="is missing"):
        load_trained(other, tmp_path / "saved", params)
