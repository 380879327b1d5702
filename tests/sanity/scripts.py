"""Whole training scripts, healthy as they stand; a fault changes one part of one of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from stages.sanity import SanityReport, sanity_check

from . import data, models

STEPS = 60
Step = Callable[[nn.Module, Any, Optimizer], Any]


@dataclass
class Script:
    """The parts of a training script. `run` puts them together and has them checked.

    A fault may change any of them before that.
    """

    model: Any
    train: Any
    val: Any
    loss_fn: Any
    task: str
    dicts: bool = False
    batch_size: int = 32
    optimizer: str = "adamw"
    rate: float = 1e-3
    settings: dict[str, Any] = field(default_factory=dict)
    clip: float | None = None
    schedule: Callable[[Optimizer], Any] | None = None
    micro_batches: int = 1
    precision: torch.dtype | None = None
    prepare: Callable[[Any], Any] = lambda batch: batch
    prepare_eval: Callable[[Any], Any] = lambda batch: batch
    make_optimizer: Callable[["Script"], Optimizer] | None = None
    make_step: Callable[["Script", Any], Step] | None = None
    make_eval: Callable[["Script"], Callable[[nn.Module, Any], float]] | None = None
    loader: Any = None
    val_loader: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    scaler: Any = None

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if self.dicts:
            return model(**batch).loss
        return self.loss_fn(model(batch[0]), batch[1])


def batches_of(rows: Any, size: int) -> list[Any]:
    if isinstance(rows, dict):
        n = len(next(iter(rows.values())))
        return [{k: v[i : i + size] for k, v in rows.items()} for i in range(0, n, size)]
    return [tuple(part[i : i + size] for part in rows) for i in range(0, len(rows[0]), size)]


def rows_of(batch: Any) -> int:
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch[0])


def make_optimizer(script: Script) -> Optimizer:
    parameters = [p for p in script.model.parameters() if p.requires_grad]
    kinds: dict[str, Any] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
    }
    settings = {"momentum": 0.9} if script.optimizer == "sgd" else {}
    made: Optimizer = kinds[script.optimizer](
        parameters, lr=script.rate, **{**settings, **script.settings}
    )
    return made


def make_step(script: Script, schedule: Any) -> Step:
    """The usual training step: zero, forward, backward, clip, step, schedule."""

    def counted(batch: Any) -> int:
        labels = batch["labels"] if isinstance(batch, dict) else batch[1]
        return int((labels != -100).sum()) if not labels.is_floating_point() else labels.numel()

    def train_step(model: nn.Module, batch: Any, optimizer: Optimizer) -> torch.Tensor:
        model.train()
        batch = script.prepare(batch)
        optimizer.zero_grad()
        total = torch.zeros(())
        size = -(-rows_of(batch) // script.micro_batches)
        for micro in batches_of(batch, size):
            weight = counted(micro) / counted(batch)
            if script.precision is None:
                loss = script.loss(model, micro) * weight
            else:
                with torch.autocast("cpu", dtype=script.precision):
                    loss = script.loss(model, micro) * weight
            if script.scaler is not None:
                script.scaler.scale(loss).backward()
            else:
                loss.backward()
            total += loss.detach()
        if script.clip is not None:
            if script.scaler is not None:
                script.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), script.clip)
        if script.scaler is not None:
            script.scaler.step(optimizer)
            script.scaler.update()
        else:
            optimizer.step()
        if schedule is not None:
            schedule.step()
        return total

    return train_step


def make_eval(script: Script) -> Callable[[nn.Module, Any], float]:
    """Accuracy over all labels that count; the negative mean squared error for regression."""

    def evaluate(model: nn.Module, loader: Any) -> float:
        model.eval()
        right = total = 0.0
        with torch.no_grad():
            for batch in loader:
                batch = script.prepare_eval(batch)
                labels = batch["labels"] if isinstance(batch, dict) else batch[1]
                outputs = (
                    model(**{k: v for k, v in batch.items() if k != "labels"})
                    if isinstance(batch, dict)
                    else model(batch[0])
                )
                logits = getattr(outputs, "logits", outputs)
                if script.task == "regression":
                    right -= float((logits.reshape(labels.shape) - labels).square().sum())
                    total += labels.numel()
                    continue
                if script.task == "binary":
                    right += float(((logits.reshape(labels.shape) > 0) == (labels > 0.5)).sum())
                    total += labels.numel()
                    continue
                if script.task == "lm" and isinstance(batch, dict):
                    logits, labels = logits[:, :-1], labels[:, 1:]
                known = labels != -100
                right += float((logits.argmax(-1) == labels)[known].sum())
                total += float(known.sum())
        model.train()
        return right / total

    return evaluate


def run(script: Script) -> SanityReport:
    optimizer = (script.make_optimizer or make_optimizer)(script)
    schedule = script.schedule(optimizer) if script.schedule is not None else None
    step = (script.make_step or make_step)(script, schedule)
    evaluate = (script.make_eval or make_eval)(script)
    loader = (
        script.loader if script.loader is not None else batches_of(script.train, script.batch_size)
    )
    held_out = script.val_loader
    if held_out is None:
        held_out = batches_of(script.val, script.batch_size)
    settings = {"task": script.task, "steps": STEPS, **script.options}
    return sanity_check(
        script.model,
        loader,
        script.loss_fn,
        optimizer=optimizer,
        train_step=step,
        eval_fn=evaluate,
        val_loader=held_out,
        **settings,
    )


def tokens_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def of_points(**changes: Any) -> Script:
    script = Script(
        models.MLP(12, 4),
        data.points(384),
        data.points(100, seed=1),
        nn.CrossEntropyLoss(),
        "classification",
        options={"num_classes": 4},
    )
    return changed(script, changes)


def of_curve(**changes: Any) -> Script:
    script = Script(
        models.Squeezed(models.MLP(12, 1)),
        data.curve(384),
        data.curve(100, seed=1),
        nn.MSELoss(),
        "regression",
    )
    return changed(script, changes)


def of_signs(**changes: Any) -> Script:
    x, y = data.curve(384)
    xv, yv = data.curve(100, seed=1)
    script = Script(
        models.Squeezed(models.MLP(12, 1)),
        (x, (y > 0).float()),
        (xv, (yv > 0).float()),
        nn.BCEWithLogitsLoss(),
        "binary",
    )
    return changed(script, changes)


def of_pictures(model: nn.Module | None = None, **changes: Any) -> Script:
    script = Script(
        model or models.CNN(4),
        data.pictures(384),
        data.pictures(100, seed=1),
        nn.CrossEntropyLoss(),
        "classification",
        options={"num_classes": 4},
    )
    return changed(script, changes)


def of_texts(model: nn.Module | None = None, **changes: Any) -> Script:
    script = Script(
        model or models.Encoder(data.VOCAB, 4, data.LENGTH),
        data.texts(384),
        data.texts(100, seed=1),
        nn.CrossEntropyLoss(),
        "classification",
        options={"num_classes": 4},
    )
    return changed(script, changes)


def of_tags(model: nn.Module | None = None, **changes: Any) -> Script:
    script = Script(
        model or models.Recurrent("LSTM", data.VOCAB, 3, each=True, both=True),
        data.tags(256),
        data.tags(70, seed=1),
        tokens_loss,
        "tagging",
        batch_size=16,
        options={"num_classes": 3},
    )
    return changed(script, changes)


def of_sentences(model: nn.Module | None = None, **changes: Any) -> Script:
    """Pre-shifted pairs: x = ids[:, :-1], y = ids[:, 1:]."""
    train, val = data.sentences(256), data.sentences(70, seed=1)
    script = Script(
        model or models.GPT(data.VOCAB, data.LENGTH),
        (train[:, :-1], train[:, 1:]),
        (val[:, :-1], val[:, 1:]),
        tokens_loss,
        "lm",
        batch_size=16,
        rate=3e-3,
    )
    return changed(script, changes)


def of_hub(model: nn.Module | None = None, kind: str = "llama", **changes: Any) -> Script:
    """Dicts with labels = input_ids, padded on the right; the model shifts and has the loss."""

    def rows(n: int, seed: int) -> dict[str, torch.Tensor]:
        ids = data.sentences(n, seed)
        lengths = torch.randint(
            8, data.LENGTH + 1, (n, 1), generator=torch.Generator().manual_seed(seed)
        )
        beyond = torch.arange(data.LENGTH) >= lengths
        ids[torch.arange(data.LENGTH) == lengths - 1] = 2
        ids = ids.masked_fill(beyond, 0)
        return {
            "input_ids": ids,
            "attention_mask": (~beyond).long(),
            "labels": ids.masked_fill(beyond, -100),
        }

    made = model or models.hugging_face(
        kind, data.VOCAB, pad_token_id=0, eos_token_id=2, bos_token_id=1
    )
    script = Script(
        made, rows(256, 0), rows(70, 1), None, "lm", dicts=True, batch_size=16, rate=3e-3
    )
    return changed(script, changes)


def of_hub_texts(**changes: Any) -> Script:
    def rows(n: int, seed: int) -> dict[str, torch.Tensor]:
        ids, y = data.texts(n, seed=seed)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": y}

    model = models.hugging_face("bert", data.VOCAB, num_labels=4)
    script = Script(
        model,
        rows(384, 0),
        rows(100, 1),
        None,
        "classification",
        dicts=True,
        options={"num_classes": 4},
    )
    return changed(script, changes)


def of_hub_tags(**changes: Any) -> Script:
    def rows(n: int, seed: int) -> dict[str, torch.Tensor]:
        ids, y = data.tags(n, seed=seed)
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": y}

    model = models.hugging_face("bert-tags", data.VOCAB, num_labels=3)
    script = Script(
        model,
        rows(256, 0),
        rows(70, 1),
        None,
        "tagging",
        dicts=True,
        batch_size=16,
        options={"num_classes": 3},
    )
    return changed(script, changes)


def changed(script: Script, changes: dict[str, Any]) -> Script:
    for name, value in changes.items():
        assert hasattr(script, name), name
        if name == "options":
            value = {**script.options, **value}
        setattr(script, name, value)
    return script
