"""What is different here from what a manifest records, and what does that mean for its promise?

Pure functions of two records. What decides the bits of a run makes it another run; what computes
can move its last bits; all else changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .environment import Environment, differences

Meaning = Literal["another run", "other bits", "nothing"]
PROMISES: dict[Meaning, str] = {
    "another run": "not comparable: this is another run",
    "other bits": "statistically equal results are expected, not the same bits",
    "nothing": "the same bits are expected",
}
"""From the worst to the best."""
MISSING = "(missing)"
ABSENT = "(not there then)"


@dataclass(frozen=True)
class Drift:
    """One thing that differs. kind: data, params, environment, ...; then, now: as text."""

    kind: str
    name: str
    then: str
    now: str
    meaning: Meaning


def compare(
    kind: str, then: Mapping[str, Any], now: Mapping[str, Any], meaning: Meaning
) -> Iterator[Drift]:
    """Every entry of two flat records that differs, in the order of names."""
    for name in sorted({*then, *now}):
        before, after = then.get(name, ABSENT), now.get(name, MISSING)
        if before != after:
            yield Drift(kind, name, str(before), str(after), meaning)


def compare_params(
    then: Mapping[str, Any], now: Mapping[str, Any], training: Iterable[str]
) -> Iterator[Drift]:
    """training: dotted keys, or groups of them, that full_train reads."""
    read = tuple(training)
    for drift in compare("params", then, now, "nothing"):
        decides = any(drift.name == key or drift.name.startswith(f"{key}.") for key in read)
        meaning: Meaning = "another run" if decides else "nothing"
        yield Drift(drift.kind, drift.name, drift.then, drift.now, meaning)


def compare_environment(then: Environment, now: Environment) -> Iterator[Drift]:
    for field, before, after in differences(then, now):
        yield Drift("environment", field, str(before), str(after), "other bits")


def compare_gates(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Drift]:
    """Status and measured values of the gates, each as a manifest has them, in their order."""
    for gate in {**then, **now}:
        old, new = (gates.get(gate, {"checks": {}}) for gates in (then, now))
        statuses = [{gate: facts["status"]} if "status" in facts else {} for facts in (old, new)]
        yield from compare("verdict", statuses[0], statuses[1], "another run")
        before, after = (
            {f"{gate}: {name}": value for name, value in facts["checks"].items()}
            for facts in (old, new)
        )
        yield from compare("check", before, after, "another run")


def compare_recorded(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Drift]:
    """Facts that bind nothing: driver, GPUs, CPU model, Python's patch version."""
    before, after = dict(then), dict(now)
    yield from compare("package", before.pop("packages"), after.pop("packages"), "nothing")
    yield from compare("machine", before, after, "nothing")


def promise(drifts: Iterable[Drift]) -> str:
    """What may be expected of this run here, by the worst of what differs."""
    found = {drift.meaning for drift in drifts}
    worst = [text for meaning, text in PROMISES.items() if meaning in found]
    return worst[0] if worst else PROMISES["nothing"]
