"""How a stage starts and ends: one pinned process, one exit code, one sentence on failure.

0 done, 1 refused or failed, 2 bad input. DVC itself turns every other than 0 into 255.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

from . import Params, Refusal, UserError, load_params

Result = TypeVar("Result")

SECONDS_FOR_RANK_0 = 2
"""All ranks find the same mistake at about the same time."""
SECONDS_FOR_ANOTHER_RANK = 6
"""A rank whose peer has ended fails too, in the middle of what they do together."""
PINNED_VARIABLES = (
    "PYTHONHASHSEED",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "CUBLAS_WORKSPACE_CONFIG",
)


def pin_process(module: str, stage: str) -> None:
    """Set what must be in the environment before Python and torch start, and start once again.

    A no-op unless `module` is "__main__": it stands above the heavy imports of a stage.
    """
    if module != "__main__":
        return
    restart_pinned(guarded(lambda: load_params(stage).run.cpu_threads))


def restart_pinned(threads: int) -> None:
    """Start this very command once again with the pinned variables, unless it has them."""
    wanted = pinned_environment(threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def pinned_environment(threads: int) -> dict[str, str]:
    """The variables that bits depend on, with the values that a process must start with."""
    return {
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # on a busy machine, threads that spin cost twenty times more
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def run_stage(stage: str, main: Callable[[Params], None]) -> NoReturn:
    """Load what `stage` declares of params.yaml, run `main` on it, and exit with its code."""
    try:
        guarded(lambda: main(load_params(stage)))
    except BaseException as ended:
        if is_rank():
            end_rank(ended)
        raise
    if is_rank():
        end_rank(None)
    sys.exit(0)


def is_rank() -> bool:
    """Was this process started as a rank of a training, by torchrun or by accelerate?"""
    return "LOCAL_RANK" in os.environ


def end_rank(ended: BaseException | None) -> NoReturn:
    """End a rank of a training at once: gloo's threads can wait for ever while Python takes leave.

    ended: what ended it, for the exit code; a traceback is printed for all but an exit.
    """
    code = 0
    if isinstance(ended, SystemExit):
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    elif ended is not None:
        traceback.print_exception(ended)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def guarded(work: Callable[[], Result]) -> Result:
    """Run `work`; a user's mistake, a refusal or a failing disk ends the process in a sentence.

    Of several ranks of a training, the one that failed first speaks: its launcher ends the others
    while they wait here.
    """
    try:
        return work()
    except UserError as error:
        message, code = str(error), 2
    except Refusal as refusal:
        message, code = str(refusal), 1
    except OSError as error:
        message, code = f"{error.filename or 'input or output'}: {error.strerror or error}", 2
    except KeyboardInterrupt:
        message, code = "interrupted", 130
    except Exception:
        if is_rank():
            time.sleep(SECONDS_FOR_ANOTHER_RANK)
        raise
    if os.environ.get("RANK", "0") != "0":
        time.sleep(SECONDS_FOR_RANK_0)
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
