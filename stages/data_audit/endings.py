"""Does an answer break off in mid-sentence?

Answers without closing punctuation are common and healthy (labels, names, lists, code, JSON). One
counts as broken off where it leaves something open that it opened, or where it drops its own habit:
the text ends its other sentences, and not the last.
"""

import json
import re
import unicodedata

from .words import WORD

FENCE = re.compile(r"^\s*(```|~~~)", re.MULTILINE)
FENCED = re.compile(r"^\s*(```|~~~).*?^\s*\1\s*$", re.MULTILINE | re.DOTALL)
STOPS = ".!?…。！？｡．؟۔।॥።။។៕:：;；"  # noqa: RUF001
CLOSERS = "\"'”’»)]}」』】）*_"  # noqa: RUF001
ENDED = re.compile(rf"[{re.escape(STOPS)}][{re.escape(CLOSERS)}]*\s*$")
SENTENCE_END = re.compile(
    r"(?<!\b[DMS]r)(?<!\bMs)(?<!\bSt)(?<!\bJr)(?<!\bNo)(?<!\bvs)(?<!\bMrs)(?<=\w\w)[.!?…]"
    r"[\"'”’)*]*\s+(?=[A-ZÀ-ÞΑ-ΩА-Я\"“(])"  # noqa: RUF001
    r"|[。！？।॥؟]\s*(?=\w)"  # noqa: RUF001
)
ITEM = re.compile(r"^\s*(?:[-*+•–#>|]|\(?\d{1,3}[.):]|\(?[A-Za-z][.)])\s*")  # noqa: RUF001
DANGLING = re.compile(r"\s(?:an|the|and|or|but|because|into|its|their|your|his|my|our|than)$")
ATTRIBUTION = re.compile(r"[-—–~]\s?[A-Z][\w.]*(?:\s[A-Z][\w.]*){0,3}$")  # noqa: RUF001
JSON_START = re.compile(r"[{\[]\s*[\"{\[\d]")
JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
EMOTICON = re.compile(r"[:;=]['-]?[(\[<]$")
WITHOUT_FULL_STOPS = ("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
MIN_WORDS_OF_LINE = 6
MIN_WORDS_OF_REST = 5
MIN_WORDS_BEFORE_BREAK = 4


def breaks_off(text: str) -> str | None:
    """Why an answer seems to break off, or None where it seems complete."""
    text = text.rstrip()
    if not text:
        return None
    if len(FENCE.findall(text)) % 2:
        return "a code fence is not closed"
    if JSON_START.match(text):
        return _json_breaks_off(text)
    last = text.rpartition("\n")[2].strip()
    if ATTRIBUTION.search(last) or last.split()[-1].startswith(("#", "@")):
        return None
    if not _ends_in_a_word_or_opening(text) or _is_code(text):
        return None
    if _drops_its_habit(text, last):
        return f"ends in mid-sentence: {_tail(last)}"
    return None


def _json_breaks_off(text: str) -> str | None:
    if sum(map(text.count, "{[")) <= sum(map(text.count, "}]")):
        return None
    try:
        json.JSONDecoder().raw_decode(text)
    except ValueError:
        outside = JSON_STRING.sub("", text)
        if sum(map(outside.count, "{[")) > sum(map(outside.count, "}]")):
            return f"JSON is not closed: {_tail(text)}"
    return None


def _ends_in_a_word_or_opening(text: str) -> bool:
    last, before = text[-1], text[-2:-1]
    category = unicodedata.category(last)
    if category[0] == "L" or category in ("Mn", "Mc"):
        if before and not before.isalpha() and not before.isspace():
            return unicodedata.category(before) in ("Mn", "Mc")  # else a unit or a symbol: 5 °C
        return not unicodedata.name(last, "").startswith(WITHOUT_FULL_STOPS)
    return _is_break(last) or (_opens(text) and not EMOTICON.search(text))


def _is_break(character: str) -> bool:
    return character in ",，、،" or unicodedata.category(character) == "Pd"  # noqa: RUF001


def _opens(text: str) -> bool:
    """Whether it ends with an opening bracket or quote; some languages close with “ or «."""
    category = unicodedata.category(text[-1])
    return category == "Ps" or (category == "Pi" and text[-2:-1].isspace())


def _is_code(text: str) -> bool:
    last = text.rpartition("\n")[2]
    return last.startswith(("    ", "\t")) or "://" in last.split()[-1]


def _drops_its_habit(text: str, last: str) -> bool:
    """Whether it ends what it says elsewhere, but not its last line.

    last: the last line, without space around it.
    """
    said = ITEM.sub("", last)
    if _opens(last):
        return True
    if _is_break(last[-1]) or DANGLING.search(last):
        return len(WORD.findall(said)) >= MIN_WORDS_BEFORE_BREAK
    *sentences, rest = SENTENCE_END.split(said)
    if sentences and ":" not in rest:
        return len(SENTENCE_END.findall(text)) > 1 or len(WORD.findall(rest)) >= MIN_WORDS_OF_REST
    return len(WORD.findall(said)) >= MIN_WORDS_OF_LINE and _others_end(text, last)


def _others_end(text: str, last: str) -> bool:
    """Whether all other long lines of the kind of the last one (items, or not) are closed."""
    is_item = bool(ITEM.match(last))
    others = [
        ENDED.search(line)
        for line in FENCED.sub("", text).splitlines()[:-1]
        if bool(ITEM.match(line)) == is_item and len(WORD.findall(line)) >= MIN_WORDS_OF_LINE
    ]
    return bool(others) and all(others)


def _tail(text: str) -> str:
    return f"…{text[-40:]}" if len(text) > 40 else text
