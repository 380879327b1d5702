"""What a model returns, in whatever form: which part of it are the logits, and with others instead.

A model returns a tensor, a tuple, a named tuple, a mapping or an object with `logits`.
"""

from collections.abc import Mapping
from typing import Any

import torch


def logits_of(outputs: Any) -> torch.Tensor:
    """Of what a model returns, the logits. Raises ValueError when there is no tensor."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping) and isinstance(outputs.get("logits"), torch.Tensor):
        named: torch.Tensor = outputs["logits"]
        return named
    if isinstance(getattr(outputs, "logits", None), torch.Tensor):
        return outputs.logits  # type: ignore[no-any-return]
    if isinstance(outputs, tuple | list):
        for one in outputs:
            if isinstance(one, torch.Tensor) and one.ndim:
                return one
    raise ValueError("the model returns no logits that could be found")


def with_logits(outputs: Any, logits: torch.Tensor) -> Any:
    """What a model returns, with other logits; changed in place where it is no tuple."""
    if isinstance(outputs, torch.Tensor):
        return logits
    if isinstance(outputs, Mapping):
        outputs["logits"] = logits  # type: ignore[index]
        return outputs
    if hasattr(outputs, "logits"):
        if hasattr(outputs, "_replace"):  # a named tuple
            return outputs._replace(logits=logits)
        outputs.logits = logits
        return outputs
    at = next(i for i, one in enumerate(outputs) if isinstance(one, torch.Tensor) and one.ndim)
    return type(outputs)([logits if i == at else one for i, one in enumerate(outputs)])
