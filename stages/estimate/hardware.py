"""The machines on which a run can be budgeted: conf/hardware/, one file each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from ..config import UserError, read_yaml
from ..config.load import nearest
from ..config.schema import NonNegative, Positive

DIRECTORY = Path("conf/hardware")
GIB = 2**30


@dataclass(frozen=True)
class Tflops:
    """Peak of dense matrix products, in 10^12 operations a second, by run.precision."""

    fp32: Positive
    bf16: Positive
    fp16: Positive


@dataclass(frozen=True)
class Hardware:
    """memory_gib: of one device; usable_share: of it, for the tensors of a step; mfu: share of the
    peak that a training reaches; source: where the facts come from."""

    memory_gib: Positive
    usable_share: Annotated[float, msgspec.Meta(gt=0, le=1)]
    tflops: Tflops
    mfu: Annotated[float, msgspec.Meta(gt=0, le=1)]
    usd_per_hour: NonNegative
    source: str

    @property
    def usable_bytes(self) -> int:
        return int(self.memory_gib * self.usable_share * GIB)


def read_hardware(name: str) -> Hardware:
    """The entry that run.hardware names. Raises UserError for an unknown or a broken one."""
    known = sorted(path.stem for path in DIRECTORY.glob("*.yaml"))
    if name not in known:
        raise UserError(
            f"params.yaml: 'run.hardware' is {name!r}; {DIRECTORY}/ has {', '.join(known)}"
            f"{nearest(name, known)}"
        )
    path = DIRECTORY / f"{name}.yaml"
    try:
        return msgspec.convert(read_yaml(path), Hardware)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}") from None
