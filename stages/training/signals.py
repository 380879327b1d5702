"""SIGINT and SIGTERM ask a training to stop after the step under way, with a checkpoint."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequest:
    """`signal`: the number of the signal that came, or None."""

    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after SIGTERM, as shells have it."""
        assert self.signal is not None
        return 128 + self.signal


@contextmanager
def catching_stop_signals() -> Iterator[StopRequest]:
    """Turn both signals into a request; a second one of the same kind ends the process at once."""
    request = StopRequest()

    def remember(number: int, frame: FrameType | None) -> None:
        request.signal = number
        signal.signal(number, previous[signal.Signals(number)])

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, remember)
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
