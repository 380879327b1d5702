"""Labels made elsewhere: is exactly what shall be learned supervised, and nothing else?

The rules are those of gate 1, of one file of tokens and the conversations that it was made from.
"""

from dataclasses import replace
from typing import Any

from ..judging import Rule
from . import mask_report

TRAINER = "mend the trainer's template or its mask, and make the labels again"
SOURCE = "name the source that this file was made from, or take the named rows out"

GATE_1 = {rule.id: rule for rule in mask_report.RULES}


def of_gate_1(name: str, **changes: Any) -> Rule:
    """A rule of gate 1; `changes` are the fields that differ here, mostly the remedy."""
    return replace(GATE_1[name], **changes)


RULES = (
    Rule(
        "unreadable_rows",
        "every token row can be read",
        "zero",
        "mend the named rows: they were not judged",
        unit="rows",
    ),
    Rule(
        "unmatched_token_rows",
        "every token row holds a conversation of the source",
        "zero",
        f"{SOURCE}: they were not judged",
        unit="rows",
    ),
    of_gate_1("prompt_supervised", remedy=TRAINER),
    of_gate_1("header_supervised", remedy=TRAINER),
    Rule("padding_supervised", "no padding is supervised", "zero", TRAINER, unit="tokens"),
    of_gate_1("content_masked", remedy=TRAINER),
    of_gate_1(
        "reasoning_differs", text="reasoning is supervised as --supervise says", remedy=TRAINER
    ),
    of_gate_1("calls_differ", text="calls are supervised as --supervise says", remedy=TRAINER),
    of_gate_1("stop_masked", remedy=TRAINER),
    of_gate_1(
        "stop_missing",
        remedy="use a template that ends every answer: the model would learn to go on",
    ),
    of_gate_1("label_differs", remedy=TRAINER),
    of_gate_1(
        "id_outside_vocabulary",
        text="every id is one of the tokenizer's",
        remedy="name the tokenizer that made these tokens",
    ),
    Rule("no_supervised_token", "every row has a supervised token", "zero", TRAINER, unit="rows"),
    of_gate_1("content_dropped"),
    of_gate_1("calls_dropped", id="call_dropped"),
    Rule(
        "scaffold_differs",
        "the template's own text in and right behind answers is supervised as --supervise says",
        "zero",
        "look at the named tokens: the model learns to write them",
        unit="tokens",
        severity="warn",
    ),
    of_gate_1("reasoning_dropped"),
    of_gate_1("content_trimmed"),
    Rule(
        "truncated_rows",
        "no row ends before its conversation does",
        "zero",
        "raise the maximum length: a row that ends in the middle does not teach the model to stop",
        unit="rows",
        severity="warn",
    ),
    Rule(
        "unmatched_source_rows",
        "every conversation of the source is in the token file",
        "zero",
        "look at the named rows: nothing is learned from them",
        unit="rows",
        severity="warn",
    ),
    Rule(
        "unreadable_source_rows",
        "every row of the source is a conversation",
        "zero",
        "mend the named rows",
        unit="rows",
        severity="warn",
    ),
)

NOT_COVERED = (
    "whether the answers are right: only that exactly they are learned",
    "what happens behind the file: packing, truncation and collation of the trainer",
    "whether inference will use the same template",
)

CAUSES = (
    (
        {"prompt_supervised", "content_masked"},
        "the labels are inverted or belong to other turns: prompts are supervised, answers masked",
    ),
    ({"id_outside_vocabulary"}, "the tokenizer is not the one that made these tokens"),
    ({"label_differs"}, "labels are no copies of their tokens: shifted, or of another row"),
    ({"content_dropped"}, "the chat template rewrites or drops what was said"),
    ({"call_dropped"}, "the chat template does not write calls of tools"),
    ({"stop_missing"}, "the chat template does not end every answer"),
    ({"header_supervised"}, "the mask begins too early, in the header"),
    ({"prompt_supervised"}, "the mask covers the prompt"),
    ({"padding_supervised"}, "padding is supervised: the model learns to pad"),
    ({"stop_masked"}, "the stop token is masked: the model would never stop"),
    ({"content_masked"}, "parts of the answers are masked"),
    ({"reasoning_differs"}, "the mask covers other reasoning than --supervise says"),
    ({"calls_differ"}, "the mask covers other calls than --supervise says"),
    ({"no_supervised_token"}, "rows without any label were kept"),
    ({"unmatched_token_rows"}, "the file holds more than the source does"),
    ({"unreadable_rows"}, "the file is damaged"),
)
