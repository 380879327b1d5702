"""Healthy scripts: every family, task, loss and optimizer, and what is often taken for a fault."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from . import data, models
from .scripts import (
    Script,
    of_curve,
    of_hub,
    of_hub_tags,
    of_hub_texts,
    of_pictures,
    of_points,
    of_sentences,
    of_signs,
    of_tags,
    of_texts,
    run,
    tokens_loss,
)


def warmup(optimizer: Any) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 50, 1.0))


def cosine(optimizer: Any) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, 300)


def one_cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=300)


def smoothed() -> nn.Module:
    return nn.CrossEntropyLoss(label_smoothing=0.1)


def frozen_features() -> Script:
    script = of_pictures()
    script.model.features.requires_grad_(False)
    return script_with(script, options={"intended_frozen": ("features",), "pretrained": False})


def script_with(script: Script, **changes: Any) -> Script:
    from .scripts import changed

    return changed(script, changes)


def trained(script: Script, steps: int = 60) -> Script:
    """The script after some training, as pretrained weights are."""
    from .scripts import batches_of, make_optimizer, make_step

    optimizer = make_optimizer(script)
    step = make_step(script, None)
    batches = batches_of(script.train, script.batch_size)
    for number in range(steps):
        step(script.model, batches[number % len(batches)], optimizer)
    script.model.zero_grad()
    return script_with(script, options={"pretrained": True})


def weighted() -> Script:
    return of_points(loss_fn=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.5])))


def log_softmax_head() -> Script:
    model = nn.Sequential(models.MLP(12, 4), nn.LogSoftmax(1))
    return of_points(model=model, loss_fn=nn.NLLLoss())


def sigmoid_head() -> Script:
    model = models.Squeezed(nn.Sequential(models.MLP(12, 1), nn.Sigmoid()))
    return of_signs(model=model, loss_fn=nn.BCELoss(), make_eval=half_eval)


def half_eval(script: Script) -> Any:
    def evaluate(model: nn.Module, loader: Any) -> float:
        model.eval()
        with torch.no_grad():
            right = sum(float(((model(x) > 0.5) == (y > 0.5)).sum()) for x, y in loader)
        return right / sum(len(y) for _, y in loader)

    return evaluate


def column_targets() -> Script:
    x, y = data.curve(384)
    xv, yv = data.curve(100, seed=1)
    return of_curve(model=models.MLP(12, 1), train=(x, y[:, None]), val=(xv, yv[:, None]))


def several_targets() -> Script:
    (x, y), (xv, yv) = data.curve(384), data.curve(100, seed=1)
    return of_curve(
        model=models.MLP(12, 3),
        train=(x, torch.stack([y, y.square(), x[:, 1]], 1)),
        val=(xv, torch.stack([yv, yv.square(), xv[:, 1]], 1)),
    )


def many_labels() -> Script:
    (x, _), (xv, _) = data.points(384), data.points(100, seed=1)
    return of_points(
        model=models.MLP(12, 3),
        train=(x, (x[:, :3] > 0).float()),
        val=(xv, (xv[:, :3] > 0).float()),
        loss_fn=nn.BCEWithLogitsLoss(),
        task="multilabel",
        options={"num_classes": 3},
        make_eval=many_eval,
    )


def many_eval(script: Script) -> Any:
    def evaluate(model: nn.Module, loader: Any) -> float:
        model.eval()
        with torch.no_grad():
            right = sum(float(((model(x) > 0) == (y > 0.5)).sum()) for x, y in loader)
        return right / sum(int(y.numel()) for _, y in loader)

    return evaluate


def channels_first_tags() -> Script:
    def loss_fn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.transpose(1, 2), labels)

    return of_tags(loss_fn=loss_fn)


def negative_loss(script: Script) -> Any:
    """Evaluation that returns minus the mean loss, over all labels."""

    def evaluate(model: nn.Module, loader: Any) -> float:
        model.eval()
        total = count = 0.0
        with torch.no_grad():
            for x, y in loader:
                known = int((y != -100).sum())
                total -= float(script.loss_fn(model(x), y)) * known
                count += known
        model.train()
        return total / count

    return evaluate


def with_peft() -> Script:
    from peft import LoraConfig, get_peft_model

    script = trained(of_hub())
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    script.model = get_peft_model(script.model, settings)
    return script


def small_lora() -> Script:
    script = trained(of_sentences())
    script.model = models.with_lora(script.model)
    return script


def imbalanced_with_bias() -> Script:
    x, _ = data.points(384)
    xv, _ = data.points(100, seed=1)
    y, yv = (x[:, 0] > 1.75).float(), (xv[:, 0] > 1.75).float()
    script = of_signs(train=(x, y), val=(xv, yv))
    head = [m for m in script.model.modules() if isinstance(m, nn.Linear)][-1]
    nn.init.constant_(head.bias, -3.2)
    return script


def data_loader(script: Script) -> Script:
    from torch.utils.data import DataLoader, TensorDataset

    generator = torch.Generator().manual_seed(0)
    script.loader = DataLoader(TensorDataset(*script.train), 32, shuffle=True, generator=generator)
    script.val_loader = DataLoader(TensorDataset(*script.val), 32)
    return script


def scaled_float16() -> Script:
    return of_points(
        precision=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0), clip=1.0
    )


def without_step(script: Script) -> Script:
    script.options["train_step"] = None
    return script


def two_groups(script: Script) -> Any:
    decayed = [p for p in script.model.parameters() if p.ndim >= 2]
    others = [p for p in script.model.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=script.rate,
        betas=(0.9, 0.95),
    )


def language(kind: str, **changes: Any) -> Script:
    return of_sentences(models.Recurrent(kind, data.VOCAB, data.VOCAB, each=True), **changes)


def labels_with_ignored_prompt() -> Script:
    script = of_hub()
    for rows in (script.train, script.val):
        rows["labels"][:, :4] = -100
    return script


HEALTHY: dict[str, Callable[[], Script]] = {
    "mlp-adamw": of_points,
    "mlp-sgd": lambda: of_points(optimizer="sgd", rate=0.05),
    "mlp-adam-dropout": lambda: of_points(model=models.MLP(12, 4, dropout=0.3), optimizer="adam"),
    "mlp-rmsprop": lambda: of_points(optimizer="rmsprop"),
    "mlp-slow": lambda: of_points(rate=5e-5),
    "mlp-batchnorm": lambda: of_points(model=models.MLP(12, 4, norm=True)),
    "mlp-clipped": lambda: of_points(clip=0.1),
    "mlp-warmup": lambda: of_points(schedule=warmup),
    "mlp-cosine": lambda: of_points(schedule=cosine, rate=3e-3),
    "mlp-one-cycle": lambda: of_points(schedule=one_cycle),
    "mlp-smoothing": lambda: of_points(loss_fn=smoothed(), options={"label_smoothing": 0.1}),
    "mlp-class-weights": weighted,
    "mlp-nll": log_softmax_head,
    "mlp-accumulating": lambda: of_points(micro_batches=4),
    "mlp-loader": lambda: data_loader(of_points()),
    "mlp-bf16-autocast": lambda: of_points(precision=torch.bfloat16),
    "mlp-fp16-scaler": scaled_float16,
    "mlp-two-groups": lambda: of_points(make_optimizer=two_groups),
    "binary-logits": of_signs,
    "binary-sigmoid": sigmoid_head,
    "binary-rare": imbalanced_with_bias,
    "multilabel": many_labels,
    "regression-mse": of_curve,
    "regression-column": column_targets,
    "regression-several": several_targets,
    "regression-l1-sgd": lambda: of_curve(loss_fn=nn.L1Loss(), optimizer="sgd", rate=0.01),
    "regression-huber": lambda: of_curve(loss_fn=nn.SmoothL1Loss(), optimizer="adam"),
    "cnn-adam": lambda: of_pictures(optimizer="adam"),
    "cnn-sgd-plain": lambda: of_pictures(models.CNN(4, norm=False), optimizer="sgd", rate=0.02),
    "cnn-dropout-smoothing": lambda: of_pictures(
        models.CNN(4, dropout=0.5), loss_fn=smoothed(), options={"label_smoothing": 0.1}
    ),
    "cnn-frozen-features": frozen_features,
    "cnn-pretrained": lambda: trained(of_pictures()),
    "vit-adamw": lambda: of_pictures(models.ViT(4)),
    "vit-sgd-cosine": lambda: of_pictures(
        models.ViT(4), optimizer="sgd", rate=0.05, schedule=cosine, clip=1.0
    ),
    "lstm-texts": lambda: of_texts(models.Recurrent("LSTM", data.VOCAB, 4)),
    "gru-texts": lambda: of_texts(models.Recurrent("GRU", data.VOCAB, 4), optimizer="adam"),
    "encoder-texts": of_texts,
    "encoder-dropout": lambda: of_texts(
        models.Encoder(data.VOCAB, 4, data.LENGTH, dropout=0.1), schedule=warmup
    ),
    "lstm-tags": of_tags,
    "encoder-tags": lambda: of_tags(models.Encoder(data.VOCAB, 3, data.LENGTH, each=True)),
    "tags-accumulating": lambda: of_tags(micro_batches=4),
    "tags-transposed": channels_first_tags,
    "gpt-tied": of_sentences,
    "gpt-dropout-clip": lambda: of_sentences(
        models.GPT(data.VOCAB, data.LENGTH, dropout=0.1, tied=False), clip=1.0, schedule=warmup
    ),
    "gpt-negative-loss": lambda: of_sentences(make_eval=negative_loss),
    "gpt-pretrained": lambda: trained(of_sentences(), 150),
    "gpt-lora": small_lora,
    "causal-encoder-tied": lambda: of_sentences(
        models.Encoder(data.VOCAB, data.VOCAB, data.LENGTH, causal=True, tied=True)
    ),
    "lstm-language": lambda: language("LSTM"),
    "gru-language-sgd": lambda: language("GRU", optimizer="sgd", rate=0.3, clip=1.0),
    "llama": of_hub,
    "llama-prompts-masked": labels_with_ignored_prompt,
    "llama-accumulating": lambda: of_hub(micro_batches=2, clip=1.0),
    "llama-peft": with_peft,
    "gpt2": lambda: of_hub(kind="gpt2"),
    "gpt2-cosine": lambda: of_hub(kind="gpt2", schedule=cosine, clip=1.0),
    "bert-texts": of_hub_texts,
    "bert-tags": of_hub_tags,
}


def build(name: str) -> Script:
    torch.manual_seed(0)
    return HEALTHY[name]()


__all__ = ["HEALTHY", "build", "run", "tokens_loss"]
