"""What did a gate find? The verdict, what it is bound to, and its files.

gates/<stage>.json holds the verdict, metrics/<stage>.json the flat numbers for DVC's tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..config.errors import UserError
from ..config.load import declared_values
from ..provenance.code import code_sha256
from ..provenance.environment import Environment
from ..provenance.records import digest_of as digest_of
from ..provenance.records import write_json
from .judging import Check, Status, passes

SCHEMA = 1
GATES = ("hash_data", "mask_report", "overfit_gate", "gradient_probe")


@dataclass(frozen=True)
class Verdict:
    """One gate's answer, bound to what it was made from. Paths are relative to the project."""

    gate: str
    schema: int
    status: Status
    passed: bool
    checks: list[Check]
    causes: list[str]
    not_covered: list[str]
    inputs: dict[str, str]
    outputs: dict[str, str]
    params: dict[str, Any]
    params_sha256: str
    code_sha256: str
    environment: Environment
    environment_sha256: str


@dataclass(frozen=True)
class Binding:
    """What a gate's verdict will be bound to, captured before the gate does its work.

    params: every value that the gate declares, by its dotted key; its limits are among them.
    """

    gate: str
    params: dict[str, Any]
    code_sha256: str
    environment: Environment


def bind(gate: str, environment: Environment) -> Binding:
    """Capture params.yaml and the code of `gate` as they are now."""
    return Binding(gate, declared_values(gate), code_sha256(gate), environment)


def make_verdict(
    binding: Binding,
    status: Status,
    checks: Sequence[Check] = (),
    *,
    causes: Sequence[str] = (),
    not_covered: Sequence[str] = (),
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> Verdict:
    """The verdict of `status` and `checks`, bound to what it was made from."""
    return Verdict(
        gate=binding.gate,
        schema=SCHEMA,
        status=status,
        passed=passes(status),
        checks=list(checks),
        causes=list(causes),
        not_covered=list(not_covered),
        inputs=dict(sorted((inputs or {}).items())),
        outputs=dict(sorted((outputs or {}).items())),
        params=binding.params,
        params_sha256=digest_of(binding.params),
        code_sha256=binding.code_sha256,
        environment=binding.environment,
        environment_sha256=digest_of(binding.environment),
    )


def blocked_verdict(binding: Binding, upstream: str) -> Verdict:
    """The verdict of a gate that did no work because the gate before it did not pass."""
    return make_verdict(
        binding,
        "blocked",
        causes=[f"'{upstream}' did not pass: see reports/{upstream}/index.html"],
        not_covered=["everything: the gate did no work"],
    )


def verdict_path(gate: str) -> Path:
    return Path("gates") / f"{gate}.json"


def write_verdict(verdict: Verdict) -> None:
    write_json(verdict_path(verdict.gate), asdict(verdict))


def read_verdict(gate: str) -> Verdict:
    """Raises UserError when the verdict is missing or is not one."""
    path = verdict_path(gate)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Verdict)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run `dvc repro {gate}`") from None
    except (OSError, RecursionError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise UserError(
            f"{path} is not a verdict ({error}); run `dvc repro -f -s {gate}` to measure it again"
        ) from None
