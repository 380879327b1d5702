"""What the probes of gates 2 and 3 cost beside the training that they look at, in CPU seconds.

Probes are all that the gates do in their own process but the steps of the overfit run: the initial
loss, the digests, the whole run on blanked inputs, and gate 3 with its watched steps. Left out are
the reruns and the resume check, which train again in fresh processes.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.config import Params, parse_params, read_yaml
from stages.config.load import PARAMS_FILE
from stages.probes.gradients import run_gradient_probe
from stages.probes.overfit import run_overfit
from stages.training.setup import Parts

from ..project import Project
from .training import BASE_MODEL, SHORT_ROWS, keep_base_model, params_of, tokenised

PAIRS = 3


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Of all threads of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def probe_once(params: Params) -> tuple[float, float]:
    """CPU seconds of (the steps of the overfit run, the probes)."""
    parts, steps = Parts.of(params), []

    def timed(*arguments: Any, **keys: Any) -> Any:
        began = time.process_time()
        result = parts.step(*arguments, **keys)
        steps.append(time.process_time() - began)
        return result

    watched = replace(parts, step=timed)
    gate_2 = cpu_seconds(lambda: run_overfit(params, params.run.seed, parts=watched))
    taken = len(steps)
    overfit = sum(steps)
    blanked = cpu_seconds(
        lambda: run_overfit(params, params.run.seed, blank=True, steps=taken, parts=parts)
    )
    gate_3 = cpu_seconds(lambda: run_gradient_probe(params, parts))
    return overfit, gate_2 - overfit + blanked + gate_3


def probe(project: Project, times: int) -> list[tuple[float, float]]:
    with params_of(project):
        params = parse_params(read_yaml(PARAMS_FILE))
        return [probe_once(params) for _ in range(times)]


def bench_probes(scratch: Path) -> dict[str, float | str]:
    """probes_seconds: of the probes on tiny_gpt.

    probes_vs_overfit: on SmolLM2-135M with LoRA, of the probes over the steps of the overfit run.
    """
    tiny = tokenised(scratch / "tiny")
    found = {"probes_seconds": statistics.median(cost for _, cost in probe(tiny, PAIRS))}
    if missing := keep_base_model():
        return {**found, "probes_vs_overfit": missing}
    overrides = (*BASE_MODEL, "data.validation_fraction=0.2")
    base = tokenised(scratch / "base", *overrides, short_rows=SHORT_ROWS)
    ratios = [cost / overfit for overfit, cost in probe(base, PAIRS)]
    return {**found, "probes_vs_overfit": statistics.median(ratios)}
