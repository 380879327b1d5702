"""A chat template is code from outside: sandboxed, it may still fail in any way, or never end."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ..config.errors import UserError
from .conversation import Message

SECONDS = 5.0
"""Of computing, for one conversation, which takes some microseconds."""
SCAFFOLD_CHARACTERS = 1_000_000
TIMES_AS_LONG = 100


class TemplateError(ValueError):
    """The chat template refuses a conversation; the text is the template's own reason."""


class _TooSlow(BaseException):
    """Of no kind that anybody catches."""


class TemplateAtWork:
    """Around every call of the template of a tokenizer; what it raises becomes a TemplateError.

    One that does not end within SECONDS raises UserError: by SIGVTALRM, so in the main thread
    alone, and where nobody else has a use for that signal. Time in which the process is halted, or
    waits for its turn, does not count.

    directory: of the tokenizer, for the sentence.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._armed = directory, False
        self._may_interrupt = _is_main_thread() and _take_alarm()

    def __enter__(self) -> None:
        if self._may_interrupt and _is_main_thread():
            self._armed = True
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._armed:
            self._armed = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if isinstance(error, _TooSlow):
            raise UserError(
                f"the chat template of the tokenizer in {self._directory} did not end within "
                f"{SECONDS:g} s for one conversation; mend the loop in it"
            ) from None
        if isinstance(error, Exception):
            reason = " ".join(str(error).split()) or type(error).__name__
            raise TemplateError(reason) from None

    def refuse_endless(self, text: str, messages: Sequence[Message], tools: Any) -> None:
        """Raise UserError where a template writes far more than it was given."""
        if len(text) <= SCAFFOLD_CHARACTERS:
            return
        given = len(repr((messages, tools)))
        if len(text) > SCAFFOLD_CHARACTERS + TIMES_AS_LONG * given:
            raise UserError(
                f"the chat template of the tokenizer in {self._directory} writes {len(text)} "
                f"characters for a conversation of {given}; mend it"
            )


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _take_alarm() -> bool:
    if signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL:
        signal.signal(signal.SIGVTALRM, _interrupt)
    return signal.getsignal(signal.SIGVTALRM) is _interrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _TooSlow
