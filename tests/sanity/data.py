"""Small data that can be learned: rows with labels that follow from them."""

import torch

Rows = tuple[torch.Tensor, torch.Tensor]
VOCAB, LENGTH = 40, 16


def points(n: int, kinds: int = 4, seed: int = 0) -> Rows:
    """Features [n, 12] and the class of the nearest of some directions."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=generator)
    directions = torch.randn(12, kinds, generator=torch.Generator().manual_seed(99))
    return x, (x @ directions).argmax(1)


def curve(n: int, seed: int = 0) -> Rows:
    """Features [n, 12] and one number of unit size [n]."""
    x, _ = points(n, seed=seed)
    weights = torch.randn(12, generator=torch.Generator().manual_seed(98))
    return x, torch.tanh(x @ weights / 2) + 0.3 * x[:, 0]


def pictures(n: int, kinds: int = 4, seed: int = 0) -> Rows:
    """Images [n, 1, 8, 8] of noisy prototypes, mean about 0."""
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(kinds, 1, 8, 8, generator=torch.Generator().manual_seed(97))
    y = torch.randint(kinds, (n,), generator=generator)
    return prototypes[y] + 0.5 * torch.randn(n, 1, 8, 8, generator=generator), y


def texts(n: int, kinds: int = 4, seed: int = 0) -> Rows:
    """Ids [n, LENGTH]; the class is of which quarter of the vocabulary there is most."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(kinds, (n,), generator=generator)
    part = VOCAB // kinds
    own = torch.randint(part, (n, LENGTH), generator=generator) + y[:, None] * part
    noise = torch.randint(1, VOCAB, (n, LENGTH), generator=generator)
    keep = torch.rand(n, LENGTH, generator=generator) < 0.5
    return torch.where(keep, own, noise).clamp_min(1), y


def tags(n: int, kinds: int = 3, seed: int = 0, padded: bool = True) -> Rows:
    """Ids [n, LENGTH] with a tag each; rows end in padding (id 0, tag -100)."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (n, LENGTH), generator=generator)
    y = (ids * 7 + 3) % 11 % kinds
    if padded:
        lengths = torch.randint(6, LENGTH + 1, (n, 1), generator=generator)
        beyond = torch.arange(LENGTH) >= lengths
        ids, y = ids.masked_fill(beyond, 0), y.masked_fill(beyond, -100)
    return ids, y


def sentences(n: int, seed: int = 0) -> torch.Tensor:
    """Ids [n, LENGTH] of a noisy grammar: most tokens follow from the one before."""
    generator = torch.Generator().manual_seed(seed)
    follows = torch.randperm(VOCAB - 3, generator=torch.Generator().manual_seed(96)) + 3
    ids = torch.randint(3, VOCAB, (n, LENGTH), generator=generator)
    for at in range(1, LENGTH):
        keep = torch.rand(n, generator=generator) < 0.8
        ids[:, at] = torch.where(keep, follows[ids[:, at - 1] - 3], ids[:, at])
    return ids
