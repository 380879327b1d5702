"""Arms that are scripts of their own: checked by `sanity_check`, then trained as they stand."""

import inspect
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import UserError
from ..config.hooks import import_callable
from ..config.load import nearest
from ..provenance.records import finite, format_value, write_json
from ..report.page import Link, Section, Table, write_page
from ..report.plots import Chart, draw
from ..sanity import SanityReport, sanity_check
from .declared import Arm, Comparison

EPOCHS = 5


@dataclass(frozen=True)
class ScriptArm:
    """A script, what the check says of it, and what its training shows.

    about: what its function says of itself; losses: of each step of EPOCHS epochs; before, after:
    what its eval_fn gives around them, None where it has none.
    """

    arm: Arm
    about: str
    report: SanityReport
    losses: list[float]
    before: float | None
    after: float | None

    @property
    def verdict(self) -> str:
        return "pass" if self.report.passed else "fail"

    @property
    def cause(self) -> str:
        """The first."""
        return next(iter(self.report.causes), "-")


def load_script(arm: Arm, path: Path) -> Callable[[], dict[str, Any]]:
    """The function that an arm names. Raises UserError where it cannot be imported."""
    assert arm.script is not None
    function: Callable[[], dict[str, Any]] = import_callable(
        arm.script, f"{path}: 'arms.{arm.name}.script'"
    )
    return function


def arguments_of(arm: Arm, make: Callable[[], Any]) -> dict[str, Any]:
    """What the script gives. Raises UserError where `sanity_check` or its training lack something.

    A package that it imports and is not there is named too.
    """
    try:
        arguments = make()
    except ImportError as error:
        raise UserError(f"{arm.script} cannot run ({error}); install what it imports") from None
    except Exception as error:  # whatever user code raises
        raise crashed(arm, error) from None
    if not isinstance(arguments, dict):
        raise UserError(
            f"{arm.script} returns a {type(arguments).__name__}; return the arguments of "
            "sanity_check as a dict"
        )
    known = inspect.signature(sanity_check).parameters
    if unknown := [key for key in arguments if key not in known]:
        raise UserError(
            f"{arm.script} gives {unknown[0]!r}, which sanity_check does not take"
            f"{nearest(str(unknown[0]), known)}"
        )
    needed = ("model", "loader", "train_step", "optimizer")
    if missing := [key for key in needed if arguments.get(key) is None]:
        raise UserError(f"{arm.script} gives no {missing[0]!r}, which its training here needs")
    return arguments


def try_script(arm: Arm, make: Callable[[], dict[str, Any]]) -> ScriptArm:
    """Check the script, then train it. Raises UserError as `arguments_of` does."""
    arguments = arguments_of(arm, make)
    step, optimizer = arguments["train_step"], arguments["optimizer"]
    model, evaluate = arguments["model"], arguments.get("eval_fn")

    def score() -> float | None:
        return None if evaluate is None else float(evaluate(model, arguments["val_loader"]))

    with warnings.catch_warnings(action="ignore"):  # torch warns of some of what was broken
        report = sanity_check(**arguments)
        try:
            before = score()
            losses = [
                float(torch.as_tensor(step(model, batch, optimizer)).detach())
                for _ in range(EPOCHS)
                for batch in arguments["loader"]
            ]
            after = score()
        except Exception as error:  # whatever user code raises
            raise crashed(arm, error) from None
    about = (inspect.getdoc(make) or "").partition("\n")[0]
    return ScriptArm(arm, about, report, losses, before, after)


def crashed(arm: Arm, error: Exception) -> UserError:
    """What a script raised, and where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return UserError(
        f"arm '{arm.name}': {arm.script} raised {type(error).__name__}: {error} "
        f"({Path(place.filename).name}, line {place.lineno}); mend the script"
    )


def write_report(directory: Path, comparison: Comparison, arms: Sequence[ScriptArm]) -> Path:
    """Write results.json and the page, and return the page."""
    record = {
        "comparison": comparison.name,
        "question": comparison.question,
        "scripts": [
            {
                "name": one.arm.name,
                "script": one.arm.script,
                "about": one.about,
                "before": finite(one.before),
                "after": finite(one.after),
                "losses": [finite(loss) for loss in one.losses],
                "sanity_check": one.report.to_dict(),
            }
            for one in arms
        ],
    }
    write_json(directory / "results.json", record)
    rows = [
        (
            one.arm.name,
            one.about,
            one.verdict,
            one.cause,
            *(_shown(value) for value in (one.before, one.after, one.losses[-1])),
        )
        for one in arms
    ]
    header = ("script", "what it is", "check", "first cause", "score before", "after", "last loss")
    text = (
        f"The check comes before any training; score (higher is better) and loss are of {EPOCHS} "
        "epochs after it, which it does not stop here, so that you see what it spares you."
    )
    checks = [
        (
            one.arm.name,
            [Link(f"{check.id}: {check.message}") for check in one.report.checks if _fails(check)]
            or "-",
            [Link(cause) for cause in one.report.causes[1:]] or "-",
        )
        for one in arms
    ]
    return write_page(
        f"compare {comparison.name}",
        comparison.question,
        sections=[
            Section("Side by side", text, table=Table(header, rows)),
            Section("Curves", charts=[draw(loss_chart(one)) for one in arms]),
            Section(
                "Checks that fail", table=Table(("script", "checks", "further causes"), checks)
            ),
        ],
        directory=directory,
    )


def loss_chart(one: ScriptArm) -> Chart:
    title = f"{one.arm.name}: loss of {EPOCHS} epochs"
    return Chart(title, list(range(len(one.losses))), {"loss": one.losses}, log_y=True)


def _fails(check: Any) -> bool:
    return bool(check.status == "fail")


def _shown(value: float | None) -> str:
    return "-" if value is None else format_value(value)
