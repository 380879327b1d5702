"""With which probability does a model drop out what it computes?"""

from collections.abc import Iterator

from torch import nn

PROBABILITIES = ("dropout", "attention_dropout")
"""Under these names modules keep the probability of the functional dropout that they apply."""


def dropout_probabilities(model: nn.Module) -> Iterator[tuple[str, float]]:
    """(module, or module and attribute; probability) of every module that drops out."""
    for name, module in model.named_modules():
        p = getattr(module, "p", None)
        if "drop" in type(module).__name__.lower() and isinstance(p, int | float):
            yield name, float(p)
        for attribute in PROBABILITIES:
            value = getattr(module, attribute, None)
            if isinstance(value, float):
                yield f"{name}.{attribute}".removeprefix("."), value
