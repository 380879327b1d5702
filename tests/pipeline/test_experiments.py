"""`dvc exp run` composes as DVC documents it, and `holdshort compose` writes the same bytes."""

import pytest

from ..project import SMALL, Project

OVERRIDES = ("train.learning_rate=0.002", "data.validation_fraction=0.2", "labels=last_turn")


def test_compose_writes_what_dvc_composes(fresh: Project) -> None:
    settings = [option for one in (*SMALL, *OVERRIDES) for option in ("-S", one)]
    done = fresh.run("dvc", "exp", "run", "hash_data", *settings)
    assert done.returncode == 0, done.stdout
    by_dvc = fresh.read("params.yaml")
    fresh.git("checkout", "--", "params.yaml")
    assert fresh.holdshort("compose", *SMALL, *OVERRIDES).returncode == 0
    assert fresh.read("params.yaml") == by_dvc
    assert "learning_rate: 0.002" in by_dvc


def test_check_says_where_params_and_conf_differ(fresh: Project) -> None:
    in_step = fresh.holdshort("compose", "--check", *SMALL)
    assert (in_step.returncode, in_step.stdout) == (0, "params.yaml is what conf/ composes\n")
    fresh.set_params(run__seed=7)
    out_of_step = fresh.holdshort("compose", "--check", *SMALL)
    assert out_of_step.returncode == 1
    assert "run.seed: 42 (conf/) -> 7 (params.yaml)" in out_of_step.stdout


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.learnin_rate=1", "did you mean 'train.learning_rate'?"),
        ("modle=tiny_gpt", "did you mean 'model'?"),
        ("model=tiny_gtp", "conf/model/ has no 'tiny_gtp'; it has hub, tiny_gpt, tiny_lora"),
        ("train.learning_rate=-1", "'train.learning_rate' is -1"),
        ("run.seed=???", "'run.seed' is ???"),
        ("lst[0]=1", "the overrides cannot be composed"),
    ],
)
def test_a_wrong_override_ends_in_one_sentence_and_changes_nothing(
    fresh: Project, override: str, words: str
) -> None:
    before = fresh.read("params.yaml")
    done = fresh.holdshort("compose", override)
    assert done.returncode == 2
    assert done.stdout.startswith("error: ")
    assert len(done.stdout.splitlines()) == 1
    assert words in done.stdout
    assert fresh.read("params.yaml") == before


@pytest.mark.slow
def test_an_experiment_runs_with_another_rate(cleared: Project) -> None:
    cleared.commit("Keep the results")
    settings = [option for one in SMALL for option in ("-S", one)]
    done = cleared.run("dvc", "exp", "run", *settings, "-S", "train.learning_rate=0.002")
    assert done.returncode == 0, done.stdout[-3000:]
    changed = cleared.run("dvc", "params", "diff", "--md").stdout
    assert "train.learning_rate" in changed
    assert cleared.json("training_manifest.json")["params"]["train.learning_rate"] == 0.002


@pytest.mark.slow
def test_a_queued_sweep_runs_and_keeps_its_checkpoints_in_the_main_repository(
    cleared: Project,
) -> None:
    cleared.commit("Keep the results")
    settings = [option for one in SMALL for option in ("-S", one)]
    sweep = ("-S", "train.learning_rate=0.002,0.004")
    queued = cleared.run("dvc", "exp", "run", "--queue", *settings, *sweep)
    assert queued.returncode == 0, queued.stdout
    done = cleared.run("dvc", "exp", "run", "--run-all")
    assert done.returncode == 0, done.stdout[-3000:]
    shown = cleared.run("dvc", "exp", "show", "--json").stdout
    assert '"learning_rate": 0.002' in shown
    assert '"learning_rate": 0.004' in shown
    assert cleared.exists("checkpoints")
