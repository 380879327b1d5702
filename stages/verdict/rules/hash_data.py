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
        "near_duplicate_fraction",
        "few rows nearly repeat an earlier row",
        "at_most",
        "keep one row of each group (findings.csv names them): they count like repeated rows, and "
        "a split between them leaks",
        ("gates.data.max_near_duplicate_fraction",),
    ),
    Rule(
        "ngram_leakage",
        "no validation row stands in training in nearly the same words",
        "at_most",
        "remove the named rows from validation, or their sources from training; make near copies "
        "after the split, never before it",
        ("gates.data.max_ngram_leakage",),
        "rows",
    ),
    Rule(
        "placeholder_fraction",
        "placeholders were filled in",
        "at_most",
        "fill the named placeholders in, or remove the rows: the model learns to say them",
        ("gates.data.max_placeholder_fraction",),
        severity="warn",
    ),
    Rule(
        "broken_off_fraction",
        "few answers break off in mid-sentence",
        "at_most",
        "complete or remove the named answers: they teach the model to stop anywhere",
        ("gates.data.max_broken_off_fraction",),
        severity="warn",
    ),
    Rule(
        "damaged_fraction",
        "texts hold no control characters and no mojibake",
        "at_most",
        "read the source in its own encoding and write UTF-8; ftfy.fix_text mends most rows",
        ("gates.data.max_damaged_fraction",),
        severity="warn",
    ),
    Rule(
        "script_outlier_fraction",
        "few answers are in a script that the data hardly holds",
        "at_most",
        "look at the named rows: remove them, or add data in their language",
        ("gates.data.max_script_outlier_fraction",),
        severity="warn",
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
    "paraphrases: near duplicates and leaks are found by the wording that they share",
    "wording that more than 10 rows share: it counts as a template, whoever copied it",
    "placeholders in code, JSON and markup, where the same marks are meant",
    "bias, licences and personal data",
)

LEFT_AMONG_TRAINING = "the validation rows were drawn from the training rows and left among them"

CAUSES = (
    ({"data_sha256"}, "the data changed since its digest was pinned"),
    ({"unreadable_rows"}, "the file was cut off, or written by a program that does not write JSON"),
    ({"split_overlap", "ngram_leakage"}, LEFT_AMONG_TRAINING),
    ({"split_overlap"}, LEFT_AMONG_TRAINING),
    (
        {"near_duplicate_fraction", "ngram_leakage"},
        "rows were copied with small changes (augmentation, templates) before they were split",
    ),
    ({"ngram_leakage"}, "training and validation were made from the same source rows"),
    (
        {"near_duplicate_fraction"},
        "rows were copied with small changes, or generated again and again from few seeds",
    ),
    ({"duplicate_fraction"}, "the data was joined with itself, or sampled with replacement"),
    ({"conflicting_fraction"}, "several answers a prompt were exported (samples, annotators)"),
    ({"empty_answers"}, "the export lost answers, or holds turns that were never given"),
    ({"train_rows"}, "the data set is too small for the gates"),
    ({"validation_rows"}, "the validation split is too small to judge on"),
)
