"""What a model really takes: what autograd saves, and the most that torch's allocator holds."""

from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from stages.config import Params
from stages.config.schema import HubModel, Lora, TinyGPTModel
from stages.estimate.architecture import architecture_of, tiny_architecture
from stages.estimate.memory import Parameters, estimate_memory
from stages.models.build import build_model, count_parameters, prepare_for_training
from stages.models.hub import add_adapter
from stages.training.setup import build_trainer, make_autocast

from ..settings import make_params

CPU = torch.device("cpu")
VOCABULARY = 199
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 160,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
LORA = Lora(4, 8, 0.0, "all-linear", [], False, False)


def tiny(**values: Any) -> Params:
    """TinyGPT with a batch of 4 rows of 64 tokens."""
    return make_params(
        model__d_model=32, model__n_layers=3, train__per_device_train_batch_size=4, **values
    )


def hub(
    adapter: str = "none", dtype: str = "float32", attention: str = "sdpa", **values: Any
) -> Params:
    """A model of transformers with a batch of 4 rows of 64 tokens."""
    params = make_params(train__per_device_train_batch_size=4, **values)
    model: Any = {"dtype": dtype, "attn_implementation": attention, "adapter": adapter}
    model |= {"name": "hub", "tokenizer": "data/tokenizer", "frozen": [], "lora": LORA}
    model |= {"name_or_path": "small", "revision": "0" * 40, "gguf_file": None}
    model |= {"trust_remote_code": False, "allow_pickle": False, "save_merged": False}
    return Params(**{**vars(params), "model": HubModel(**model)})


def built(params: Params, config: dict[str, Any]) -> nn.Module:
    """The model that params describe, with random weights on the CPU, as it is trained."""
    torch.manual_seed(0)
    model = params.model
    if not isinstance(model, HubModel):
        return prepare_for_training(build_model(model, VOCABULARY, CPU), params.train)
    from transformers import AutoConfig, AutoModelForCausalLM

    described = AutoConfig.for_model(**config, use_cache=False)
    base = AutoModelForCausalLM.from_config(
        described, dtype=getattr(torch, model.dtype), attn_implementation=model.attn_implementation
    )
    whole = base if model.adapter == "none" else add_adapter(base, model)
    return prepare_for_training(whole.train(), params.train)


def batch(params: Params) -> dict[str, torch.Tensor]:
    """As many rows of data.max_length tokens as train says, one of them padded."""
    shape = (params.train.per_device_train_batch_size, params.data.max_length)
    mask = torch.ones(shape, dtype=torch.long)
    mask[0, -3:] = 0
    ids = torch.randint(0, VOCABULARY, shape)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


def estimated(params: Params, config: dict[str, Any]) -> dict[str, int]:
    """What the estimate says of the same model."""
    if isinstance(params.model, TinyGPTModel):
        architecture = tiny_architecture(params.model, VOCABULARY)
    else:
        architecture = architecture_of(config, "small")
    counted = count_parameters(built(params, config))
    parameters = Parameters(counted["parameters"], counted["trainable_parameters"])
    return estimate_memory(params, parameters, architecture)


def saved_bytes(params: Params, config: dict[str, Any]) -> int:
    """Bytes that autograd saves up to the logits, parameters and buffers left out."""
    model = built(params, config)
    owned = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in owned:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    inputs = {name: tensor for name, tensor in batch(params).items() if name != "labels"}
    saving = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with saving, make_autocast(params.run)():
        logits = model(**inputs).logits  # noqa: F841  keeps the graph
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def state_bytes(params: Params, config: dict[str, Any]) -> dict[str, int]:
    """Bytes of weights, adapters, gradients and optimizer state after a real step."""
    model = built(params, config)
    trainer = build_trainer(params, model, 4)
    found = {}

    def watch(*_: Any) -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found["gradients"] = sum(one.nbytes for one in gradients)

    trainer.optimizer.register_step_pre_hook(watch)
    trainer.step([batch(params)])
    moments = [
        value
        for state in trainer.optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    ]
    adapters = [p.nbytes for n, p in model.named_parameters() if ".lora_" in n]
    found["weights"] = sum(p.nbytes for p in model.parameters()) - sum(adapters)
    return found | {"adapters": sum(adapters), "optimizer": sum(one.nbytes for one in moments)}


def peak_bytes(params: Params, config: dict[str, Any]) -> int:
    """The most bytes that are allocated at once in the second step, what it begins with included.

    Counted by torch's own allocator, as the profiler reports it.
    """
    model = built(params, config)
    trainer = build_trainer(params, model, 4)
    micro_batches: list[Any] = [batch(params), batch(params)]
    trainer.step(micro_batches)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        trainer.step(micro_batches)
    changes: list[int] = [
        event.nbytes()
        for event in watched.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    now = most = 0
    for change in changes:
        now += change
        most = max(most, now)
    state = [v for one in trainer.optimizer.state.values() for v in one.values()]
    held: int = sum(one.nbytes for one in (*model.parameters(), *state))
    return most + held
