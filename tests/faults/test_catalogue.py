"""The catalogue accounts for every fault of its list, and names only checks that there are."""

from stages.faults.catalogue import CONTROLS, ELSEWHERE, FAULTS, IMPOSSIBLE, NOT_COVERED, TITLES
from stages.faults.running import RULES
from stages.mask_audit.controls import ON_BATCHES, ON_PACKS, ON_ROWS

from ..pipeline.imports import ENTRY_MODULES, closure
from ..settings import ROOT


def test_every_number_is_planted_or_accounted_for() -> None:
    planted = {number for fault in FAULTS for number in fault.numbers}
    assert list(TITLES) == list(range(1, 114))
    assert planted | {*CONTROLS, *ELSEWHERE, *IMPOSSIBLE, *NOT_COVERED} == set(TITLES)


def test_nothing_is_said_to_be_unseen_and_seen() -> None:
    seen = {number for fault in FAULTS for number in fault.numbers} | {*CONTROLS, *ELSEWHERE}
    assert not seen & {*IMPOSSIBLE, *NOT_COVERED}


def test_names_are_unique() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_fault_names_rules_of_its_gate_or_says_why_it_is_missed() -> None:
    for fault in FAULTS:
        assert set(fault.checks) <= {rule.id for rule in RULES[fault.gate]}, fault.name
        assert fault.checks or fault.missed, fault.name


def test_the_controls_are_those_of_gate_1() -> None:
    named = {name for names in CONTROLS.values() for name in names}
    assert named <= {*ON_ROWS, *ON_BATCHES, *ON_PACKS}


def test_no_stage_can_import_a_fault() -> None:
    for stage in ENTRY_MODULES:
        assert not [path for path in closure(ROOT, stage) if "faults" in path]
