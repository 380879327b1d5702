"""The two ways in which a stage stops without a traceback."""


class UserError(Exception):
    """Bad input: one sentence with file, line or key, and what to do (exit 2)."""


class Refusal(Exception):
    """A judgement against going on, worded for one screen, with what to run next (exit 1)."""
