"""Faulty scripts: a healthy one with one change, and the check that must name it."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer, lr_scheduler

from . import data, models
from .healthy import data_loader, frozen_features, labels_with_ignored_prompt, small_lora, trained
from .scripts import (
    Script,
    batches_of,
    make_optimizer,
    make_step,
    of_curve,
    of_hub,
    of_hub_tags,
    of_pictures,
    of_points,
    of_sentences,
    of_signs,
    of_tags,
    of_texts,
    tokens_loss,
)


@dataclass(frozen=True)
class Fault:
    """twin: the healthy script; change: what breaks it; checks: ids of which one must fail."""

    twin: Callable[[], Script]
    change: Callable[[Script], Any]
    checks: tuple[str, ...]


FAULTS: dict[str, Fault] = {}
Change = Callable[[Script], Any]


def fault(name: str, twin: Callable[[], Script], *checks: str) -> Callable[[Change], Change]:
    def keep(change: Change) -> Change:
        assert name not in FAULTS, name
        FAULTS[name] = Fault(twin, change, checks)
        return change

    return keep


def set_(name: str, twin: Callable[[], Script], checks: str, **values: Any) -> None:
    """A fault that is another value of some parts of the script."""

    def change(script: Script) -> None:
        for key, value in values.items():
            setattr(script, key, value() if key == "model" else value)

    FAULTS[name] = Fault(twin, change, tuple(checks.split()))


def step_of(body: Callable[..., Any]) -> Any:
    """A make_step from body(script, model, batch, optimizer)."""

    def make(script: Script, schedule: Any) -> Any:
        return lambda model, batch, optimizer: body(script, model, batch, optimizer)

    return make


def plain(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
    optimizer.zero_grad()
    loss = script.loss(model.train(), batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


# the data


@fault("labels random", of_points, "labels_informative")
def _(script: Script) -> None:
    x, y = script.train
    script.train = (x, torch.randint(4, y.shape))


@fault("labels shuffled, pictures", of_pictures, "labels_informative")
def _(script: Script) -> None:
    x, y = script.train
    script.train = (x, y[torch.randperm(len(y))])


@fault("labels shuffled, regression", of_curve, "labels_informative")
def _(script: Script) -> None:
    x, y = script.train
    script.train = (x, y[torch.randperm(len(y))])


@fault("labels shuffled, tags", of_tags, "labels_informative")
def _(script: Script) -> None:
    _x, y = script.train
    flat = y[y >= 0]
    y[y >= 0] = flat[torch.randperm(len(flat))]


@fault("labels shuffled, language", of_sentences, "lm_labels", "token_shift")
def _(script: Script) -> None:
    x, y = script.train
    script.train = (x, y[torch.randperm(len(y))])


@fault("validation labels shuffled", of_pictures, "val_labels_consistent")
def _(script: Script) -> None:
    x, y = script.val
    script.val = (x, y[torch.randperm(len(y))])


@fault("labels flipped in part", of_pictures, "label_noise")
def _(script: Script) -> None:
    x, y = script.train
    flip = torch.rand(len(y)) < 0.12
    script.train = (x, torch.where(flip, (y + 1) % 4, y))


@fault("inputs constant", of_points, "inputs_vary")
def _(script: Script) -> None:
    script.train = (torch.full_like(script.train[0], 5.0), script.train[1])


@fault("rows repeated", of_points, "duplicates")
def _(script: Script) -> None:
    x, y = script.train
    x[100:200], y[100:200] = x[:1], y[:1]


@fault("labels conflict", of_points, "conflicts")
def _(script: Script) -> None:
    x, y = script.train
    script.train = (torch.cat([x, x[:80]]), torch.cat([y, (y[:80] + 1) % 4]))


@fault("train rows in validation", of_points, "train_val_overlap")
def _(script: Script) -> None:
    x, y = script.val
    x[:20], y[:20] = script.train[0][:20], script.train[1][:20]


@fault("evaluated on the training rows", of_points, "train_val_overlap")
def _(script: Script) -> None:
    script.val = script.train


@fault("classes 95 to 5", of_signs, "class_balance")
def _(script: Script) -> None:
    x, _ = script.train
    script.train = (x, (x[:, 0] > 1.75).float())


@fault("pixels 0 to 255", of_pictures, "input_scale", "preprocessing")
def _(script: Script) -> None:
    def raw(rows: Any) -> Any:
        return ((rows[0] + 4) / 8 * 255).round().clamp(0, 255), rows[1]

    script.train, script.val = raw(script.train), raw(script.val)


@fault("divided by 255 twice", of_pictures, "input_size", "input_scale")
def _(script: Script) -> None:
    script.train = (script.train[0] / 255, script.train[1])
    script.val = (script.val[0] / 255, script.val[1])


@fault("validation not normalised", of_pictures, "preprocessing", "preprocessing_spread")
def _(script: Script) -> None:
    script.val = (script.val[0] * 2 + 1, script.val[1])


@fault("evaluation scales inputs", of_pictures, "preprocessing_spread", "preprocessing")
def _(script: Script) -> None:
    script.prepare_eval = lambda batch: (batch[0] / 2.5, batch[1])


@fault("sorted, not shuffled", of_points, "shuffled")
def _(script: Script) -> None:
    x, y = script.train
    order = y.argsort()
    script.train = (x[order], y[order])


@fault("NaN inputs", of_points, "inputs_finite")
def _(script: Script) -> None:
    script.train[0][5, 3] = math.nan


@fault("labels from 1 to K", of_points, "labels_in_range", "step_runs")
def _(script: Script) -> None:
    script.train = (script.train[0], script.train[1] + 1)


@fault("binary labels 1 and 2", of_signs, "labels_in_range")
def _(script: Script) -> None:
    script.train = (script.train[0], script.train[1] + 1)
    script.options["task"] = None


@fault("binary labels -1 and 1", of_signs, "labels_in_range")
def _(script: Script) -> None:
    script.train = (script.train[0], script.train[1] * 2 - 1)
    script.options["task"] = None


@fault("num_classes below the labels", of_points, "labels_in_range")
def _(script: Script) -> None:
    script.options["num_classes"] = 3


@fault("label is a feature", lambda: of_points(model=models.MLP(12, 4)), "target_leak")
def _(script: Script) -> None:
    script.train[0][:, 7] = script.train[1] * 0.5
    script.val[0][:, 7] = script.val[1] * 0.5


@fault("targets in thousands", of_curve, "target_scale")
def _(script: Script) -> None:
    script.train = (script.train[0], script.train[1] * 1000 + 5000)
    script.val = (script.val[0], script.val[1] * 1000 + 5000)


@fault("workers share a seed", lambda: data_loader(of_points()), "worker_seeds")
def _(script: Script) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    class Noisy(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            x, y = super().__getitem__(index)  # type: ignore[no-untyped-call]
            return x + np.float32(0.01 * np.random.randn()), y

    script.loader = DataLoader(
        Noisy(*script.train), 32, num_workers=1, worker_init_fn=lambda _: np.random.seed(0)
    )


# masks and targets


@fault("all labels masked", of_hub, "labels_supervised", "gradient_reaches_logits")
def _(script: Script) -> None:
    script.train["labels"][:] = -100


@fault("some rows masked", of_hub, "rows_supervised")
def _(script: Script) -> None:
    script.train["labels"][::3] = -100


@fault("padding supervised", of_hub, "padding_masked")
def _(script: Script) -> None:
    script.train["labels"] = script.train["input_ids"].clone()


@fault("stop token masked", of_hub, "stop_supervised")
def _(script: Script) -> None:
    labels = script.train["labels"]
    labels[labels == 2] = -100


@fault("labels shifted before the model shifts", of_hub, "token_shift")
def _(script: Script) -> None:
    labels = script.train["labels"]
    script.train["labels"] = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)


@fault("loss shifts a second time", of_sentences, "token_shift")
def _(script: Script) -> None:
    script.loss_fn = lambda logits, y: tokens_loss(logits[:, :-1], y[:, 1:])


@fault("no shift at all", of_sentences, "token_shift")
def _(script: Script) -> None:
    script.train = (script.train[0], script.train[0])


@fault("tags shifted by the loss", of_tags, "label_shift")
def _(script: Script) -> None:
    script.loss_fn = lambda logits, y: tokens_loss(logits[:, :-1], y[:, 1:])


@fault("ignore_index is a class", of_points, "ignored_class")
def _(script: Script) -> None:
    script.loss_fn = nn.CrossEntropyLoss(ignore_index=0)


@fault("ignore_index is a tag", of_tags, "ignored_class")
def _(script: Script) -> None:
    def loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(
            logits.flatten(0, 1), y.masked_fill(y == -100, 1).flatten(), ignore_index=1
        )

    script.loss_fn = loss


@fault("attention mask inverted", of_hub_tags, "attention_mask")
def _(script: Script) -> None:
    script.train["attention_mask"] = 1 - script.train["attention_mask"]


@fault("labels rolled in the step", of_points, "targets_aligned")
def _(script: Script) -> None:
    script.prepare = lambda batch: (batch[0], batch[1].roll(1))


# the loss


@fault("softmax before cross-entropy", of_points, "softmax_before_loss")
def _(script: Script) -> None:
    script.model = nn.Sequential(script.model, nn.Softmax(1))


@fault("softmax in the loss", of_pictures, "softmax_before_loss")
def _(script: Script) -> None:
    script.loss_fn = lambda z, y: functional.cross_entropy(z.softmax(1), y)


@fault("softmax before loss, tags", of_tags, "softmax_before_loss")
def _(script: Script) -> None:
    script.loss_fn = lambda z, y: tokens_loss(z.softmax(-1), y)


@fault("sigmoid before BCE with logits", of_signs, "softmax_before_loss")
def _(script: Script) -> None:
    script.model = nn.Sequential(script.model, nn.Sigmoid())


@fault("NLL without log_softmax", of_points, "loss_kind")
def _(script: Script) -> None:
    script.loss_fn = nn.NLLLoss()


@fault("NLL of probabilities", of_points, "loss_kind")
def _(script: Script) -> None:
    script.loss_fn = lambda z, y: functional.nll_loss(z.softmax(1), y)


@fault("MSE for classes", of_points, "loss_kind")
def _(script: Script) -> None:
    script.loss_fn = lambda z, y: functional.mse_loss(
        z.softmax(1), functional.one_hot(y, 4).float()
    )


set_("summed loss", of_points, "loss_summed", loss_fn=nn.CrossEntropyLoss(reduction="sum"))
set_(
    "summed loss hidden by clipping",
    of_pictures,
    "loss_summed",
    loss_fn=nn.CrossEntropyLoss(reduction="sum"),
    clip=1.0,
)
set_("summed squared error", of_curve, "loss_summed", loss_fn=nn.MSELoss(reduction="sum"))
set_("negated loss", of_points, "loss_sign", loss_fn=lambda z, y: -functional.cross_entropy(z, y))
set_(
    "negated loss, regression",
    of_curve,
    "loss_sign",
    loss_fn=lambda z, y: -functional.mse_loss(z, y),
)
set_(
    "loss clamped",
    of_points,
    "gradient_reaches_logits",
    loss_fn=lambda z, y: functional.cross_entropy(z, y).clamp(max=1.0),
)
set_(
    "smoothing left on",
    of_points,
    "label_smoothing",
    loss_fn=nn.CrossEntropyLoss(label_smoothing=0.1),
)
set_(
    "loss times 1e-4, Adam",
    of_points,
    "loss_scale",
    loss_fn=lambda z, y: functional.cross_entropy(z, y) * 1e-4,
)
set_(
    "loss times 1e-4, SGD",
    lambda: of_points(optimizer="sgd", rate=0.05),
    "loss_scale",
    loss_fn=lambda z, y: functional.cross_entropy(z, y) * 1e-4,
)
set_("column against row", of_curve, "targets_local", model=lambda: models.MLP(12, 1))


@fault("row against column", lambda: of_curve(), "targets_local")
def _(script: Script) -> None:
    x, y = script.train
    script.train = (x, y[:, None])


@fault("accumulation not divided", lambda: of_points(micro_batches=4), "accumulation_scale")
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        optimizer.zero_grad()
        for micro in batches_of(batch, 8):
            loss = script.loss(model.train(), micro)
            loss.backward()
        optimizer.step()
        return loss.detach()

    script.make_step = step_of(body)


@fault("mean of means", lambda: of_tags(micro_batches=4), "accumulation_weights")
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        optimizer.zero_grad()
        for micro in batches_of(batch, 4):
            loss = script.loss(model.train(), micro) / 4
            loss.backward()
        optimizer.step()
        return loss.detach()

    script.make_step = step_of(body)


@fault("last micro-batch dropped", lambda: of_points(micro_batches=4), "rows_used")
def _(script: Script) -> None:
    script.prepare = lambda batch: (batch[0][:24], batch[1][:24])


# initial weights


def each_matrix(change: Callable[[torch.Tensor], Any]) -> Callable[[Script], None]:
    def apply(script: Script) -> None:
        with torch.no_grad():
            for p in script.model.parameters():
                if p.ndim >= 2:
                    change(p)

    return apply


fault("all zero", of_points, "zero_weights")(each_matrix(lambda p: p.zero_()))
fault("constant", of_points, "constant_weights")(each_matrix(lambda p: p.fill_(0.02)))
fault("std 1", of_pictures, "large_init", "initial_loss")(each_matrix(lambda p: p.normal_()))
fault("std 1e-4", of_points, "small_init")(each_matrix(lambda p: p.normal_(std=1e-4)))


@fault("hot head", of_points, "initial_loss")
def _(script: Script) -> None:
    list(script.model.parameters())[-2].data.mul_(50)


@fault(
    "hot head, GPT", lambda: of_sentences(models.GPT(data.VOCAB, 16, tied=False)), "initial_loss"
)
def _(script: Script) -> None:
    script.model.lm_head.weight.data.normal_(std=1.0)


@fault("layer norm gain 0", of_sentences, "zero_gains")
def _(script: Script) -> None:
    for module in script.model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.zeros_(module.weight)


@fault("dead ReLU", of_points, "dead_units")
def _(script: Script) -> None:
    list(script.model.parameters())[1].data.fill_(-10)


@fault(
    "initialised again after loading",
    lambda: trained(of_sentences(), 150),
    "weights_loaded",
    "pretrained_loss",
)
def _(script: Script) -> None:
    script.model.apply(script.model._init)
    for module in script.model.modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()


@fault("weights not loaded", lambda: trained(of_pictures()), "weights_loaded")
def _(script: Script) -> None:
    script.model = models.CNN(4)


@fault("both LoRA matrices 0", small_lora, "adapters_dead")
def _(script: Script) -> None:
    for name, p in script.model.named_parameters():
        if "lora_A" in name:
            p.data.zero_()


@fault("tying broken", of_sentences, "weights_tied")
def _(script: Script) -> None:
    model = script.model
    model.lm_head.weight = nn.Parameter(model.wte.weight.detach().clone())


# the optimizer


set_("rate times 300", of_points, "rate_learns update_ratio non_finite", rate=1.0)
set_(
    "rate times 1000, SGD",
    lambda: of_points(optimizer="sgd", rate=0.05),
    "rate_learns update_ratio non_finite",
    rate=50.0,
)
set_("rate 1e-7", of_points, "rate_learns", rate=1e-7)
set_("rate 0", of_points, "learning_rate_zero", rate=0.0)
set_(
    "schedule over at once",
    of_points,
    "schedule",
    schedule=lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: max(1 - step / 5, 0)),
)
set_(
    "epoch schedule stepped by batch",
    lambda: of_pictures(),
    "schedule",
    schedule=lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.1),
)
set_(
    "schedule multiplies by 0",
    of_points,
    "learning_rate_zero",
    schedule=lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.0),
)


def without(*left_out: str) -> Any:
    """A training step in which some calls are missing or in another order."""

    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        if "zero" not in left_out:
            optimizer.zero_grad()
        loss = script.loss(model.train(), batch)
        loss.backward()
        if "late zero" in left_out:
            optimizer.zero_grad()
        if "step" not in left_out:
            optimizer.step()
        if "twice" in left_out:
            optimizer.step()
        return loss.detach()

    return step_of(body)


set_("zero_grad missing", of_points, "stale_gradients", make_step=without("zero"))
set_("zero_grad missing, LSTM tags", of_tags, "stale_gradients", make_step=without("zero"))
set_("zero_grad missing, Llama", of_hub, "stale_gradients", make_step=without("zero"))
set_("optimizer.step missing", of_points, "optimizer_steps", make_step=without("step"))
set_("zero_grad after backward", of_points, "cleared_gradients", make_step=without("late zero"))
set_("optimizer steps twice", of_points, "optimizer_once", make_step=without("twice"))


@fault("backward missing", of_points, "backward")
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        optimizer.zero_grad()
        loss = script.loss(model.train(), batch)
        optimizer.step()
        return loss.detach()

    script.make_step = step_of(body)


@fault("zero_grad between micro-batches", lambda: of_points(micro_batches=4), "cleared_gradients")
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        for micro in batches_of(batch, 8):
            optimizer.zero_grad()
            loss = script.loss(model.train(), micro) / 4
            loss.backward()
        optimizer.step()
        return loss.detach()

    script.make_step = step_of(body)


@fault("layers in a plain list", of_points, "registered")
def _(script: Script) -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(12, 64), nn.Linear(64, 64)]
            self.head = nn.Linear(64, 4)

        def forward(self, x: torch.Tensor) -> Any:
            for layer in self.layers:
                x = layer(x).relu()
            return self.head(x)

    script.model = Listed()


@fault("adapters scaled by 0", small_lora, "without_gradient")
def _(script: Script) -> None:
    class Silent(models.LoRALinear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.base(x) + 0.0 * functional.linear(
                functional.linear(x, self.lora_A), self.lora_B
            )
            return out

    for module in script.model.modules():
        if isinstance(module, models.LoRALinear):
            module.__class__ = Silent


@fault("a new optimizer each step", of_points, "optimizer_kept")
def _(script: Script) -> None:
    script.make_step = step_of(
        lambda script, model, batch, _: plain(script, model, batch, make_optimizer(script))
    )


@fault("head not in optimizer", of_pictures, "not_in_optimizer")
def _(script: Script) -> None:
    script.make_optimizer = lambda s: torch.optim.AdamW(
        [p for n, p in s.model.named_parameters() if not n.startswith("fc")], lr=1e-3
    )


@fault("optimizer of a copy", of_points, "foreign_parameters")
def _(script: Script) -> None:
    script.make_optimizer = lambda s: torch.optim.AdamW(
        copy.deepcopy(s.model).parameters(), lr=1e-3
    )


@fault("all frozen but norms", of_pictures, "frozen_undeclared")
def _(script: Script) -> None:
    for module in script.model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.requires_grad_(False)


@fault("only the head trains", of_sentences, "frozen_undeclared")
def _(script: Script) -> None:
    script.model.blocks.requires_grad_(False)


@fault("frozen features train", frozen_features, "frozen_trains")
def _(script: Script) -> None:
    script.model.requires_grad_(True)


set_("Adam eps 0.1", of_points, "optimizer_eps", settings={"eps": 0.1})
set_("betas swapped", of_points, "betas", settings={"betas": (0.999, 0.9)})
set_("weight decay 10", of_points, "weight_decay", settings={"weight_decay": 10.0})
set_("maximize", of_points, "maximize", settings={"maximize": True})
set_("clip at 1e-4", of_points, "clip_excess", clip=1e-4)
set_("clip at 1e-3, SGD", lambda: of_points(optimizer="sgd", rate=0.05), "clip_excess", clip=1e-3)
set_(
    "dropout 0.9",
    lambda: of_points(model=models.MLP(12, 4, dropout=0.3)),
    "dropout",
    model=lambda: models.MLP(12, 4, dropout=0.9),
)


@fault("clip after step", lambda: of_points(clip=1.0), "clip_order")
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        loss = plain(script, model, batch, optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    script.make_step = step_of(body)


@fault("clip before backward", lambda: of_points(clip=1.0), "clip_order")
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return plain(script, model, batch, optimizer)

    script.make_step = step_of(body)


@fault("batch norm momentum 0.99", lambda: of_pictures(), "batch_norm_momentum")
def _(script: Script) -> None:
    for module in script.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.99


@fault(
    "scheduler before optimizer",
    lambda: of_points(schedule=lambda o: lr_scheduler.CosineAnnealingLR(o, 300)),
    "scheduler_order",
)
def _(script: Script) -> None:
    def make(script: Script, schedule: Any) -> Any:
        def train_step(model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
            schedule.step()
            return plain(script, model, batch, optimizer)

        return train_step

    script.make_step = make


# precision


@fault("pure bfloat16, rate 2e-5", lambda: of_sentences(rate=2e-4), "swallowed_updates")
def _(script: Script) -> None:
    script.model, script.rate = script.model.bfloat16(), 2e-5


@fault("pure bfloat16, rate 3e-3", of_sentences, "swallowed_updates")
def _(script: Script) -> None:
    script.model = script.model.bfloat16()


@fault("float16 weights", of_points, "half_weights")
def _(script: Script) -> None:
    script.model = script.model.half()
    script.prepare = script.prepare_eval = lambda batch: (batch[0].half(), batch[1])
    script.train, script.val = (
        (script.train[0].half(), script.train[1]),
        (script.val[0].half(), script.val[1]),
    )


set_("float16 autocast without a scaler", of_points, "fp16_unscaled", precision=torch.float16)


@fault(
    "clip before unscaling",
    lambda: of_points(
        clip=1.0, precision=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0)
    ),
    "clip_order",
)
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = script.loss(model.train(), batch)
        script.scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        script.scaler.step(optimizer)
        script.scaler.update()
        return loss.detach()

    script.make_step = step_of(body)


@fault(
    "autocast left before the model",
    lambda: of_points(precision=torch.bfloat16),
    "autocast_applied",
)
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            optimizer.zero_grad()
        return plain(script, model, batch, optimizer)

    script.make_step = step_of(body)


@fault("root of 0 in the gradient", of_points, "non_finite")
def _(script: Script) -> None:
    def loss(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(z, y) + 0 * (z - z).sqrt().sum()

    script.loss_fn = loss


# wiring


def rewired(name: str, twin: Callable[[], Script], *checks: str) -> Any:
    """The fault is a class of the model's that replaces the model's own."""

    def keep(kind: Any) -> Any:
        def change(script: Script) -> None:
            script.model.__class__ = kind

        FAULTS[name] = Fault(twin, change, checks)
        return kind

    return keep


def attention_fault(name: str, *checks: str) -> Any:
    def keep(kind: Any) -> Any:
        def change(script: Script) -> None:
            for block in script.model.blocks:
                block.attn.__class__ = kind

        FAULTS[name] = Fault(of_sentences, change, checks)
        return kind

    return keep


@attention_fault("no causal mask", "causal")
class Unmasked(models.Attention):
    def mask(self, t: int) -> torch.Tensor:
        return torch.ones(t, t, dtype=torch.bool)


@attention_fault("causal mask off by one", "causal")
class OffByOne(models.Attention):
    def mask(self, t: int) -> torch.Tensor:
        return torch.tril(torch.ones(t, t, dtype=torch.bool), 1)


@attention_fault("view instead of transpose", "causal", "sample_independence")
class Viewed(models.Attention):
    def split(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        return x.reshape(b, self.heads, t, c // self.heads)


@attention_fault("attention sees only itself", "context_used")
class Diagonal(models.Attention):
    def mask(self, t: int) -> torch.Tensor:
        return torch.eye(t, dtype=torch.bool)


@rewired(
    "batch mixed",
    lambda: of_points(model=models.Squeezed(models.MLP(12, 4))),
    "sample_independence",
)
class Mixed(models.Squeezed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(x - x.mean(0, keepdim=True))
        return outputs


@rewired("input ignored", lambda: of_points(model=models.Squeezed(models.MLP(12, 4))), "input_used")
class Ignoring(models.Squeezed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(torch.zeros_like(x))
        return outputs


@rewired("detached in the middle", of_pictures, "without_gradient")
class Detached(models.CNN):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self.features(x).flatten(1).detach())
        return logits


@rewired("no_grad over a part", of_pictures, "without_gradient")
class NoGrad(models.CNN):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.features(x)
        logits: torch.Tensor = self.fc(features.flatten(1))
        return logits


@rewired("position embedding not added", of_texts, "without_gradient")
class Unplaced(models.Encoder):
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.embedding(ids)
        return embedded


@rewired("functional dropout in evaluation", of_pictures, "eval_repeatable")
class AlwaysDropping(models.CNN):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(functional.dropout(self.features(x).flatten(1), 0.3))
        return logits


@fault("unused layer", of_points, "without_gradient")
def _(script: Script) -> None:
    script.model.extra = nn.Linear(4, 4)
    body = nn.Sequential(*list(script.model)[:-1])

    class WithExtra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.extra = body, nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> Any:
            return self.body(x)

    script.model = WithExtra()


@fault("no activation", of_points, "nonlinear")
def _(script: Script) -> None:
    script.model = nn.Sequential(nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 4))


@fault("deep sigmoid", of_points, "vanishing_gradient", "overfit")
def _(script: Script) -> None:
    layers: list[nn.Module] = [nn.Linear(12, 32), nn.Sigmoid()]
    for _ in range(12):
        layers += [nn.Linear(32, 32), nn.Sigmoid()]
    script.model = nn.Sequential(*layers, nn.Linear(32, 4))


@fault(
    "batch_first missing",
    lambda: of_texts(models.Recurrent("LSTM", data.VOCAB, 4)),
    "sample_independence",
)
def _(script: Script) -> None:
    script.model.rnn.batch_first = False


@fault("ReLU on the logits", of_points, "output_activation")
def _(script: Script) -> None:
    script.model = nn.Sequential(*script.model, nn.ReLU())


@fault("sigmoid on a regression", of_curve, "output_activation")
def _(script: Script) -> None:
    script.model = nn.Sequential(script.model, nn.Sigmoid())


# evaluation


@fault(
    "model.eval() in training",
    lambda: of_points(model=models.MLP(12, 4, dropout=0.3)),
    "training_mode",
)
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        optimizer.zero_grad()
        loss = script.loss(model.eval(), batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    script.make_step = step_of(body)


def accuracy(script: Script, mode: str = "", stop: bool = False, means: bool = False) -> Any:
    """An evaluation with something wrong."""

    def evaluate(model: nn.Module, loader: Any) -> float:
        model.train(mode == "train")
        right, total, shares = 0.0, 0, []
        with torch.no_grad():
            for x, y in loader:
                hits = float((model(x).argmax(-1) == y).sum())
                right, total = right + hits, total + len(y)
                shares.append(hits / len(y))
                if stop:
                    break
        if mode != "stay":
            model.train()
        return sum(shares) / len(shares) if means else right / total

    return evaluate


def dropping() -> Script:
    return of_points(model=models.MLP(12, 4, dropout=0.3))


set_("evaluated in training mode", dropping, "eval_mode", make_eval=lambda s: accuracy(s, "train"))
set_(
    "evaluated in training mode, batch norm",
    of_pictures,
    "eval_mode",
    make_eval=lambda s: accuracy(s, "train"),
)
set_("first batch only", of_points, "eval_reads_all", make_eval=lambda s: accuracy(s, stop=True))
set_(
    "mean of batch means, metric",
    of_points,
    "metric_aggregation",
    make_eval=lambda s: accuracy(s, means=True),
)


@fault("mode not restored", dropping, "mode_restored")
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        optimizer.zero_grad()
        loss = script.loss(model, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    script.make_step = step_of(body)
    script.make_eval = lambda s: accuracy(s, "stay")


Evaluate = Callable[[Script, nn.Module, Any], float]


def evaluation(name: str, twin: Callable[[], Script], check: str) -> Callable[[Evaluate], Evaluate]:
    def keep(evaluate: Evaluate) -> Evaluate:
        FAULTS[name] = Fault(
            twin,
            lambda script: setattr(
                script, "make_eval", lambda s: lambda model, loader: evaluate(s, model, loader)
            ),
            (check,),
        )
        return evaluate

    return keep


@evaluation("evaluates a copy", of_points, "eval_uses_model")
def _(script: Script, model: nn.Module, loader: Any) -> float:
    stale = copy.deepcopy(model).eval()
    return sum(float((stale(x).argmax(1) == y).float().mean()) for x, y in loader)


@evaluation("evaluates the training loader", of_points, "eval_uses_loader")
def _(script: Script, model: nn.Module, loader: Any) -> float:
    model.eval()
    return float((model(script.train[0]).argmax(1) == script.train[1]).float().mean())


@evaluation("metric is the loss", of_points, "metric_direction")
def _(script: Script, model: nn.Module, loader: Any) -> float:
    model.eval()
    with torch.no_grad():
        total = sum(float(script.loss_fn(model(x), y)) * len(y) for x, y in loader)
    return total / sum(len(y) for _, y in loader)


@evaluation("argmax over the batch", of_points, "metric_direction")
def _(script: Script, model: nn.Module, loader: Any) -> float:
    model.eval()
    with torch.no_grad():
        return sum(float((model(x).argmax(0)[0] == y[0]).float()) for x, y in loader)


@evaluation("divides by the padded count", of_points, "metric_scale")
def _(script: Script, model: nn.Module, loader: Any) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(float((model(x).argmax(1) == y).sum()) for x, y in loader)
    return right / (len(loader) * 32)


@evaluation("counts padding", of_tags, "metric_scale")
def _(script: Script, model: nn.Module, loader: Any) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(float((model(x).argmax(-1) == y).sum()) for x, y in loader)
    return right / sum(int(y.numel()) for _, y in loader)


@evaluation("trains while evaluating", of_points, "eval_pure")
def _(script: Script, model: nn.Module, loader: Any) -> float:
    model.eval()
    right = total = 0.0
    for x, y in loader:
        logits = model(x)
        functional.cross_entropy(logits, y).backward()  # type: ignore[no-untyped-call]
        right, total = right + float((logits.argmax(1) == y).sum()), total + len(y)
    return right / total


@fault("seed set in every step", dropping, "reseeded")
def _(script: Script) -> None:
    def body(script: Script, model: nn.Module, batch: Any, optimizer: Optimizer) -> Any:
        torch.manual_seed(0)
        return plain(script, model, batch, optimizer)

    script.make_step = step_of(body)


def build(name: str) -> Script:
    """The faulty script."""
    torch.manual_seed(0)
    one = FAULTS[name]
    script = one.twin()
    one.change(script)
    return script


__all__ = ["FAULTS", "build", "labels_with_ignored_prompt", "make_step"]
