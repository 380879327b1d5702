"""Every fault of the catalogue is planted, and every check that sees it is the recorded one."""

from collections.abc import Iterator

import pytest

from stages.faults.catalogue import FAULTS
from stages.faults.running import RERUNS, RESUME, RULES

from .configurations import Observed, matrix_of, observe_all, read_matrix, small_project

pytestmark = pytest.mark.slow

UNSEEN = {"stop_row_alike", RESUME}
"""Rules that no fault of the catalogue breaks: tests/models and tests/probes break them."""


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Observed]]:
    directory = tmp_path_factory.mktemp("faults")
    with small_project(directory):
        yield observe_all(directory)


def test_the_checks_that_see_each_fault_are_the_recorded_ones(
    observed: dict[str, Observed],
) -> None:
    assert matrix_of(observed) == read_matrix()


def test_every_fault_is_planted_and_seen_by_a_check_that_must_see_it(
    observed: dict[str, Observed],
) -> None:
    matrix = matrix_of(observed)
    assert list(matrix) == [fault.name for fault in FAULTS]
    for fault in FAULTS:
        seen = set(fault.checks) & set(matrix[fault.name][fault.gate])
        assert seen or fault.missed, fault.name


def test_no_rule_could_be_dropped_unnoticed(observed: dict[str, Observed]) -> None:
    rules = [rule.id for gate in RULES.values() for rule in gate]
    unnoticed = {rule for rule in rules if matrix_of(observed, without=rule) == read_matrix()}
    assert unnoticed == UNSEEN


def test_reruns_are_made_for_the_faults_that_need_them(observed: dict[str, Observed]) -> None:
    rerun = [name for name, one in observed.items() if set(RERUNS) <= set(one.seen[0].measured)]
    assert rerun == ["weights_from_the_clock", "weights_without_the_seed"]
