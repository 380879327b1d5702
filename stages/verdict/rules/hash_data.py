"""Gate: is the data what it is said to be, and fit to be learned from and judged on?"""

from ..judging import Rule

RULES = (
    Rule(
        "data_sha256",
        "the data is the pinned data",
        "equals",
        "bring the pinned data back (`dvc checkout`, `git checkout`), or set data.sha256 to the "
        "new digest if the change is meant",
        ("data.sha256",),
    ),
    Rule(
        "unreadable_rows",
        "every line is a conversation",
        "at_most",
        "mend or remove the named lines, or raise gates.data.max_unreadable",
        ("gates.data.max_unreadable",),
        "rows",
    ),
    Rule(
        "empty_answers",
        "every assistant turn says or calls something",
        "at_most",
        "fill in or remove the named rows: an empty answer teaches the model to stop at once",
        ("gates.data.max_empty_answers",),
        "rows",
    ),
    Rule(
        "split_overlap",
        "no prompt of the validation split is in training",
        "at_most",
        "remove the named rows from data.validation_path: leaked prompts make validation look good",
        ("gates.data.max_split_overlap",),
        "rows",
    ),
    Rule(
        "duplicate_fraction",
        "few rows repeat an earlier row",
        "at_most",
        "remove the repeated rows: each counts as one more epoch of itself",
        ("gates.data.max_duplicate_fraction",),
    ),
    Rule(
        "conflicting_fraction",
        "few prompts have two different answers",
        "at_most",
        "decide for one answer: no model can learn both, and the loss cannot reach 0",
        ("gates.data.max_conflicting_fraction",),
    ),
    Rule(
        "train_rows",
        "there are enough rows to train and to overfit on",
        "at_least",
        "add data, or lower gates.data.min_train_rows",
        ("gates.data.min_train_rows",),
        "rows",
    ),
    Rule(
        "validation_rows",
        "there are enough rows to validate on",
        "at_least",
        "raise data.validation_fraction or give data.validation_path",
        ("gates.data.min_validation_rows",),
        "rows",
    ),
)

NOT_COVERED = (
    "answers that are wrong but consistent: no rule can know the truth",
    "near duplicates: rows that differ in a character count as different",
    "bias, licences and personal data",
)


CAUSES = (
    ({"data_sha256"}, "the data changed since its digest was pinned"),
    ({"unreadable_rows"}, "the file was cut off, or written by a program that does not write JSON"),
    (
        {"split_overlap"},
        "the validation rows were drawn from the training rows and left among them",
    ),
    ({"duplicate_fraction"}, "the data was joined with itself, or sampled with replacement"),
    ({"conflicting_fraction"}, "several answers a prompt were exported (samples, annotators)"),
    ({"empty_answers"}, "the export lost answers, or holds turns that were never given"),
    ({"train_rows"}, "the data set is too small for the gates"),
    ({"validation_rows"}, "the validation split is too small to judge on"),
)
