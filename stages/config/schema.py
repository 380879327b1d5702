"""Every key of params.yaml with its type and its bounds.

Values come from conf/; there are no defaults here, so that params.yaml is the whole truth of a run.
Names are those of transformers' TrainingArguments where it has one.
"""

import datetime
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

Fraction = Annotated[float, Meta(ge=0, le=1)]
OpenFraction = Annotated[float, Meta(ge=0, lt=1)]
NonNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Path = Annotated[str, Meta(min_length=1)]
Hook = dict[str, Any] | None
"""User code: `_target_` names a callable, the other keys are its arguments (see stages/plugins)."""


@dataclass(frozen=True)
class Data:
    path: Path
    validation_path: Path | None
    validation_fraction: Annotated[float, Meta(gt=0, lt=1)]
    split_seed: Seed
    sha256: Sha256 | None
    dialect: Literal["auto", "openai", "sharegpt", "alpaca", "prompt_completion"]
    on_bad_row: Literal["stop", "report"]
    max_length: Annotated[int, Meta(ge=2)]
    truncation: Literal["drop", "keep_start"]
    collator: Hook


@dataclass(frozen=True)
class TinyGPTModel:
    name: Literal["tiny_gpt"]
    tokenizer: Path
    frozen: list[str]
    d_model: Count
    n_layers: Count
    n_heads: Count
    max_length: Annotated[int, Meta(ge=2)]
    local_window: Natural
    dropout: OpenFraction
    tie_word_embeddings: bool

    def __post_init__(self) -> None:
        _refuse_odd_heads(self.d_model, self.n_heads)


@dataclass(frozen=True)
class TinyLoRAModel:
    name: Literal["tiny_lora"]
    tokenizer: Path
    frozen: list[str]
    d_model: Count
    n_layers: Count
    n_heads: Count
    max_length: Annotated[int, Meta(ge=2)]
    r: Count
    lora_alpha: Positive

    def __post_init__(self) -> None:
        _refuse_odd_heads(self.d_model, self.n_heads)


def _refuse_odd_heads(d_model: int, n_heads: int) -> None:
    if d_model % (2 * n_heads):
        raise ValueError(
            f"model.d_model ({d_model}) must be a multiple of twice model.n_heads "
            f"({n_heads}): each head rotates pairs of features"
        )


@dataclass(frozen=True)
class Lora:
    """Keys of PEFT's LoraConfig. target_modules: names, or all-linear."""

    r: Count
    lora_alpha: Positive
    lora_dropout: OpenFraction
    target_modules: str | list[str]
    modules_to_save: list[str]
    use_rslora: bool
    use_dora: bool


@dataclass(frozen=True)
class HubModel:
    """A causal language model that transformers loads, with or without an adapter."""

    name: Literal["hub"]
    tokenizer: Path
    frozen: list[str]
    name_or_path: Path
    revision: str | None
    gguf_file: Path | None
    dtype: Literal["float32", "bfloat16", "float16"]
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"]
    trust_remote_code: bool
    allow_pickle: bool
    adapter: Literal["none", "lora", "qlora"]
    lora: Lora
    save_merged: bool

    def __post_init__(self) -> None:
        if self.adapter == "none" and self.save_merged:
            raise ValueError("model.save_merged needs an adapter; model.adapter is none")
        if self.adapter != "none" and self.frozen:
            raise ValueError(
                f"model.frozen names {self.frozen[0]!r}, but with model.adapter "
                f"{self.adapter!r} the whole base model is frozen; empty it"
            )

    @property
    def reference(self) -> str:
        """`name@revision`."""
        return f"{self.name_or_path}@{self.revision}"


@dataclass(frozen=True)
class CustomModel:
    """A model that user code builds: `_target_(vocab_size=..., **arguments)`."""

    name: str
    tokenizer: Path
    frozen: list[str]
    target: Path
    arguments: dict[str, Any]


Model = TinyGPTModel | TinyLoRAModel | HubModel | CustomModel


@dataclass(frozen=True)
class Labels:
    turns: Literal["all", "last"]
    supervise: Annotated[
        list[Literal["content", "reasoning", "tool_call", "scaffold"]], Meta(min_length=1)
    ]
    straddling: Literal["supervise", "mask"]
    template_date: Annotated[str, Meta(pattern=r"\A\d{4}-\d{2}-\d{2}\Z")]

    def __post_init__(self) -> None:
        try:
            datetime.date.fromisoformat(self.template_date)
        except ValueError as error:
            raise ValueError(f"labels.template_date ({self.template_date}): {error}") from None


@dataclass(frozen=True)
class DataGate:
    max_unreadable: Natural
    max_empty_answers: Natural
    max_split_overlap: Natural
    max_duplicate_fraction: Fraction
    max_conflicting_fraction: Fraction
    max_near_duplicate_fraction: Fraction
    near_duplicate_similarity: Fraction
    max_ngram_leakage: Natural
    leaked_ngram_share: Fraction
    max_placeholder_fraction: Fraction
    max_broken_off_fraction: Fraction
    max_damaged_fraction: Fraction
    max_script_outlier_fraction: Fraction
    rare_script_share: Fraction
    min_train_rows: Count
    min_validation_rows: Count


@dataclass(frozen=True)
class MaskGate:
    max_dropped_fraction: Fraction
    max_truncated_fraction: Fraction
    report_rows: Count
    print_rows: Natural


@dataclass(frozen=True)
class OverfitGate:
    num_samples: Count
    max_steps: Count
    max_loss: Positive
    learning_rate: Positive
    max_initial_loss_error: Positive
    max_pretrained_loss_share: Positive
    max_loss_error: Positive
    max_blanked_ratio: Positive


@dataclass(frozen=True)
class GradientGate:
    steps: Annotated[int, Meta(ge=2)]
    min_norm: Positive
    max_norm: Positive
    vanishing_norm: Positive
    exploding_norm: Positive
    min_update_ratio: Positive
    max_update_ratio: Positive
    max_pretrained_update_ratio: Positive
    max_learning_rate_error: Positive
    max_clip_ratio: Positive
    max_clip_excess: Positive
    max_dead_fraction: Fraction
    max_saturated_fraction: Fraction
    max_target_weight_error: Positive
    min_changed_fraction: Fraction
    max_epsilon_share: Positive
    max_decay_per_step: Positive
    max_dropout: Fraction

    def __post_init__(self) -> None:
        for low, high in (("min_norm", "max_norm"), ("min_update_ratio", "max_update_ratio")):
            if getattr(self, low) >= getattr(self, high):
                raise ValueError(
                    f"gates.gradient.{low} ({getattr(self, low)}) must be below "
                    f"gates.gradient.{high} ({getattr(self, high)})"
                )


@dataclass(frozen=True)
class Gates:
    data: DataGate
    mask: MaskGate
    overfit: OverfitGate
    gradient: GradientGate


Optim = Literal["adamw_torch", "adamw_bnb_8bit", "paged_adamw_8bit"]


@dataclass(frozen=True)
class Optimizer:
    adam_beta1: OpenFraction
    adam_beta2: OpenFraction
    adam_epsilon: Positive

    def __post_init__(self) -> None:
        if self.adam_beta1 > self.adam_beta2:
            raise ValueError(
                f"train.optimizer.adam_beta1 ({self.adam_beta1}) is above adam_beta2 "
                f"({self.adam_beta2}); swap them: the second moment is the slower average"
            )


@dataclass(frozen=True)
class Checkpointing:
    use_reentrant: bool


@dataclass(frozen=True)
class Train:
    learning_rate: Positive
    lr_scheduler_type: Literal["cosine", "linear", "constant_with_warmup"]
    warmup_ratio: OpenFraction
    warmup_steps: Natural
    max_steps: Annotated[int, Meta(ge=-1)]
    num_train_epochs: Positive
    per_device_train_batch_size: Count
    per_device_eval_batch_size: Count
    max_tokens_per_batch: Count | None
    gradient_accumulation_steps: Count
    group_by_length: bool
    packing: bool
    num_processes: Count
    distributed: Literal["ddp", "fsdp2"]
    weight_decay: NonNegative
    max_grad_norm: Positive
    optim: Optim
    optimizer: Optimizer
    gradient_checkpointing: bool
    gradient_checkpointing_kwargs: Checkpointing
    save_steps: Count
    save_total_limit: Count
    eval_steps: Count
    eval_generations: Natural
    max_new_tokens: Count
    on_anomaly: Literal["stop", "warn", "skip"]
    step: Hook
    loss: Hook

    def __post_init__(self) -> None:
        if self.max_steps == 0:
            raise ValueError(
                "train.max_steps is 0; give a count >= 1, or -1 to use num_train_epochs"
            )
        if 0 < self.max_steps < self.warmup_steps:
            raise ValueError(
                f"train.warmup_steps ({self.warmup_steps}) is longer than the training "
                f"(train.max_steps is {self.max_steps}); lower it"
            )
        if self.on_anomaly == "skip" and self.step is not None:
            raise ValueError(
                "train.on_anomaly is skip, but a step of your own (train.step) applies its update "
                "before it tells its loss; use stop or warn"
            )
        if self.num_processes > 1 and self.step is not None:
            raise ValueError(
                f"train.num_processes is {self.num_processes}, but a step of your own (train.step) "
                "runs in one process only: it would not add up its tokens over all of them"
            )
        if self.num_processes > 1 and self.distributed == "fsdp2" and self.optim != "adamw_torch":
            raise ValueError(
                f"train.optim is {self.optim}, whose state cannot be sharded (train.distributed is "
                "fsdp2); use adamw_torch, or ddp"
            )
        reentrant = self.gradient_checkpointing_kwargs.use_reentrant
        if self.num_processes > 1 and self.gradient_checkpointing and reentrant:
            raise ValueError(
                f"train.num_processes is {self.num_processes}, which cannot go with reentrant "
                "checkpoints; set train.gradient_checkpointing_kwargs.use_reentrant to false"
            )


@dataclass(frozen=True)
class Run:
    seed: Seed
    device: Literal["cpu", "cuda"]
    hardware: Path | None
    precision: Literal["fp32", "bf16", "fp16"]
    cpu_threads: Count


@dataclass(frozen=True)
class Params:
    data: Data
    model: Model
    labels: Labels
    gates: Gates
    train: Train
    run: Run
