"""Same bits again: threads, seeds and deterministic kernels, set before anything is computed.

Bits depend on the CPU's instruction set, the number of threads and the library build; see the
environment that each verdict records.
"""

import os
import random
from typing import Any

import numpy as np
import torch

from ..config.launch import PINNED_VARIABLES
from ..config.schema import Run


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # every device


def make_deterministic(run: Run) -> torch.device:
    """Pin what the bits depend on, seed all generators, and return the device.

    The variables that must be set before the process starts are asserted, not set: newer torch no
    longer raises when CUBLAS_WORKSPACE_CONFIG comes too late.
    """
    unset = [name for name in PINNED_VARIABLES if name not in os.environ]
    assert not unset, f"the process was started without {', '.join(unset)}"
    torch.set_num_threads(run.cpu_threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    seed_everything(run.seed)
    return torch.device(run.device)


def rng_state() -> dict[str, Any]:
    """Every generator's state, in types that torch.load reads with weights_only."""
    version, internal, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [torch.from_numpy(np.array(keys)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()  # of this process alone
    return state


def restore_rng_state(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy(), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
