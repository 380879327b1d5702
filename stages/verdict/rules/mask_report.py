"""Gate 1: is exactly what shall be learned supervised, in every row and every batch?

The rules are the protocol's: no prompt token, every answer token, every stop token, no header.
"""

from ..judging import Rule

LABELLING = "report this: the labelling is wrong for this template (the page shows the tokens)"
MEND_ROWS = "use a template that leaves contents as they are, or mend the named rows"
SHIFTED = (
    "the collator shifts the labels, and the loss shifts them again: the model would learn the "
    "token after the next"
)
COLLATOR = "mend data.collator: it changed labels that were right in the token store"

RULES = (
    Rule(
        "content_dropped",
        "the tokens of every row hold each message as it was said",
        "zero",
        MEND_ROWS,
        unit="messages",
    ),
    Rule(
        "calls_dropped",
        "the tokens of every row hold each call of a tool, with its arguments",
        "zero",
        "use the template of a model that calls tools, or take the calls out of the named rows",
        unit="calls",
    ),
    Rule(
        "not_judgeable",
        "the place of every message in the rendered text is certain",
        "zero",
        MEND_ROWS,
        unit="rows",
    ),
    Rule("prompt_supervised", "no prompt token is supervised", "zero", LABELLING, unit="tokens"),
    Rule("header_supervised", "no header token is supervised", "zero", LABELLING, unit="tokens"),
    Rule("content_masked", "every answer token is supervised", "zero", LABELLING, unit="tokens"),
    Rule(
        "reasoning_differs",
        "reasoning is supervised as labels.supervise says",
        "zero",
        LABELLING,
        unit="tokens",
    ),
    Rule(
        "calls_differ",
        "calls are supervised as labels.supervise says",
        "zero",
        LABELLING,
        unit="tokens",
    ),
    Rule(
        "scaffold_differs",
        "the template's own text in answers is supervised as labels.supervise says",
        "zero",
        LABELLING,
        unit="tokens",
    ),
    Rule("stop_masked", "every stop token is supervised", "zero", LABELLING, unit="tokens"),
    Rule(
        "stop_missing",
        "every answer ends with a stop token",
        "zero",
        "use a template that ends the last answer too: the model would learn to go on",
        unit="answers",
    ),
    Rule(
        "stops_alone",
        "more than stop tokens is supervised",
        "zero",
        "add content to labels.supervise: these rows have nothing else that it names",
        unit="splits",
    ),
    Rule("label_differs", "a label is its own token", "zero", LABELLING, unit="tokens"),
    Rule(
        "id_outside_vocabulary",
        "every id has a row in the embedding",
        "zero",
        "use the tokenizer that belongs to the model",
        unit="tokens",
    ),
    Rule(
        "double_bos",
        "no row begins with two BOS tokens",
        "zero",
        "let either the template or the tokenizer write BOS, not both",
        unit="rows",
    ),
    Rule(
        "open_generation_prompt",
        "no row ends with an open header",
        "zero",
        "use a template that writes the generation prompt only when it is asked for",
        unit="rows",
        severity="warn",
    ),
    Rule(
        "markers_differ",
        "the template's own generation markers mark what the policy supervises",
        "zero",
        "nothing here uses the markers; a trainer that does would train on other tokens",
        unit="tokens",
        severity="warn",
    ),
    Rule(
        "unknown_role",
        "every role is one of a chat",
        "zero",
        "rename the roles in the named rows: what such a message says is never supervised",
        unit="roles",
        severity="warn",
    ),
    Rule(
        "ends_without_answer",
        "every conversation ends with an answer",
        "zero",
        "look at the named rows: what follows the last answer is read and not learned",
        unit="rows",
        severity="warn",
    ),
    Rule(
        "default_system_injected",
        "the template adds no system turn of its own",
        "zero",
        "give each conversation the system turn that the model shall be used with",
        unit="rows",
        severity="warn",
    ),
    Rule(
        "control_token_in_content",
        "no message holds the text of a special token",
        "zero",
        "take it out of the named messages: the tokenizer makes a control token of it",
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
        "reasoning_dropped",
        "the template keeps all reasoning",
        "zero",
        "split the conversation after each answer whose reasoning shall be learned",
        unit="messages",
        severity="warn",
    ),
    Rule(
        "straddling_tokens",
        "no token covers the edge between an answer and the template's text",
        "zero",
        "look at the named rows: labels.straddling says whether such a token is supervised",
        unit="tokens",
        severity="warn",
    ),
    Rule(
        "dropped_fraction",
        "few rows are left out of training",
        "at_most",
        "raise data.max_length, mend the rows named in rows.csv, or raise the limit",
        ("gates.mask.max_dropped_fraction",),
    ),
    Rule(
        "truncated_fraction",
        "few answers are cut off before their stop token",
        "at_most",
        "raise data.max_length: a row that ends in the middle does not teach the model to stop",
        ("gates.mask.max_truncated_fraction",),
    ),
    Rule(
        "collated_prompt_supervised",
        "no prompt token is supervised in the tensors that reach forward",
        "zero",
        COLLATOR,
        unit="tokens",
    ),
    Rule(
        "collated_header_supervised",
        "no header token is supervised in the tensors that reach forward",
        "zero",
        COLLATOR,
        unit="tokens",
    ),
    Rule(
        "collated_content_masked",
        "every answer token is supervised in the tensors that reach forward",
        "zero",
        COLLATOR,
        unit="tokens",
    ),
    Rule(
        "collated_stop_masked",
        "every stop token is supervised in the tensors that reach forward",
        "zero",
        COLLATOR,
        unit="tokens",
    ),
    Rule(
        "collated_padding_supervised",
        "no padding is supervised",
        "zero",
        COLLATOR,
        unit="tokens",
    ),
    Rule(
        "collated_inputs_changed",
        "the tensors that reach forward hold each row's own tokens and labels",
        "zero",
        COLLATOR,
        unit="tokens",
    ),
    Rule(
        "collated_labels_shifted",
        "each label reaches the loss at its own token: the loss shifts them",
        "zero",
        "mend data.collator: it must not shift the labels, the loss does",
        unit="tokens",
    ),
    Rule(
        "positions_wrong",
        "in a packed row, position ids restart with each document",
        "zero",
        "report this, or mend data.collator if other checks of batches fail too",
        unit="tokens",
    ),
    Rule(
        "targets_across_borders",
        "in a packed row, nothing is predicted from another document",
        "zero",
        "report this, or mend data.collator if other checks of batches fail too",
        unit="tokens",
    ),
    Rule(
        "rows_not_dealt_once",
        "the first epoch deals every row once",
        "zero",
        "report this: batches are not dealt as their seed says",
        unit="rows",
    ),
    Rule(
        "controls_missed",
        "the audit names every corruption that was planted in rows of this data, by its token",
        "zero",
        "report this: the audit is blind to the named controls with this tokenizer and template; "
        "if too few could be tried, mend the rows that fail the other checks first",
        unit="controls",
    ),
)

NOT_COVERED = (
    "whether the answers are right: only that exactly they are learned",
    "the template itself: whether inference will use the same one",
    "batches of later epochs: the first is audited whole, the others differ in their order only",
)

CAUSES = (
    (
        {"collated_prompt_supervised", "collated_content_masked"},
        "the collator inverts the labels: prompts are supervised and answers are masked",
    ),
    (
        {
            *("collated_labels_shifted", "collated_inputs_changed"),
            *("collated_header_supervised", "collated_stop_masked"),
        },
        SHIFTED,
    ),
    ({"collated_labels_shifted"}, SHIFTED),
    (
        {"collated_stop_masked"},
        "the collator masks the stop token (often because it masks every id equal to the pad "
        "token): the model would never stop",
    ),
    ({"collated_prompt_supervised"}, "the collator supervises the prompt"),
    ({"collated_header_supervised"}, "the collator's mask begins too early, in the header"),
    ({"collated_content_masked"}, "the collator masks parts of the answers"),
    ({"collated_padding_supervised"}, "the collator supervises padding: the model learns to pad"),
    ({"collated_inputs_changed"}, "the collator changes tokens, labels or the attention mask"),
    (
        {"positions_wrong"},
        "documents of a packed row are not told apart: each is learned behind strangers",
    ),
    ({"targets_across_borders"}, "the first token of a document is predicted from another"),
    ({"rows_not_dealt_once"}, "rows are left out of training, or seen more often than others"),
    ({"id_outside_vocabulary"}, "the tokenizer does not belong to the model"),
    ({"content_dropped"}, "the chat template rewrites or drops what was said"),
    ({"calls_dropped"}, "the chat template does not write calls of tools"),
    ({"stop_missing"}, "the chat template does not end the last answer"),
    ({"stops_alone"}, "labels.supervise names nothing that the rows hold"),
    ({"double_bos"}, "both the template and the tokenizer write BOS"),
    ({"not_judgeable"}, "the chat template rewrites or drops what was said"),
    ({"prompt_supervised"}, "the labels cover the prompt"),
    ({"header_supervised"}, "the labels begin too early, in the header"),
    ({"label_differs"}, "labels are no copies of their tokens: shifted, or of another row"),
    ({"reasoning_differs"}, "the labels cover other reasoning than labels.supervise says"),
    ({"calls_differ"}, "the labels cover other calls than labels.supervise says"),
    ({"scaffold_differs"}, "the labels cover the template's own text in answers"),
    ({"stop_masked"}, "the stop token is masked: the model would never stop"),
    ({"content_masked"}, "parts of the answers are masked"),
    ({"dropped_fraction"}, "many rows do not fit data.max_length or the template"),
    ({"truncated_fraction"}, "answers are longer than data.max_length"),
    (
        {"controls_missed"},
        "the audit does not see every fault in rows like these: its other checks prove little",
    ),
)
