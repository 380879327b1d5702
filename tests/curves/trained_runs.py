"""Curves of small models that are really trained, well or with a fault put in on purpose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, CLASSES = 16, 10
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Task:
    """Rows of random features about the centre of their class, with noise in the labels.

    rows: of training; as many again are held out.
    """

    rows: int = 2048
    spread: float = 1.0
    wrong_labels: float = 0.05

    def draw(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(CLASSES, WIDTH, generator=generator)
        labels = torch.randint(CLASSES, (2 * self.rows,), generator=generator)
        inputs = centres[labels] + self.spread * torch.randn(
            2 * self.rows, WIDTH, generator=generator
        )
        wrong = torch.rand(2 * self.rows, generator=generator) < self.wrong_labels
        other = torch.randint(CLASSES, (2 * self.rows,), generator=generator)
        labels = torch.where(wrong, other, labels)
        return inputs[: self.rows], labels[: self.rows], inputs[self.rows :], labels[self.rows :]


class Attention(nn.Module):
    """The features as four tokens of four, one block of attention, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens: Tensor = self.block(self.embed(inputs.view(-1, 4, 4)))
        logits: Tensor = self.head(tokens.mean(1))
        return logits


def perceptron(dropout: float = 0.0, width: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, CLASSES),
    )


def linear() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


Schedule = Callable[[float], float]
"""Share of the run that is over -> share of the peak rate."""


def constant(done: float) -> float:
    return 1.0


def warm_linear(done: float) -> float:
    return min(done / 0.05, (1 - done) / 0.95)


def stairs(done: float) -> float:
    return 1.0 if done < 0.5 else 0.1 if done < 0.8 else 0.01


Optimizer = Callable[[Any, float], torch.optim.Optimizer]


def adamw(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, rate)


def momentum(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, rate, momentum=0.9)


def rmsprop(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, rate)


def adagrad(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, rate)


def train(
    build: Callable[[], nn.Module],
    optimizer: Optimizer = adamw,
    rate: float = 3e-3,
    schedule: Schedule = warm_linear,
    *,
    steps: int = 300,
    batch: int = 32,
    task: Task | None = None,
    prepare: Callable[[nn.Module], Any] = lambda model: None,
    spoil: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]] = lambda step, x, y: (x, y),
    max_norm: float = 1e9,
    shuffle: bool = True,
) -> Columns:
    """Train, and return what a log has of it: a line a step, validation at every tenth of the run.

    prepare: what is done to the model before; spoil: to the inputs and labels of a step.
    """
    torch.manual_seed(0)
    inputs, labels, held_out, held_out_labels = (task or Task()).draw()
    model = build()
    prepare(model)
    optimiser = optimizer([p for p in model.parameters() if p.requires_grad], 1.0)
    generator = torch.Generator().manual_seed(1)
    order = torch.arange(len(inputs))
    log: Columns = {
        name: [] for name in ("step", "loss", "learning_rate", "grad_norm", "val_loss", "accuracy")
    }
    place = len(inputs)
    for step in range(steps):
        if place + batch > len(inputs):
            place = 0
            order = torch.randperm(len(inputs), generator=generator) if shuffle else order
        rows = order[place : place + batch]
        place += batch
        for group in optimiser.param_groups:
            group["lr"] = rate * schedule(step / steps)
        batch_inputs, batch_labels = spoil(step, inputs[rows], labels[rows])
        model.train()
        logits = model(batch_inputs)
        loss = functional.cross_entropy(logits, batch_labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimiser.step()
        validation = None
        if (step + 1) % (steps // 10) == 0:
            model.eval()
            with torch.no_grad():
                validation = functional.cross_entropy(model(held_out), held_out_labels).item()
        log["step"].append(step)
        log["loss"].append(loss.item())
        log["learning_rate"].append(rate * schedule(step / steps))
        log["grad_norm"].append(norm.item())
        log["val_loss"].append(validation)
        log["accuracy"].append((logits.argmax(1) == batch_labels).float().mean().item())
    return log
