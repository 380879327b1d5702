"""Do the labels have anything to do with the inputs? Told by classifiers that are nothing special.

A ridge regression on the inputs, one on random nonlinear features of them, and nearest neighbours
predict held-out labels. Shuffled labels lower the training loss of a large model just as well, so
no loss of a single run shows them; that nothing at all can be predicted does.
"""

from dataclasses import dataclass

import torch

from .batches import IGNORE_INDEX, Batch, input_of, is_integer, labels_of
from .tasks import Task

FEATURES = 256
"""Most features of a row; wider inputs are projected at random."""
ROWS = 1500
FOLDS = 4
RIDGE = 1.0
NEIGHBOURS = 15
AGREE = 12


@dataclass(frozen=True)
class Table:
    """Features float64 [n, F]; labels [n], int64 for classes, else float64."""

    features: torch.Tensor
    labels: torch.Tensor
    classes: bool


@dataclass(frozen=True)
class Information:
    """How much held-out labels can be told from inputs.

    score: accuracy, or correlation; chance: the score of guessing; sigmas: their distance in
    standard errors, of the best classifier.
    """

    score: float
    chance: float
    sigmas: float
    n: int


def make_table(batches: list[Batch], task: Task | None) -> Table | None:
    """Rows (for tagging, positions) as features; None where inputs or labels do not fit."""
    features, labels = [], []
    for batch in batches:
        x, y = input_of(batch), labels_of(batch)
        if x is None or y is None or len(x) != len(y):
            return None
        x, y = x.detach().cpu(), y.detach().cpu()
        if task == "tagging" and x.ndim == 2 and y.shape == x.shape and is_integer(x):
            features.append(_neighbours_in_row(x))
            labels.append(y.flatten())
        elif task == "tagging" and x.ndim == 3 and y.shape == x.shape[:2]:
            features.append(x.reshape(-1, x.shape[-1]).double())
            labels.append(y.flatten())
        elif task in ("classification", "binary", "regression") and y.numel() == len(y):
            features.append(x if is_integer(x) else x.reshape(len(x), -1).double())
            labels.append(y.reshape(-1))
        else:
            return None
    if not features or len({f.shape[1:] for f in features}) > 1:
        return None
    x, y = torch.cat(features), torch.cat(labels)
    known = y != IGNORE_INDEX
    x, y = x[known], y[known]
    classes = task != "regression"
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=generator)[:ROWS]
    x, y = x[order], y[order]
    if is_integer(x):
        x = _bag_of_tokens(x)
    return Table(_narrow(x), y.long() if classes else y.double(), classes)


def _neighbours_in_row(ids: torch.Tensor) -> torch.Tensor:
    """Ids [B, T] -> [B * T, 3]: of each position the id before, its own and the next."""
    before, after = ids.roll(1, 1), ids.roll(-1, 1)
    return torch.stack([before, ids, after], -1).reshape(-1, 3)


def _bag_of_tokens(ids: torch.Tensor) -> torch.Tensor:
    """Ids [n, T] -> counts of ids, and one-hot first, middle and last tokens, hashed."""
    ids = ids.reshape(len(ids), -1)
    width = min(int(ids.max()) + 1, FEATURES // 4)
    hashed = ids % width
    counts = torch.zeros(len(ids), width, dtype=torch.float64)
    counts.scatter_add_(1, hashed, torch.ones_like(hashed, dtype=torch.float64))
    places = [0, ids.shape[1] // 2, ids.shape[1] - 1]
    singles = [torch.nn.functional.one_hot(hashed[:, at], width).double() for at in places]
    return torch.cat([counts, *singles], 1)


def _narrow(x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    if x.shape[1] > FEATURES:
        generator = torch.Generator().manual_seed(1)
        projection = torch.randn(x.shape[1], FEATURES, generator=generator, dtype=torch.float64)
        x = x @ projection / x.shape[1] ** 0.5
    return x.nan_to_num()


def information(table: Table) -> Information:
    """Cross-validated, the best of the classifiers."""
    n = len(table.features)
    folds = torch.arange(n) % FOLDS
    found = []
    for predict in PREDICTORS:
        predicted = torch.zeros(n, dtype=torch.float64)
        for fold in range(FOLDS):
            train, test = folds != fold, folds == fold
            predicted[test] = predict(
                table.features[train], table.labels[train], table.features[test], table.classes
            )
        found.append(score(predicted, table.labels, table.classes))
    return max(found, key=lambda one: one.sigmas)


def transfer(train: Table, held_out: Table) -> Information:
    """How well the held-out labels follow from what the training rows teach."""
    told = [
        predict(train.features, train.labels, held_out.features, train.classes)
        for predict in PREDICTORS
    ]
    found = [score(predicted, held_out.labels, train.classes) for predicted in told]
    return max(found, key=lambda one: one.sigmas)


def score(predicted: torch.Tensor, labels: torch.Tensor, classes: bool) -> Information:
    """Accuracy against that of guessing, or correlation. Both [n], float64; labels as in Table."""
    n = len(predicted)
    if classes:
        kind = predicted.long()
        right = float((kind == labels).double().mean())
        kinds = torch.unique(torch.cat([kind, labels]))
        shares = ((kind == c).double().mean() * (labels == c).double().mean() for c in kinds)
        chance = float(sum(shares))
        error = max((chance * (1 - chance) / n) ** 0.5, 1e-9)
        return Information(right, chance, (right - chance) / error, n)
    a, b = predicted - predicted.mean(), labels - labels.mean()
    correlation = float(a @ b / (a.norm() * b.norm()).clamp_min(1e-12))
    return Information(correlation, 0.0, correlation * n**0.5, n)


def _standardised(train: torch.Tensor, test: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = train.mean(0), train.std(0).clamp_min(1e-9)
    return (train - mean) / std, (test - mean) / std


def _ridge(x: torch.Tensor, y: torch.Tensor, test: torch.Tensor, classes: bool) -> torch.Tensor:
    x, test = _standardised(x, test)
    one = torch.ones(len(x), 1, dtype=torch.float64)
    design = torch.cat([x, one], 1)
    kinds = torch.unique(y) if classes else None
    target = (y[:, None] == kinds[None]).double() if kinds is not None else y[:, None]
    gram = design.T @ design + RIDGE * len(x) ** 0.5 * torch.eye(design.shape[1]).double()
    weights = torch.linalg.solve(gram, design.T @ target)
    scores = torch.cat([test, torch.ones(len(test), 1, dtype=torch.float64)], 1) @ weights
    predicted: torch.Tensor = scores[:, 0] if kinds is None else kinds[scores.argmax(1)].double()
    return predicted


def _random_features(
    x: torch.Tensor, y: torch.Tensor, test: torch.Tensor, classes: bool
) -> torch.Tensor:
    """Ridge on products and rectified projections: sees what no linear classifier does."""
    x, test = _standardised(x, test)
    generator = torch.Generator().manual_seed(2)
    width = x.shape[1]
    projection = torch.randn(width, FEATURES, generator=generator, dtype=torch.float64)
    shift = torch.randn(FEATURES, generator=generator, dtype=torch.float64)

    def lift(z: torch.Tensor) -> torch.Tensor:
        rectified: torch.Tensor = (z @ projection / width**0.5 + shift).relu()
        if width > 16:
            return rectified
        products = (z[:, :, None] * z[:, None, :]).reshape(len(z), -1)
        return torch.cat([rectified, products], 1)

    return _ridge(lift(x), y, lift(test), classes)


def _nearest(x: torch.Tensor, y: torch.Tensor, test: torch.Tensor, classes: bool) -> torch.Tensor:
    x, test = _standardised(x, test)
    near = torch.cdist(test, x).topk(min(5, len(x)), largest=False).indices
    votes = y[near]
    return votes.mode(1).values.double() if classes else votes.double().mean(1)


PREDICTORS = (_ridge, _random_features, _nearest)


def disagreeing_share(table: Table) -> tuple[float, float]:
    """(share of rows among like-labelled neighbours, share of these with another label)."""
    n = len(table.features)
    x, _ = _standardised(table.features, table.features[:1])
    distances = torch.cdist(x, x)
    distances.fill_diagonal_(float("inf"))
    near = distances.topk(min(NEIGHBOURS, n - 1), largest=False).indices
    votes = table.labels[near]
    winner = votes.mode(1).values
    agree = (votes == winner[:, None]).sum(1) >= AGREE
    if not bool(agree.any()):
        return 0.0, 0.0
    other = (winner != table.labels) & agree
    return float(agree.double().mean()), float(other.sum() / agree.sum())
