"""Labels made elsewhere: is exactly what shall be learned supervised, and nothing else?

The rules are those of gate 1, of one file of tokens and the conversations that it was made from.
"""

from ..judging import Rule

TRAINER = "mend the trainer's template or its mask, and make the labels again"
TEMPLATE = "use a template that leaves contents as they are, or mend the named rows"
SOURCE = "name the source that this file was made from, or take the named rows out"

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
    Rule("prompt_supervised", "no prompt token is supervised", "zero", TRAINER, unit="tokens"),
    Rule("header_supervised", "no header token is supervised", "zero", TRAINER, unit="tokens"),
    Rule("padding_supervised", "no padding is supervised", "zero", TRAINER, unit="tokens"),
    Rule("content_masked", "every answer token is supervised", "zero", TRAINER, unit="tokens"),
    Rule(
        "reasoning_differs",
        "reasoning is supervised as --supervise says",
        "zero",
        TRAINER,
        unit="tokens",
    ),
    Rule(
        "calls_differ",
        "calls are supervised as --supervise says",
        "zero",
        TRAINER,
        unit="tokens",
    ),
    Rule("stop_masked", "every stop token is supervised", "zero", TRAINER, unit="tokens"),
    Rule(
        "stop_missing",
        "every answer ends with a stop token",
        "zero",
        "use a template that ends every answer: the model would learn to go on",
        unit="answers",
    ),
    Rule("label_differs", "a label is its own token", "zero", TRAINER, unit="tokens"),
    Rule(
        "id_outside_vocabulary",
        "every id is one of the tokenizer's",
        "zero",
        "name the tokenizer that made these tokens",
        unit="tokens",
    ),
    Rule("no_supervised_token", "every row has a supervised token", "zero", TRAINER, unit="rows"),
    Rule(
        "content_dropped",
        "the tokens of every row hold each message as it was said",
        "zero",
        TEMPLATE,
        unit="messages",
    ),
    Rule(
        "call_dropped",
        "the tokens of every row hold each call of a tool, with its arguments",
        "zero",
        "use the template of a model that calls tools, or take the calls out of the named rows",
        unit="calls",
    ),
    Rule(
        "scaffold_differs",
        "the template's own text in and right behind answers is supervised as --supervise says",
        "zero",
        "look at the named tokens: the model learns to write them",
        unit="tokens",
        severity="warn",
    ),
    Rule(
        "reasoning_dropped",
        "the template keeps all reasoning",
        "zero",
        "split the conversation after each answer whose reasoning shall be learned",
        unit="messages",
        severity="warn",
    ),
    Rule(
        "content_trimmed",
        "the template keeps white space at the ends of messages",
        "zero",
        "look at what is lost: a template that trims also trims the indentation of code",
        unit="messages",
        severity="warn",
    ),
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
