"""What computes? The facts of a machine on which the bits of a result depend, and those recorded.

Binding: package versions of what computes, Python's minor version, and for stages that compute with
torch also its build, the device, the CPU instruction set, the thread count and the precision. They
go into a verdict's `environment_sha256`: one made elsewhere does not clear a run here.
Recorded only: driver, number of GPUs, CPU model, Python's patch version.
"""

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from ..config.errors import UserError

PARSING_PACKAGES = ("msgspec", "numpy", "pyarrow")
AUDITING_PACKAGES = (*PARSING_PACKAGES, "ftfy", "rensa")
RENDERING_PACKAGES = (*PARSING_PACKAGES, "jinja2", "tokenizers", "transformers")
COMPUTING_PACKAGES = (
    *("accelerate", "bitsandbytes", "numpy", "peft", "safetensors", "torch", "transformers"),
)
TOOLS = ("dvc", "hydra-core")

Environment = dict[str, Any]


def package_versions(names: tuple[str, ...]) -> dict[str, str | None]:
    """Installed version of each package, without its local part; None when it is not installed."""
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def software_environment(packages: tuple[str, ...]) -> Environment:
    """Binding facts of a stage that computes without torch."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"python": python, "packages": package_versions(packages)}


def compute_environment(device: str, precision: str, cpu_threads: int) -> Environment:
    """Binding facts of a stage that computes with torch, as they are in this very process.

    Raises UserError when the device is not there.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "params.yaml: 'run.device' is cuda, but torch sees no GPU here; install the CUDA build "
            "of torch and its driver, or compose with run=cpu"
        )

    facts = software_environment(COMPUTING_PACKAGES)
    facts |= {
        "torch_build": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": device,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_threads": cpu_threads,
        "precision": precision,
    }
    return facts


def recorded_facts() -> Environment:
    """Facts that help a reader and bind nothing."""
    return {
        "python_version": platform.python_version(),
        "system": platform.system(),
        "cpu_model": _cpu_model(),
        "gpus": _gpus(),
        "driver": _driver(),
        "packages": package_versions(
            tuple(sorted({*AUDITING_PACKAGES, *RENDERING_PACKAGES, *COMPUTING_PACKAGES, *TOOLS}))
        ),
    }


def differences(made: Environment, here: Environment) -> list[tuple[str, Any, Any]]:
    """(field, value in the verdict, value here) of every binding fact that differs."""
    flat_made, flat_here = _flatten(made), _flatten(here)
    return [
        (field, flat_made.get(field), flat_here.get(field))
        for field in sorted({*flat_made, *flat_here})
        if flat_made.get(field) != flat_here.get(field)
    ]


def _flatten(facts: Environment) -> Environment:
    packages = facts.get("packages")
    if not isinstance(packages, dict):
        return facts
    flat = {f"packages.{name}": version for name, version in packages.items()}
    return {key: value for key, value in facts.items() if key != "packages"} | flat


def _cpu_model() -> str | None:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            names = (
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            )
            return next(names, None)
    except OSError:
        return None


def _nvidia_smi(field: str) -> list[str]:
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.split("\n")[:-1]


def _gpus() -> list[str]:
    return _nvidia_smi("name")


def _driver() -> str | None:
    return next(iter(_nvidia_smi("driver_version")), None)
