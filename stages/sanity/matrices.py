"""Which modules multiply their input by a matrix."""

from typing import Any

from torch import nn

MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def last_matrix(model: nn.Module) -> Any:
    """The last module with a matrix, in the order of definition: usually the head."""
    found = [m for m in model.modules() if isinstance(m, MATRICES)]
    return found[-1] if found else None
