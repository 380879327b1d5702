"""A file that one process holds at a time, and that is let go when the process ends, however."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def holding(path: Path, busy: Exception) -> Iterator[None]:
    """Hold the file for this process. Raises `busy` when another holds it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        yield
