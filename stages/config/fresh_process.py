"""Runs that share nothing with this process, so that equal bits mean something."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def in_fresh_processes(
    work: Callable[[Argument], Result], arguments: Sequence[Argument], *, at_once: int = 1
) -> list[Result]:
    """`work` of each argument in a new interpreter of its own, with this environment.

    One after the other unless told otherwise: they share the cores.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=context, max_tasks_per_child=1) as pool:
        return list(pool.map(work, arguments))
