"""Sound runs raise no alarm in gates 2 and 3: of all that is recorded, some are made again."""

from collections.abc import Iterator

import pytest

from stages.faults.rates import tell_rate

from ..settings import ROOT, committed_params
from .healthy_zoo import count, demonstration, judge, read_record, values_of, zoo

AGAIN = ("tiny_gpt packed", "scratch opt", "scratch rwkv")
ALARMS = {"scratch rwkv": ["gradient_probe: median_norm"]}
"""RWKV's embeddings begin at 1e-4 in front of a norm: their first gradients are of norm 1,300."""


def test_every_run_is_recorded_and_no_other_alarm_is() -> None:
    record = read_record()
    assert list(record) == list(zoo())
    assert {name: told["alarms"] for name, told in record.items() if told["alarms"]} == ALARMS


def test_the_readme_gives_the_recorded_figure() -> None:
    alarms, runs = count(read_record())
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert tell_rate(alarms, runs) in readme


@pytest.fixture(scope="module")
def _demonstration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with demonstration(tmp_path_factory.mktemp("zoo")):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_demonstration")
@pytest.mark.parametrize("name", AGAIN)
def test_a_run_is_judged_as_recorded(name: str) -> None:
    assert judge(committed_params(**values_of(zoo()[name]))) == read_record()[name]


@pytest.mark.matrix
@pytest.mark.usefixtures("_demonstration")
@pytest.mark.parametrize("name", [name for name in zoo() if name not in AGAIN])
def test_every_other_run_is_judged_as_recorded(name: str) -> None:
    assert judge(committed_params(**values_of(zoo()[name]))) == read_record()[name]
