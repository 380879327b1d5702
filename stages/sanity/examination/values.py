"""What was measured, by the id of the rule that judges it."""

from collections.abc import Sequence

from ...verdict.judging import Measured

Values = dict[str, Measured]


def named(found: Sequence[str], of: int | None = None, note: str = "") -> Measured:
    """How many things are wrong, and which."""
    return Measured(len(found), of, note, tuple(found))


def flag(wrong: bool, note: str = "") -> Measured:
    return Measured(int(wrong), note=note if wrong else "")


def flag_unless(well: bool | None) -> Measured:
    """None where it could not be measured."""
    if well is None:
        return Measured(None, note="it could not be measured here")
    return flag(not well)


def sentence(error: Exception) -> str:
    """The first line of an error, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}".rstrip(": ")
