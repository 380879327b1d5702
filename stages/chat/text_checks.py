"""Is a text damaged, and in which script is it written?

Each check looks at one text and returns what is wrong with it, or None.
"""

import re
import unicodedata
from collections import Counter
from functools import lru_cache

DAMAGE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ufffe\uffff\ud800-\udfff]")
SUSPECT = re.compile(r"(?:[\x80-\u25ff\ufb00-\ufb4f]{2,}|[ÂÃ]).{0,2}")
"""What the bytes of one character read as in another encoding; ftfy, being slow, sees no more."""

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

    for window in SUSPECT.findall(text):
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
