"""Does the run fit, how long does it take and what does it cost? All numbers put together."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..config import Params
from ..config.schema import HubModel
from ..training.order import micro_batches_per_step, tokens_per_micro_batch
from .architecture import Architecture
from .flops import training_flops
from .hardware import GIB, Hardware, read_hardware
from .memory import KINDS, Parameters, estimate_memory, has_adapter

SCHEMA = 1
ASSUMPTION = (
    "every micro-batch is counted as full, with rows of data.max_length tokens or with "
    "train.max_tokens_per_batch: real ones cost less"
)


@dataclass(frozen=True)
class Budget:
    """What a run needs. memory: bytes at the peak by kind; flops, hours and usd of the training
    steps alone; None where the architecture or the hardware is not known."""

    parameters: Parameters
    memory: Mapping[str, int]
    steps: int
    tokens: int
    flops: float | None
    hardware_name: str | None
    hardware: Hardware | None
    hours: float | None
    usd: float | None

    @property
    def peak(self) -> int:
        """Bytes."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """True also where no hardware is named."""
        return self.hardware is None or self.peak <= self.hardware.usable_bytes

    def record(self) -> dict[str, Any]:
        """For JSON: the same on every machine, as no measured number is in it."""
        return {
            "parameters": self.parameters.total,
            "trainable_parameters": self.parameters.trainable,
            "memory_bytes": {**self.memory, "peak": self.peak},
            "not_estimated": [kind for kind in KINDS if kind not in self.memory],
            "steps": self.steps,
            "tokens_at_most": self.tokens,
            "flops_at_most": self.flops,
            "hardware": self.hardware_name,
            "hardware_facts": asdict(self.hardware) if self.hardware else None,
            "hours_at_most": _rounded(self.hours),
            "usd_at_most": _rounded(self.usd),
            "fits": self.fits if self.hardware else None,
        }


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")


def make_budget(
    params: Params, parameters: Parameters, architecture: Architecture | None, steps: int
) -> Budget:
    """The budget of `steps` optimizer steps. Raises UserError for unknown hardware."""
    train, name = params.train, params.run.hardware
    micro_batches = steps * micro_batches_per_step(train)
    tokens = micro_batches * tokens_per_micro_batch(train, params.data.max_length)
    hardware = read_hardware(name) if name else None
    flops = training_flops(params, parameters, architecture, tokens) if architecture else None
    hours = None
    if flops is not None and hardware:
        peak = getattr(hardware.tflops, params.run.precision) * 1e12
        hours = flops / (peak * hardware.mfu) / 3600 / train.num_processes
    return Budget(
        parameters=parameters,
        memory=estimate_memory(params, parameters, architecture),
        steps=steps,
        tokens=tokens,
        flops=flops,
        hardware_name=name,
        hardware=hardware,
        hours=hours,
        usd=hours * train.num_processes * hardware.usd_per_hour
        if hours is not None and hardware
        else None,
    )


def table_of(budget: Budget) -> list[tuple[str, str]]:
    """(what, how much) for a reader, in the order of the spending."""
    share = budget.parameters.trainable / max(budget.parameters.total, 1)
    rows = [
        ("parameters", f"{budget.parameters.total:,}"),
        ("trainable parameters", f"{budget.parameters.trainable:,} ({share:.3%})"),
    ]
    for kind in KINDS:
        here = kind in budget.memory
        rows.append((f"memory: {kind}", _gib(budget.memory[kind]) if here else "not estimated"))
    rows += [
        ("memory: at the peak", _gib(budget.peak)),
        ("optimizer steps", f"{budget.steps:,}"),
        ("tokens, at most", f"{budget.tokens:,}"),
        ("FLOPs, at most", "not estimated" if budget.flops is None else f"{budget.flops:.3g}"),
    ]
    if budget.hardware is None:
        return [*rows, ("hours and cost", "run.hardware names no machine")]
    room = f"{budget.hardware.memory_gib:g} GiB, {budget.hardware.usable_share:.0%} counted on"
    rows.append((f"{budget.hardware_name}", room))
    if budget.hours is not None and budget.usd is not None:
        rows.append(("hours, at most", f"{budget.hours:.3g} at {budget.hardware.mfu:.0%} of peak"))
        rows.append(("cost, at most", f"{budget.usd:.2f} USD"))
    return rows


def _gib(count: int) -> str:
    return f"{count / GIB:,.3f} GiB"


def too_large(budget: Budget, params: Params) -> str:
    """One sentence for a run that does not fit: the largest part, and what to lower."""
    assert budget.hardware is not None
    kind = max(budget.memory, key=budget.memory.__getitem__)
    return (
        f"the run needs {_gib(budget.peak)} at its peak, but {budget.hardware_name} has "
        f"{budget.hardware.memory_gib:g} GiB, of which {_gib(budget.hardware.usable_bytes)} are "
        f"counted on; the largest part is {kind} ({_gib(budget.memory[kind])}): "
        f"{_remedy(kind, params)}"
    )


def _remedy(kind: str, params: Params) -> str:
    model = params.model
    if kind == "weights" and isinstance(model, HubModel) and model.adapter != "qlora":
        half = "" if model.dtype != "float32" else "model.dtype=bfloat16 or "
        return f"set {half}model.adapter=qlora, or take a smaller model"
    if kind == "weights":
        return "take a smaller model"
    if kind in ("adapters", "gradients", "optimizer"):
        if has_adapter(model):
            return "lower model.lora.r, or name fewer model.lora.target_modules"
        if isinstance(model, HubModel):
            return "train an adapter (model.adapter=lora) or a smaller model"
        return "take a smaller model"
    by_tokens = params.train.max_tokens_per_batch
    size = "max_tokens_per_batch" if by_tokens else "per_device_train_batch_size"
    shorter = f"lower train.{size} (and raise train.gradient_accumulation_steps)"
    shorter += " or data.max_length"
    can_checkpoint = isinstance(model, HubModel) and not params.train.gradient_checkpointing
    if kind == "activations" and can_checkpoint:
        return f"set train.gradient_checkpointing=true, or {shorter}"
    return shorter


def adapter_training_config(
    params: Params, budget: Budget, *, weights_sha256: str | None
) -> dict[str, Any]:
    """What is trained on top of what, and how: the run as others would set it up again.

    weights_sha256: of the base model's files, where they were hashed. Without an adapter `adapter`
    is null, and all weights are trained.
    """
    model, train, run = params.model, params.train, params.run
    hub = model if isinstance(model, HubModel) else None
    return {
        "schema": SCHEMA,
        "base_model": {
            "name": hub.name_or_path if hub else model.name,
            "revision": hub.revision if hub else None,
            "dtype": hub.dtype if hub else "float32",
            "quantisation": "nf4, double" if hub and hub.adapter == "qlora" else None,
            "weights_sha256": weights_sha256,
        },
        "adapter": {"peft_type": "LORA", "task_type": "CAUSAL_LM", **asdict(hub.lora)}
        if hub and hub.adapter != "none"
        else None,
        "parameters": budget.parameters.total,
        "trainable_parameters": budget.parameters.trainable,
        "training": {
            "learning_rate": train.learning_rate,
            "lr_scheduler_type": train.lr_scheduler_type,
            "warmup_ratio": train.warmup_ratio,
            "warmup_steps": train.warmup_steps,
            "steps": budget.steps,
            "per_device_train_batch_size": train.per_device_train_batch_size,
            "max_tokens_per_batch": train.max_tokens_per_batch,
            "gradient_accumulation_steps": train.gradient_accumulation_steps,
            "group_by_length": train.group_by_length,
            "packing": train.packing,
            "num_processes": train.num_processes,
            "max_length": params.data.max_length,
            "weight_decay": train.weight_decay,
            "max_grad_norm": train.max_grad_norm,
            "optim": train.optim,
            "optimizer": asdict(train.optimizer),
            "gradient_checkpointing": train.gradient_checkpointing,
            "precision": run.precision,
            "seed": run.seed,
        },
        "budget": budget.record(),
    }
