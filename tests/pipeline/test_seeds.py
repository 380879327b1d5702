"""`holdshort seeds`: the same commit under other seeds, and what varies."""

from pathlib import Path

import pytest

from stages.commands.seeds import print_spread, run, spread
from stages.config import UserError

from ..project import Project


def test_the_spread_is_the_sample_deviation_over_seeds() -> None:
    table = spread(
        {1: {"loss": 1.0, "steps": 8}, 2: {"loss": 2.0, "steps": 8}, 5: {"loss": 6.0, "steps": 8}}
    )
    loss = table.set_index("metric").loc["loss"]
    assert (loss["mean"], loss["lowest"], loss["highest"]) == (3.0, 1.0, 6.0)
    assert loss["sd"] == pytest.approx(7**0.5)
    assert [loss[f"seed {seed}"] for seed in (1, 2, 5)] == [1.0, 2.0, 6.0]


def test_a_metric_that_is_no_number_under_one_seed_has_no_spread_and_is_not_called_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    metrics = {"loss": 1.0, "steps": 8}
    table = spread({1: metrics, 2: {**metrics, "loss": "nan"}})  # type: ignore[dict-item]
    assert table.set_index("metric").loc["loss", ["mean", "sd", "lowest", "highest"]].isna().all()
    print_spread(table)
    assert "the same under every seed: steps\n" in capsys.readouterr().out


def test_one_seed_has_no_deviation() -> None:
    assert spread({3: {"loss": 1.0}})["sd"].isna().all()


@pytest.mark.parametrize(
    ("seeds", "sentence"),
    [
        (("1", "2", "1"), "error: seed 1 is given twice; a seed says nothing new the second time"),
        (("3",), "error: one seed has no deviation; give at least two different ones"),
        (("-1", "2"), "error: seed -1 is below 0; a seed is a whole number from 0"),
        (
            ("1", "2"),
            "error: seeds are compared over one commit, but params.yaml is not committed; commit, "
            "or take it back",
        ),
    ],
    ids=["twice", "one", "below 0", "uncommitted"],
)
def test_what_cannot_be_compared_is_refused(
    fresh: Project, seeds: tuple[str, ...], sentence: str
) -> None:
    fresh.set_params(train__weight_decay=0.2)
    done = fresh.holdshort("seeds", *seeds)
    assert (done.returncode, done.stdout.strip()) == (2, sentence)
    assert not fresh.exists("reports")


def test_a_directory_that_is_no_root_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="this is not the root of a git repository with a DVC"):
        run([1, 2], tmp_path / "reports")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_seed_whose_run_is_refused_is_named_and_its_log_kept(refused: Project) -> None:
    done = refused.holdshort("seeds", "7", "8")
    assert done.returncode == 1, done.stdout
    assert "seed 7 did not train; reports/seeds/seed-7.log says why" in done.stdout
    assert "error: training is not cleared" in refused.read("reports/seeds/seed-7.log")


@pytest.mark.matrix
def test_seeds_vary_and_are_not_run_twice(fresh: Project, tmp_path: Path) -> None:
    params = fresh.read("params.yaml")
    done = fresh.holdshort("seeds", "1", "2")
    assert done.returncode == 0, done.stdout
    assert "the same under every seed: steps" in done.stdout
    table = fresh.read("reports/seeds/seeds.csv").splitlines()
    losses = next(line.split(",") for line in table if line.startswith("validation_loss,"))
    assert losses[5] != losses[6]
    assert fresh.read("params.yaml") == params
    assert fresh.git("status", "--porcelain") == ""
    assert "seed-1" in fresh.run("dvc", "exp", "list").stdout
    (fresh.path / "reports/seeds/seed-1.log").unlink()
    again = fresh.holdshort("seeds", "1", "2", "--report", str(tmp_path))
    assert again.returncode == 0
    assert not list(tmp_path.glob("*.log"))
    assert (tmp_path / "seeds.csv").read_text(encoding="utf-8").splitlines() == table
