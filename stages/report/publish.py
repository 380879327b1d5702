"""How a gate ends: its page, its numbers, its verdict, and the verdict on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..provenance.records import write_metrics
from ..verdict.record import Binding, Verdict, blocked_verdict, write_verdict
from .page import Section, write_page
from .terminal import print_verdict
from .token_view import TokenView


def publish(
    verdict: Verdict,
    documentation: str | None,
    *,
    numbers: Mapping[str, Any] | None = None,
    sections: Sequence[Section] = (),
    conversations: Sequence[TokenView] = (),
) -> None:
    """Write reports/, metrics/ and gates/ of a gate, and print the verdict.

    documentation: the stage's docstring; numbers: for metrics/<stage>.json, beside `passed`.
    """
    write_page(
        verdict.gate,
        documentation,
        verdict=verdict,
        sections=sections,
        conversations=conversations,
    )
    write_metrics(verdict.gate, {"passed": verdict.passed, **(numbers or {})})
    write_verdict(verdict)
    print_verdict(verdict)


def publish_blocked(binding: Binding, documentation: str | None, upstream: str) -> None:
    """Record that a gate did no work because `upstream` did not pass."""
    publish(blocked_verdict(binding, upstream), documentation)
