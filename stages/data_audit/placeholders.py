"""Does a text hold a placeholder that was never filled in?

Looks for {{name}}, {name}, ${name}, <name>, [NAME], %s, YOUR_NAME, TODO and Lorem ipsum. The same
marks are healthy in code, JSON, formulas, markup and links, and where somebody asks for a template;
those are left alone, at the price of placeholders missed there.
"""

import re
from collections.abc import Iterator

from ..chat.conversation import ASSISTANT, Conversation
from .words import USER, text_of

APOSTROPHES = "'\u2019"
MARK = re.compile(
    r"\{\{\s*[\w.]+\s*\}\}"
    r"|\$?\{[A-Za-z_]\w+\}"
    rf"|<[A-Za-z][\w{APOSTROPHES} -]{{2,30}}>"
    rf"|\[[A-Za-z][\w{APOSTROPHES} /-]{{2,30}}\]"
    r"|%[sd]\b"
    r"|\bYOUR_[A-Z][A-Z_]+"
    r"|\bTODO\b"
    r"|[Ll]orem ipsum"
)
HINTS_IN_JSON = ("{{", "YOUR_", "TODO", "orem ipsum")
HINTS = ("{", "[", "<", "%s", "%d", *HINTS_IN_JSON[1:])
"""One of these is in every mark: looking for them first is what keeps the search fast."""
CODE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`|\$\$.*?\$\$|\\\[.*?\\\]", re.DOTALL)
CODE_LINE = re.compile(
    r"^(?:\s{4,}|\t|\s*(?://|#!|#include|import |from \w+ import|def |class |function |return\b|"
    r"const |let |var |public |private |print|echo |\$ |SELECT |<\w+[^>]*>.*</))"
    r"|[;{]\s*$|=>|\w\(.*\)\s*[;{:]?\s*$|f\"|f'|==|\w\s=\s"
)
SUBJECT = re.compile(
    r"template|placeholder|format string|f-string|printf|jinja|handlebars|mustache|mad ?lib"
    r"|fill in|blank|variable|boilerplate|lorem|to-?do|\bcode\b|html|regex|latex",
    re.IGNORECASE,
)
LETTER = re.compile(
    r"letter|e-?mail|message|resume|résumé|\bcv\b|invitation|contract|agreement|\bform\b|proposal"
    r"|press release|announcement|speech|script|memo|report|card|invoice|note|bio|advert|tweet"
    r"|post",
    re.IGNORECASE,
)
NAMES = re.compile(
    r"(?:your|insert|enter|add|the|recipient|sender|customer|client|user|employee|company|product|"
    r"first|last|full|current|hiring|manager)"
    rf"?[{APOSTROPHES}]?s?[ _-]*"
    r"(?:name|names|username|user|date|company|city|country|address|email|phone|number|title|topic|"
    r"product|location|amount|price|time|company|position|placeholder|here)\b|(?:your|insert) .+",
    re.IGNORECASE,
)
KEYWORDS = ("return", "break", "continue", "pass", "else", "true", "false", "null")


def unfilled_placeholder(conversation: Conversation) -> str | None:
    """The first placeholder left in a turn, with the role of that turn, or None."""
    suspects = [
        (message["role"], found)
        for message in conversation.messages
        for found in _marks(text_of(message))
    ]
    if not suspects:
        return None
    asked = " ".join(text_of(turn) for turn in conversation.messages if turn["role"] == USER)
    if SUBJECT.search(asked):
        return None
    for role, mark in suspects:
        in_brackets = mark[0] in "[<"
        if not (in_brackets and role == ASSISTANT and LETTER.search(asked)):
            return f"{mark} in the {role} turn"
    return None


def _marks(text: str) -> Iterator[str]:
    is_json = text[:1] in ("{", "[") and text[-1:] in ("}", "]")
    if not any(hint in text for hint in (HINTS_IN_JSON if is_json else HINTS)):
        return
    prose = CODE.sub(" ", text)
    for found in MARK.finditer(prose):
        mark = found.group()
        if is_json and mark[0] in "{$[<%" and mark[:2] != "{{":
            continue
        if _stands_for_itself(mark, prose, found.start(), found.end()):
            continue
        yield mark


def _stands_for_itself(mark: str, text: str, start: int, end: int) -> bool:
    """Whether the mark is markup, a formula, a link, a path, or stands in a line of code."""
    before, after = text[start - 1 : start], text[end : end + 1]
    if mark[0] in "[<" and (not NAMES.fullmatch(mark[1:-1]) or after in ("(", "[", ":")):
        return True
    if mark[0] == "<" and f"</{mark[1:]}" in text:
        return True
    if mark.startswith("${") and mark.isupper():
        return True  # a variable of the shell
    if mark[:2] == "{{":
        return before in ("\\", "^", "_") or before.isalnum()
    if mark[1:-1] in KEYWORDS:
        return True
    if mark[0] in "{$" and (before in ("\\", "^", "_", "}", "/", "$", '"') or before.isalnum()):
        return True
    if mark[0] == "%" and before.isalnum():
        return True
    line = text[text.rfind("\n", 0, start) + 1 : (text.find("\n", end) + 1 or len(text) + 1) - 1]
    return bool(CODE_LINE.search(line))
