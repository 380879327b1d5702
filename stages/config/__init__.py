"""params.yaml at the door: a schema of every key, and a loader that gives a stage only its own."""

from .errors import Refusal, UserError
from .load import declared_values, load_params, parse_params, read_yaml
from .schema import Params

__all__ = [
    "Params",
    "Refusal",
    "UserError",
    "declared_values",
    "load_params",
    "parse_params",
    "read_yaml",
]
