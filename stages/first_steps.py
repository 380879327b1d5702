"""Does a training begin as it did? Its first steps, exactly as full_train takes them, and no more.

Reads what full_train reads, and is authorised as it is. Writes the telemetry of the steps into
reports/first_steps/; no checkpoint and no model. `holdshort reproduce --steps` runs it.

    python -m stages.first_steps STEPS
"""

from .config.launch import is_rank, pin_process, run_stage

pin_process(__name__, "full_train")

import sys
from functools import partial

from .config import Params
from .full_train import authorise_here, write_telemetry
from .report.page import report_directory
from .report.terminal import console
from .training.launcher import run_ranks
from .training.parallel import join
from .training.ranks import on_first_rank, rank
from .training.run import start_run, take_step


def main(params: Params) -> None:
    asked = int(sys.argv[1])
    if params.train.num_processes > 1 and not is_rank():
        authorise_here(params)
        ranks, device = params.train.num_processes, params.run.device
        sys.exit(run_ranks("first_steps", ranks, device, str(asked)))
    team = join(params.train, params.run)
    console.quiet = rank() > 0
    on_first_rank(partial(authorise_here, params))
    run = start_run(params, team)
    while run.done < min(asked, run.steps):
        run.telemetry.append(take_step(run, params))
    if rank() == 0:
        write_telemetry(run, report_directory("first_steps") / "telemetry.csv")
    console.print(f"computed {run.done} of {run.steps} steps")


if __name__ == "__main__":
    run_stage("full_train", main)
