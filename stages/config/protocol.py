"""The protocol's own limits, for what judges without a project: conf/gates/protocol.yaml.

It stands beside the code in a clone, and goes with it into a wheel.
"""

from pathlib import Path
from typing import Any

import msgspec

from .errors import UserError
from .load import flatten, read_yaml
from .schema import Gates

PACKAGE = Path(__file__).parent.parent
PROTOCOL = Path("conf/gates/protocol.yaml")


def read_protocol() -> tuple[Gates, dict[str, Any]]:
    """The limits, and the same by their dotted keys, as rules name them (`gates.overfit.max_loss`).

    Raises UserError when the file or a key is missing, or a value is wrong.
    """
    packed = PACKAGE / PROTOCOL
    path = packed if packed.is_file() else PACKAGE.parent / PROTOCOL
    tree = read_yaml(path)
    try:
        gates = msgspec.convert(tree, Gates)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}") from None
    return gates, dict(flatten(tree, "gates."))
