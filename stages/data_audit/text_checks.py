"""Is a text damaged, and in which script is it written?

Each check looks at one text and returns what is wrong with it, or None.
"""

import re
import unicodedata
from collections import Counter
from functools import lru_cache

DAMAGE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ufffe\uffff\ud800-\udfff]")
FOREIGN_RUN = re.compile(r"[\x80-\u25ff\ufb00-\ufb4f]+")
"""What a character's bytes read as in another encoding: two of these, or one that is LEADING."""
LEADING = "ÂÃ"

EAST_ASIAN = "Han and kana"
SCRIPT_NAMES = {
    "CJK": EAST_ASIAN,
    "HIRAGANA": EAST_ASIAN,
    "KATAKANA": EAST_ASIAN,
    "KATAKANA-HIRAGANA": EAST_ASIAN,
    "BOPOMOFO": EAST_ASIAN,
}
WIDTHS = ("FULLWIDTH", "HALFWIDTH")


def damage(text: str) -> str | None:
    """Control and replacement characters, and text decoded from the wrong encoding (mojibake)."""
    if found := DAMAGE.search(text):
        return f"holds U+{ord(found.group()):04X} ({_name_of(found.group())})"
    if text.isascii():
        return None
    from ftfy.badness import is_bad  # not needed, and not loaded, for data in ASCII

    for run in FOREIGN_RUN.finditer(text):
        if len(run.group()) == 1 and run.group() not in LEADING:
            continue
        window = text[run.start() : run.end() + 2]
        if is_bad(window):
            return f"holds {window!r} (decoded from another encoding)"
    return None


def _name_of(character: str) -> str:
    if "\ud800" <= character <= "\udfff":
        return "half of a surrogate pair"
    if character == "\ufffd":
        return "a character that could not be decoded"
    return "control character"


def dominant_script(text: str) -> str | None:
    """The script of most letters of a text, None where it has no letter."""
    if text.isascii():
        return "Latin" if any(map(str.isalpha, text)) else None
    counts: Counter[str] = Counter()
    for character, times in Counter(text).items():
        if script := script_of(character):
            counts[script] += times
    return max(sorted(counts), key=counts.__getitem__) if counts else None


@lru_cache(maxsize=1 << 14)
def script_of(character: str) -> str | None:
    """The script of a letter, by the first word of its Unicode name; None for other characters."""
    if not character.isalpha():
        return None
    words = unicodedata.name(character, "UNNAMED").split()
    name = words[1] if words[0] in WIDTHS and len(words) > 1 else words[0]
    return SCRIPT_NAMES.get(name, name.capitalize())
