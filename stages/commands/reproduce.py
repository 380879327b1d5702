"""Does a revision give the same bits again? If not, where does it part, and why?

Checks the revision out beside the work tree, brings its data (and nothing that was computed),
compares the environment with the recorded one, runs gates and training again, and compares every
output with what dvc.lock and the committed files of the revision record. Writes nothing but what
DVC keeps below .dvc/tmp; the copy is removed unless it is to be kept. With --venv all of it runs in
an environment that holds what the revision's requirements.lock pins, kept below the user's cache.
Exit code: 0 the same bits, 1 not, 2 it could not be told.

    holdshort reproduce REV [--steps K] [--keep] [--venv]
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..config import UserError
from ..provenance.drift import Drift, compare, compare_environment, promise
from ..provenance.environment import Environment, compute_environment, package_versions
from ..report.terminal import console
from ..revisions.comparison import (
    TRAINING,
    Comparison,
    compare_records,
    compare_stages,
    requirements,
)
from ..revisions.environments import environment_in, installed
from ..revisions.printing import print_comparison, print_drifts
from ..revisions.record import LOCK, Record, in_order, outputs
from ..revisions.scratch import (
    HERE,
    bring_inputs,
    cloned,
    forget_results,
    run_here,
    run_stages,
)
from ..revisions.training import TELEMETRY, first_step

NAMES = ("recorded", "computed")
FIRST_STEPS = "stages/first_steps.py"
NEW_TELEMETRY = Path("reports/first_steps/telemetry.csv")


def recorded_run(revision: str) -> Record:
    """What a revision records. Raises UserError when that is nothing, or perhaps not what is meant.

    HEAD is refused while the dvc.lock of the work tree is another.
    """
    record = Record.of_run(revision)
    here = Path(LOCK).read_bytes() if Path(LOCK).is_file() else None
    if revision in ("HEAD", "@") and here != record.read(LOCK):
        raise UserError(
            f"the {LOCK} here is not the one that HEAD records; commit the run that you mean, or "
            "name its commit"
        )
    return record


def refuse_short(record: Record, steps: int) -> str:
    """The recorded telemetry. Raises UserError when first steps cannot be held against it."""
    if TRAINING not in record.lock:
        raise UserError(f"{record.name} records no training; leave out --steps")
    if not record.fs.exists(FIRST_STEPS):
        raise UserError(
            f"{record.name} has no {FIRST_STEPS}, so its training only runs as a whole; leave out "
            "--steps"
        )
    telemetry = record.read(TELEMETRY)
    if telemetry is None:
        raise UserError(
            f"{TELEMETRY} of {record.name} is not in DVC's cache and cannot be had from a remote; "
            "bring it with `dvc fetch --all-commits`, or leave out --steps"
        )
    taken = len(telemetry.decode().splitlines()) - 1
    if steps > taken:
        raise UserError(
            f"{record.name} took {taken} training steps, not {steps}; take --steps {taken}"
        )
    return telemetry.decode()


def print_environment(
    record: Record, ask: Callable[[str, str, int], Environment | None] = compute_environment
) -> None:
    """What computes here otherwise than there, and what that means for the bits.

    ask: the binding environment of a device, a precision and a number of threads.
    """
    there = record.part("environment")
    if not {"device", "precision", "cpu_threads"} <= there.keys():
        console.print("environment: none is recorded that can be read, so it is not compared")
        return
    here = ask(there["device"], there["precision"], there["cpu_threads"])
    if here is None:
        console.print("environment: not known before it computes; its record is compared then")
        return
    drifts = list(compare_environment(there, here))
    console.print(f"environment: {'differs' if drifts else 'as recorded'}; {promise(drifts)}")
    print_drifts(drifts, "recorded", "here")


def print_other_versions(record: Record) -> None:
    """Packages that are installed here in another version than the revision pins."""
    pins = requirements(record)
    found = package_versions(tuple(pins))
    here = {name: version for name, version in found.items() if version is not None}
    drifts = list(compare("requirement", {name: pins[name] for name in here}, here, "nothing"))
    if drifts:
        console.print(
            f"other packages are installed than {record.name} pins; --venv installs those that it "
            "pins, in an environment of their own:"
        )
        print_drifts(drifts, "pinned", "here")


@contextmanager
def prepared(record: Record, project: Path, venv: bool) -> Iterator[Path]:
    """Python of the environment in which the revision is to run, which is compared first."""
    if venv:
        with installed(record, project) as python:
            print_environment(record, partial(environment_in, python, project))
            yield python
    else:
        print_environment(record)
        print_other_versions(record)
        yield HERE


def first_steps(project: Path, python: Path, telemetry: str, steps: int) -> Drift | None:
    """Take the first steps of a training that was cleared; where they part from the record.

    Raises UserError when they could not be taken.
    """
    code, _ = run_here(project, python, "-m", "stages.first_steps", str(steps))
    if code:
        raise UserError(f"the first steps could not be taken (exit code {code}); see above")
    return first_step(telemetry, (project / NEW_TELEMETRY).read_text(encoding="utf-8"), steps)


def print_same(record: Record, stages: Sequence[str], steps: int | None) -> None:
    number = sum(len(outputs(record.lock, stage)) for stage in stages)
    taken = "" if steps is None else f", and the first {steps} training steps,"
    console.print(
        f"the same bits: {number} outputs of {len(stages)} stages{taken} are those that "
        f"{record.name} records",
        style="green",
    )


def print_difference(stages: Sequence[str], outs: Sequence[Drift], found: Comparison) -> None:
    """The first stage that differs and its files; why, cause before effect."""
    first, *others = stages
    also = f" (then {', '.join(others)})" if others else ""
    text = f"not the same bits: {first} is the first stage that differs{also}"
    console.print(text, style="red")
    print_drifts(outs, *NAMES)
    if not found.causes:
        console.print(
            "data, params, code and environment are those of the record: something computes here "
            "that nothing pins"
        )
    print_comparison(found, *NAMES)


def judge(record: Record, now: Record, stages: Sequence[str], step: Drift | None) -> bool:
    """Compare what was computed with what is recorded, and say what differs. True: nothing does.

    step: where first steps part from the record.
    """
    differing, informing = compare_stages(record, now, stages)
    for drift in informing:
        console.print(f"{drift.name} differs in what only informs (commit, machine)")
    if step is not None:
        differing.setdefault(TRAINING, [step])
    if not differing:
        return True
    found = compare_records(record, now)
    if step is not None:
        found.effects.append(step)
    print_difference(list(differing), next(iter(differing.values())), found)
    return False


def run(revision: str, steps: int | None, keep: bool, venv: bool = False) -> int:
    """Exit code: 0 the same bits, 1 not."""
    record = recorded_run(revision)
    telemetry = None if steps is None else refuse_short(record, steps)
    stages = [name for name in in_order(record.lock) if steps is None or name != TRAINING]
    with cloned(record, keep) as project, prepared(record, project, venv) as python:
        bring_inputs(record, project)
        forget_results(record, project)
        refused = run_stages(project, stages, python)
        step = None
        if steps is not None and telemetry is not None and refused is None:
            step = first_steps(project, python, telemetry, steps)
        now = Record.of_directory(project, "what was computed", record.commit)
        if refused is not None:
            console.print(f"{refused} refuses this run; what it printed says why")
        same = judge(record, now, stages, step)
        if keep:
            console.print(f"kept in {project}")
    if same and refused is None:
        print_same(record, stages, steps)
        return 0
    return 1
