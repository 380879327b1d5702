"""In which runs can a fault be planted? The reason why not, or None."""

from ..config.schema import HubModel, Params, TinyLoRAModel
from ..models.build import is_pretrained
from .fault import Applies


def several_micro_batches(params: Params) -> str | None:
    train = params.train
    if train.gradient_accumulation_steps * train.num_processes > 1:
        return None
    return "a step has one micro-batch (train.gradient_accumulation_steps)"


def below_adapter(params: Params) -> str | None:
    if isinstance(params.model, HubModel) and params.model.adapter != "none":
        return None
    return "no transformers model is trained below an adapter"


def only_in(*precisions: str) -> Applies:
    """For faults of other precisions than float32."""

    def applies(params: Params) -> str | None:
        if params.run.precision in precisions:
            return None
        return f"run.precision is {params.run.precision}, not {' or '.join(precisions)}"

    return applies


def from_scratch(params: Params) -> str | None:
    if is_pretrained(params.model) or isinstance(params.model, TinyLoRAModel):
        return "the weights that decide the first loss do not train, or are pretrained"
    return None


def pretrained(params: Params) -> str | None:
    return None if is_pretrained(params.model) else "the model is not pretrained"


def adapted(params: Params) -> str | None:
    model = params.model
    if isinstance(model, TinyLoRAModel) or (
        isinstance(model, HubModel) and model.adapter != "none"
    ):
        return None
    return "the model has no adapter"


def not_adapted(params: Params) -> str | None:
    return None if adapted(params) else "only adapters train"


def drawn_by_the_seed(params: Params) -> str | None:
    return (
        "pretrained weights are the same under every seed" if is_pretrained(params.model) else None
    )


def packed(params: Params) -> str | None:
    return None if params.train.packing else "rows are not packed (train.packing)"


def two_rows(params: Params) -> str | None:
    train = params.train
    rows = train.per_device_train_batch_size * train.gradient_accumulation_steps
    return None if rows > 1 or train.num_processes > 1 else "a step has one row"
