"""Logs of runs that went well: families of models, optimizers, schedules and noise, by a seed.

Levels and noise are those of the kinds of run that their names say; each is a column per quantity.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = dict[str, list[float]]


def columns(steps: Floats, **values: Floats) -> Columns:
    """A log of one line a step; what was not logged at a step is left out by its column."""
    return {"step": steps.tolist()} | {name: one.tolist() for name, one in values.items()}


def noisy(level: Floats, sigma: float, generator: Generator) -> Floats:
    """Losses of batches about a level: lognormal, as means over few rows are."""
    return level * np.exp(generator.normal(-sigma * sigma / 2, sigma, len(level)))


def warm_cosine(n: int, peak: float, warmup: float = 0.05, floor: float = 0.0) -> Floats:
    t = np.arange(n) / n
    decay = floor + (1 - floor) * 0.5 * (1 + np.cos(np.pi * (t - warmup) / (1 - warmup)))
    return peak * np.where(t < warmup, t / warmup if warmup else 1.0, decay)


def pretraining(generator: Generator) -> Columns:
    """A language model from scratch, AdamW, warm-up and cosine to a tenth; large batches."""
    n = int(generator.integers(800, 3000))
    steps = np.arange(n, dtype=float)
    level = 2.2 + 8.7 * (1 + steps / 30) ** -0.6
    norms = noisy(0.4 + 4 * np.exp(-steps / 60), 0.25, generator)
    rate = warm_cosine(n, 6e-4, 0.02, 0.1)
    return columns(steps, loss=noisy(level, 0.02, generator), lr=rate, grad_norm=norms)


def lora_single_rows(generator: Generator) -> Columns:
    """LoRA at a batch of one row: the loss of one step says little; linear decay, no warm-up."""
    n = int(generator.integers(150, 1200))
    steps = np.arange(1.0, n + 1)
    level = 1.15 + 0.75 * np.exp(-steps / (0.15 * n))
    loss = noisy(level, 0.4, generator)
    return columns(steps, loss=loss, learning_rate=2e-4 * (1 - steps / n))


def lora_few_points(generator: Generator) -> Columns:
    """A short run that was logged every 10 steps."""
    steps = np.arange(10.0, 10.0 * generator.integers(12, 30), 10)
    level = 2.9 + 0.4 * np.exp(-steps / 60)
    norms = noisy(np.full(len(steps), 0.8), 0.7, generator)
    rate = 5e-5 * (1 - steps / (steps[-1] + 5))
    return columns(steps, loss=noisy(level, 0.02, generator), learning_rate=rate, grad_norm=norms)


def epoch_staircase(generator: Generator) -> Columns:
    """All weights of a language model, several epochs: a stair down where each begins."""
    epochs = int(generator.integers(3, 6))
    per_epoch = int(generator.integers(60, 200))
    steps = np.arange(1.0, epochs * per_epoch + 1)
    epoch = (steps - 1) // per_epoch
    level = (1.1 + 0.5 * np.exp(-steps / 40)) * 0.62**epoch
    rate = warm_cosine(len(steps), 2e-5, 0.03)
    ends = epoch_ends(steps, per_epoch)
    validation = np.full(len(steps), np.nan)
    validation[ends] = 1.08 * np.array([1.0, 0.97, 0.98, 1.0, 1.03])[:epochs]
    return columns(
        steps, loss=noisy(level, 0.1, generator), learning_rate=rate, val_loss=validation
    )


def epoch_ends(steps: Floats, per_epoch: int) -> NDArray[np.bool_]:
    ends: NDArray[np.bool_] = steps % per_epoch == 0
    return ends


def from_low_loss(generator: Generator) -> Columns:
    """A model that is good already: little is left to gain."""
    n = int(generator.integers(200, 800))
    steps = np.arange(n, dtype=float)
    level = 0.27 + 0.09 * np.exp(-steps / (0.3 * n))
    return columns(steps, loss=noisy(level, 0.12, generator), lr=np.full(n, 1e-5))


def step_decay(generator: Generator) -> Columns:
    """An image classifier, SGD with momentum, the rate a tenth at 30, 60 and 80 of 90 epochs."""
    n = 900
    steps = np.arange(n, dtype=float)
    stair = np.searchsorted([300, 600, 800], steps, side="right")
    level = np.array([2.4, 1.4, 1.1, 1.05])[stair] + 4.5 * np.exp(-steps / 40)
    rate = np.array([0.1, 0.01, 0.001, 0.0001])[stair]
    accuracy: Floats = np.clip(0.75 - 0.6 * np.exp(-steps / 200), 0, 1)
    return columns(steps, loss=noisy(level, 0.04, generator), lr=rate, accuracy=accuracy)


def warm_restarts(generator: Generator) -> Columns:
    """Cosine with warm restarts: with the rate, the loss goes up and comes back."""
    n, cycles = 1000, int(generator.integers(3, 5))
    steps = np.arange(n, dtype=float)
    phase = (steps * cycles / n) % 1
    rate = 1e-3 * 0.5 * (1 + np.cos(np.pi * phase))
    level = (1.0 + 2.5 * np.exp(-steps / 50)) * (0.45 + 0.55 * rate / 1e-3)
    return columns(steps, loss=noisy(level, 0.05, generator), lr=rate)


def cyclic_rate(generator: Generator) -> Columns:
    """CyclicLR: the rate goes up and down as a triangle, the loss with it."""
    n, cycles = 1200, int(generator.integers(3, 6))
    steps = np.arange(n, dtype=float)
    triangle = 1 - np.abs(2 * ((steps * cycles / n) % 1) - 1)
    rate = 1e-4 + 9.9e-3 * triangle
    level = (0.8 + 2.0 * np.exp(-steps / 120)) * (0.7 + 0.5 * triangle)
    return columns(steps, loss=noisy(level, 0.06, generator), lr=rate)


def warm_stable_decay(generator: Generator) -> Columns:
    """Warm-up, a long constant rate, and a short linear decay in which the loss falls once more."""
    n = 1000
    t: Floats = np.arange(n) / n
    rate: Floats = 3e-4 * np.clip(np.minimum(t / 0.05, (1 - t) / 0.15), 0.0, 1.0)
    level = 2.6 + 5 * np.exp(-t * 15) - 0.15 * np.clip((t - 0.85) / 0.15, 0, 1)
    return columns(np.arange(n, dtype=float), loss=noisy(level, 0.025, generator), lr=rate)


def by_heart(generator: Generator) -> Columns:
    """Rows learned by heart: the loss falls by three powers of ten; now and then a row is hard."""
    n = int(generator.integers(200, 500))
    steps = np.arange(n, dtype=float)
    loss = noisy(4.2 * np.exp(-steps / 25) + 0.002, 0.35, generator)
    hard = generator.random(n) < 0.02
    loss[hard] += generator.uniform(0.02, 0.15, hard.sum())
    norms = noisy(0.02 + 2 * np.exp(-steps / 25), 0.5, generator)
    return columns(steps, loss=loss, lr=warm_cosine(n, 3e-3), grad_norm=norms)


def a_file_of_its_own(generator: Generator) -> Columns:
    """The log of a restart: it begins in the middle of the run, at the loss that was left."""
    n = int(generator.integers(200, 600))
    steps = np.arange(5000.0, 5000.0 + n)
    level = 2.31 - 0.05 * np.arange(n) / n
    rate: Floats = 3e-4 * (0.6 - 0.2 * np.arange(n) / n)
    return columns(steps, loss=noisy(level, 0.03, generator), lr=rate)


def regression(generator: Generator) -> Columns:
    """Mean squared error over five powers of ten, Adam at a constant rate."""
    n = 600
    steps = np.arange(n, dtype=float)
    loss = noisy(40 * np.exp(-steps / 45) + 4e-4, 0.2, generator)
    return columns(steps, train_loss=loss, lr=np.full(n, 1e-3))


def by_epoch(generator: Generator) -> Columns:
    """An epoch a line, as Keras logs it: a classifier that ends where validation stands still."""
    n = int(generator.integers(15, 40))
    epoch = np.arange(n, dtype=float)
    training = 0.25 + 1.9 * np.exp(-epoch / 5)
    validation = 0.42 + 1.6 * np.exp(-epoch / 4) + 0.001 * epoch
    return {
        "epoch": epoch.tolist(),
        "loss": noisy(training, 0.01, generator).tolist(),
        "val_loss": noisy(validation, 0.03, generator).tolist(),
        "accuracy": (0.92 - 0.6 * np.exp(-epoch / 5)).tolist(),
        "val_accuracy": (0.87 - 0.55 * np.exp(-epoch / 4)).tolist(),
    }


def mixed_precision(generator: Generator) -> Columns:
    """float16 with loss scaling: a step is skipped now and then, and its norm is infinite."""
    n = int(generator.integers(300, 700))
    steps = np.arange(n, dtype=float)
    norms = noisy(np.full(n, 1.3), 0.4, generator)
    norms[[1, 2, n // 3, n // 2]] = np.inf
    loss = noisy(0.9 + 1.4 * np.exp(-steps / 60), 0.15, generator)
    return columns(steps, loss=loss, learning_rate=warm_cosine(n, 1e-4), grad_norm=norms)


def by_length(generator: Generator) -> Columns:
    """Rows sorted into batches of like lengths: long ones are easier, and come in groups."""
    n = 600
    steps = np.arange(n, dtype=float)
    groups = np.repeat(generator.normal(0, 0.08, n // 4), 4)
    level = (1.3 + 0.9 * np.exp(-steps / 80)) * np.exp(groups)
    return columns(steps, loss=noisy(level, 0.08, generator), lr=warm_cosine(n, 1e-4))


def dropout(generator: Generator) -> Columns:
    """Much dropout: validation, in eval mode, lies below training."""
    n = 400
    steps = np.arange(n, dtype=float)
    level = 1.0 + 2.0 * np.exp(-steps / 70)
    validation = np.full(n, np.nan)
    validation[19::20] = 0.82 * level[19::20]
    return columns(steps, loss=noisy(level, 0.08, generator), val_loss=validation)


def binary(generator: Generator) -> Columns:
    """Two classes that are hard to tell apart: the loss ends not far below ln 2."""
    n = 500
    steps = np.arange(n, dtype=float)
    loss = noisy(0.58 + 0.12 * np.exp(-steps / 120), 0.06, generator)
    return columns(steps, loss=loss, lr=warm_cosine(n, 2e-5, 0.1))


HEALTHY: tuple[Callable[[Generator], Columns], ...] = (
    pretraining,
    lora_single_rows,
    lora_few_points,
    epoch_staircase,
    from_low_loss,
    step_decay,
    warm_restarts,
    cyclic_rate,
    warm_stable_decay,
    by_heart,
    a_file_of_its_own,
    regression,
    by_epoch,
    mixed_precision,
    by_length,
    dropout,
    binary,
)
