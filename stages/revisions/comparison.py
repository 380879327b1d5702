"""Why do two records differ, and what came of it? Causes before effects, as they act on a run."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config.errors import UserError
from ..config.load import flatten
from ..provenance.code import normalised_source
from ..provenance.drift import (
    MISSING,
    Drift,
    Meaning,
    compare,
    compare_environment,
    compare_gates,
    compare_params,
    compare_recorded,
)
from ..provenance.records import SEAL
from ..verdict.clearance import MANIFEST
from .record import LOCK, Record, in_order, outputs, overlap, same_output, source_deps
from .rows import DATASET, compare_rows, read_rows
from .training import TELEMETRY, compare_weights, first_step

KINDS_OF_PARAMS = {
    "split": ("data.split_seed", "data.validation_fraction", "data.validation_path"),
    "labels": ("labels.",),
    "seed": ("run.seed",),
}
"""What params decide, by how their keys begin; all others are `params`."""
Files = Mapping[str, str | None]

TRAINING = "full_train"
CODE = ("stages", "conf")
REQUIREMENTS = "requirements.lock"
SHOWN_MANIFEST = (str(MANIFEST), "reports/manifest")


@dataclass(frozen=True)
class Comparison:
    """unknown: what could not be compared, and why."""

    causes: list[Drift]
    effects: list[Drift]
    unknown: list[str]


@dataclass(frozen=True)
class Pair:
    """Two records. unknown: gets what only one of them has."""

    then: Record
    now: Record
    unknown: list[str]

    def of(self, part: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """A part of both manifests; nothing of either where one has none."""
        old, new = self.then.part(part), self.now.part(part)
        if old and new:
            return old, new
        if old or new:
            lacking = self.now if old else self.then
            self.unknown.append(f"{part}: {lacking.name} records none that can be read")
        return {}, {}


def compare_records(then: Record, now: Record) -> Comparison:
    """Raises UserError when one of them is damaged."""
    unknown: list[str] = []
    try:
        causes = list(find_causes(then, now, unknown))
        effects = list(find_effects(then, now, unknown))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{LOCK} or {MANIFEST} of {then.name} or {now.name} is no record of this project "
            f"({error!r})"
        ) from None
    return Comparison(causes, effects, unknown)


def find_causes(then: Record, now: Record, unknown: list[str]) -> Iterator[Drift]:
    """Data, split, tokenizer, labels, params, code, environment, seed."""
    pair = Pair(then, now, unknown)
    yield from compare("data", *pair.of("data"), "another run")
    yield from find_rows(then, now, unknown)
    old, new = (record.params(common_stages(then, now)) for record in (then, now))
    params = by_kind(compare_params(old, new, now.training_params))
    yield from params["split"]
    for block in ("tokenizer", "base_model"):
        yield from compare(block, *pair.of(block), "another run")
    yield from params["labels"]
    yield from params["params"]
    yield from compare_code(pair)
    yield from compare_environments(pair)
    yield from params["seed"]


def find_effects(then: Record, now: Record, unknown: list[str]) -> Iterator[Drift]:
    """Tokens, verdicts, metrics, the first step and the first tensor that differ."""
    pair = Pair(then, now, unknown)
    yield from compare("tokens", *pair.of("tokens"), "another run")
    yield from compare_gates(*pair.of("gates"))
    for stage in common_stages(then, now):
        yield from compare("metric", then.metrics(stage), now.metrics(stage), "another run")
    if TRAINING in then.lock and TRAINING in now.lock:
        yield from find_step(then, now, unknown)
        yield from compare_weights(then, now, unknown)


def find_rows(then: Record, now: Record, unknown: list[str]) -> Iterator[Drift]:
    """Rows, where the data or what was read of it is not the same."""
    if same_output(then.lock, now.lock, DATASET):
        return
    old, new = read_rows(then), read_rows(now)
    if old is not None and new is not None:
        yield from compare_rows(old, new)
    elif then.part("data") != now.part("data"):
        lacking = then if old is None else now
        unknown.append(f"rows: {DATASET} of {lacking.name} is not to be had")


def common_stages(then: Record, now: Record) -> list[str]:
    """The stages of which both record a run, in their order."""
    return [stage for stage in in_order(then.lock) if stage in now.lock]


def by_kind(drifts: Iterable[Drift]) -> dict[str, list[Drift]]:
    """Drifts of params by what they decide."""
    found: dict[str, list[Drift]] = {kind: [] for kind in (*KINDS_OF_PARAMS, "params")}
    for drift in drifts:
        kinds = (kind for kind, keys in KINDS_OF_PARAMS.items() if drift.name.startswith(keys))
        kind = next(kinds, "params")
        found[kind].append(replace(drift, kind=kind))
    return found


def params_not_run(record: Record) -> list[Drift]:
    """Params that were changed after the run that is recorded."""
    used = record.params(record.lock)
    here = dict(flatten(record.params_file))
    return list(compare("params", used, {key: here.get(key, MISSING) for key in used}, "nothing"))


def data_not_run(record: Record) -> list[Drift]:
    """Committed files of data that are not those which the recorded run has read."""
    read = {name: one for name, one in record.part("data").items() if name in record.committed}
    return list(compare("data", read, {name: record.sha256(name) for name in read}, "nothing"))


def compare_code(pair: Pair) -> Iterator[Drift]:
    """Files among what the stages depend on; a changed comment or docstring means nothing.

    Where the files are the same and yet other code was run, the digests of the stages differ.
    """
    then, now = pair.then, pair.now
    readers = {
        (stage, dep)
        for record in (then, now)
        for dep, stages in source_deps(record.lock).items()
        for stage in stages
    }
    order = dict.fromkeys([*in_order(then.lock), *in_order(now.lock)])
    old, new = (
        {file: one for file, one in record.committed.items() if file.split("/")[0] in CODE}
        for record in (then, now)
    )
    drifts = list(compare("code", old, new, "another run"))
    for drift in drifts:
        of = {stage for stage, dep in readers if overlap(dep, drift.name)}
        name = f"{drift.name} (of {', '.join(stage for stage in order if stage in of)})"
        is_wording = drift.name.endswith(".py") and same_code(then, now, drift.name)
        meaning: Meaning = "nothing" if is_wording else "another run"
        yield replace(drift, name=name, meaning=meaning)
    if not drifts:
        yield from compare("code", *pair.of("code"), "another run")


def same_code(then: Record, now: Record, path: str) -> bool:
    """Do two Python files differ in nothing but comments and docstrings?"""
    try:
        old, new = ((record.read(path) or b"").decode() for record in (then, now))
        return normalised_source(old) == normalised_source(new)
    except (SyntaxError, ValueError):
        return False


def compare_environments(pair: Pair) -> Iterator[Drift]:
    """What computed, what is only recorded of the machine, and what requirements.lock asks for."""
    yield from compare_environment(*pair.of("environment"))
    old, new = pair.of("recorded")
    if old and new:
        yield from compare_recorded(old, new)
    pins = requirements(pair.then), requirements(pair.now)
    yield from compare("requirement", *pins, "nothing")


def requirements(record: Record) -> dict[str, str]:
    """Package -> pinned version."""
    lines = (record.read(REQUIREMENTS) or b"").decode(errors="replace").splitlines()
    pins = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pins}


def compare_outputs(then: Record, now: Record, stage: str) -> Iterator[Drift]:
    """Every file that a stage wrote, bit by bit, by what dvc.lock and git hold of it.

    The manifest's blocks that decide nothing (the commit, the machine) mean nothing, nor does the
    page that shows them.
    """
    old: Files = outputs(then.lock, stage)
    new: Files = outputs(now.lock, stage)
    for path in dict.fromkeys([*old, *new]):
        if old.get(path) == new.get(path) and path not in then.committed:
            continue
        informs = path in SHOWN_MANIFEST and decisive(then.manifest) == decisive(now.manifest)
        meaning: Meaning = "nothing" if informs else "another run"
        before: Files = then.files(path)
        after: Files = now.files(path)
        if not (before and after) or before == after:  # not listed, or only dvc.lock says otherwise
            before, after = ({path: lock[path]} if path in lock else {} for lock in (old, new))
        yield from compare("output", before, after, meaning)


def compare_stages(
    then: Record, now: Record, stages: Iterable[str]
) -> tuple[dict[str, list[Drift]], list[Drift]]:
    """By stage, the outputs of those that differ; and what differs elsewhere and means nothing."""
    differing, informing = dict[str, list[Drift]](), list[Drift]()
    for stage in stages:
        drifts = list(compare_outputs(then, now, stage))
        if any(drift.meaning != "nothing" for drift in drifts):
            differing[stage] = drifts
        else:
            informing += drifts
    return differing, informing


def decisive(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without its blocks that only inform, and without the digest of its whole text."""
    informing = ("git", "recorded", SEAL)
    return {name: block for name, block in manifest.items() if name not in informing}


def find_step(then: Record, now: Record, unknown: list[str]) -> Iterator[Drift]:
    """The first step and column in which the trainings part."""
    if same_output(then.lock, now.lock, TELEMETRY):
        return
    old, new = then.read(TELEMETRY), now.read(TELEMETRY)
    if old is None or new is None:
        lacking = then if old is None else now
        unknown.append(f"training steps: {TELEMETRY} of {lacking.name} is not to be had")
    elif drift := first_step(old.decode(), new.decode()):
        yield drift
