"""`holdshort lr-range` on a run whose gates have passed: its rate fits, a hundredth does not."""

import pytest

from ..project import Project


def test_without_tokens_the_command_says_what_to_run(fresh: Project) -> None:
    done = fresh.holdshort("lr-range")
    assert done.returncode == 2
    assert done.stdout == "error: artifacts/tokens/ is missing; run `dvc repro mask_report`\n"


def test_too_few_steps_are_refused(fresh: Project) -> None:
    done = fresh.holdshort("lr-range", "--steps", "5")
    assert done.returncode == 2
    assert "--steps 5 are too few" in done.stdout


@pytest.mark.slow
def test_a_place_that_cannot_hold_the_report_is_refused_before_anything_is_computed(
    cleared: Project,
) -> None:
    for command in (("lr-range",), ("selftest", "--quick"), ("compare", "loss_spike")):
        done = cleared.holdshort(*command, "--report", "README.md")
        refusal = "error: README.md is no directory; name another for the report\n"
        assert (done.returncode, done.stdout) == (2, refusal)
        done = cleared.holdshort(*command, "--report", "reports/full_train")
        assert done.returncode == 2
        assert "reports/full_train holds other files" in done.stdout


@pytest.mark.slow
def test_the_rate_of_the_run_fits_and_others_do_not(cleared: Project) -> None:
    cleared.commit()
    done = cleared.holdshort("lr-range")
    assert done.returncode == 0, done.stdout
    assert "in between" in done.stdout
    assert (cleared.path / "reports/lr_range/index.html").is_file()
    assert cleared.read("reports/lr_range/sweep.csv").startswith("step,learning_rate,loss,smoothed")
    assert cleared.git("status", "--porcelain") == ""
    for rate, place in (("0.00001", "too low"), ("3", "too high")):
        done = cleared.holdshort("lr-range", f"train.learning_rate={rate}")
        assert (done.returncode, place in done.stdout) == (1, True), done.stdout
        page = cleared.read("reports/lr_range/index.html")
        assert f"Of conf/ with train.learning_rate={rate}." in page
