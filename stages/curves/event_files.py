"""Scalars from the event files of TensorBoard, read by the library that TensorBoard itself uses."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config.errors import UserError, reading
from .columns import Rows

EVENT_FILES = "*tfevents*"
FRAME = 16
"""Bytes of a record beside its own: its length, and a checksum of each."""
VALIDATION_DIRECTORIES = ("validation", "val", "valid", "eval", "test")
"""Keras writes its validation below such a directory, under the names of the training."""


def read_event_files(path: Path) -> Rows:
    """All scalars of one run: a file, or the directory that holds the run's files.

    Raises UserError without the tensorboard package, and when `path` holds several runs.
    """
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        raise UserError(
            f"{path}: event files are read by the package tensorboard, which is not installed; run "
            "`pip install tensorboard`"
        ) from None

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    remarks: list[str] = []
    for prefix, run in runs_of(path).items():
        with reading(run, "event files of TensorBoard", "copy them again"):
            remarks += broken_off(run)
            events = event_accumulator.EventAccumulator(
                str(run),
                size_guidance=dict.fromkeys(event_accumulator.DEFAULT_SIZE_GUIDANCE, 0),
                purge_orphaned_data=False,  # what a resumed run logged again is told apart later
            )
            events.Reload()
            found = list(scalars(events))
        for tag, logged in found:
            attempt, before = 0, -1
            for step, value in logged:
                attempt += step <= before
                before = step
                rows.setdefault((attempt, step), {"step": step})[f"{prefix}{tag}"] = value
    if not rows:
        why = f" ({remarks[0]})" if remarks else ""
        raise UserError(f"{path} holds no scalars{why}; name the directory that the run logged to")
    return Rows(
        "event files of TensorBoard",
        [(f"{path} step {step}", rows[attempt, step]) for attempt, step in sorted(rows)],
        tuple(remarks),
    )


def broken_off(run: Path) -> list[str]:
    """The files that TensorBoard reads a part of only: it stops at the first damaged record."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    remarks = []
    for file in [run] if run.is_file() else sorted(run.glob(EVENT_FILES)):
        size = file.stat().st_size
        read = sum(len(record) + FRAME for record in RawEventFileLoader(str(file)).Load())
        if read < size:
            remarks.append(
                f"{file.name} is damaged or broken off after {read} of {size} bytes; the rest was "
                "left out"
            )
    return remarks


def scalars(events: Any) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Tag and its (step, value) in the order logged; TensorFlow 2 logs tensors of one number."""
    from tensorboard.util import tensor_util

    tags = events.Tags()
    for tag in sorted(tags["scalars"]):
        yield tag, [(event.step, float(event.value)) for event in events.Scalars(tag)]
    for tag in sorted(tags["tensors"]):
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            found = events.Tensors(tag)
            values = (float(tensor_util.make_ndarray(one.tensor_proto)) for one in found)
            yield tag, [(one.step, value) for one, value in zip(found, values, strict=True)]


def runs_of(path: Path) -> Mapping[str, Path]:
    """Prefix of names -> directory (or file) of event files that belong to one run."""
    if path.is_file():
        return {"": path}
    directories = sorted({file.parent for file in path.rglob(EVENT_FILES)})
    validation = [one for one in directories if one.name in VALIDATION_DIRECTORIES]
    training = [one for one in directories if one not in validation and holds_losses(one, path)]
    if len(training) > 1:
        names = ", ".join(one.relative_to(path).as_posix() for one in training[:5])
        raise UserError(f"{path} holds {len(training)} runs ({names}); name one of them")
    if training and validation:
        return {"": training[0], "val_": validation[0]}
    return {"": (training or directories)[0]}


def holds_losses(directory: Path, root: Path) -> bool:
    """Whether it is a run of its own: `add_hparams` and `add_scalars` write below the run's own."""
    above = [one for one in directory.parents if one == root or root in one.parents]
    return not any(any(one.glob(EVENT_FILES)) for one in above)
