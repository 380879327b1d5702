"""Which conversation do these tokens hold? By what is said in them, then by their order.

A text that the tokenizer's own template makes of a conversation holds that one. For other texts, a
few rare words of every conversation are indexed. The conversations whose words a text holds are
looked up in it message by message, and the one of which it holds most is the one. Of several that
say the same, the next in order is.
"""

import hashlib
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..chat.conversation import Conversation, Message
from ..chat.spans import trimmed_forms
from ..chat.template_at_work import TemplateError
from ..chat.tokenizer import ChatTokenizer
from ..mask_audit.row_reader import called, texts_of

CHUNK_ROWS = 512
RARE_WORDS = 4
FIRST_WORDS = 2
POSTINGS = 64
CANDIDATES = 24
NEIGHBOURS = 4
LEAD = 32
"""Characters that must be there of a message of which the rest was cut off."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Place:
    """Characters [start, end) of a text that hold a text of message `index`, or its beginning."""

    index: int
    start: int
    end: int
    whole: bool = True


@dataclass(frozen=True)
class Match:
    """conversation: its index; found: characters of it that the text holds, of `said`."""

    conversation: int
    places: list[Place]
    found: int
    said: int

    @property
    def is_whole(self) -> bool:
        return self.found >= self.said


def spoken(message: Message) -> list[str]:
    """The texts to look for: contents, then names and arguments of calls."""
    calls = [text for name, values in called(message) for text in (name, *values)]
    return [text for text in (*texts_of(message), *calls) if text.strip()]


def place_messages(text: str, messages: Sequence[Message]) -> tuple[list[Place], int]:
    """(where messages stand in `text`, in their order; how many characters of them it holds)."""
    places, position, found = [], 0, 0
    for index, message in enumerate(messages):
        for said in spoken(message):
            start, length, whole = _find(said, text, position)
            if length:
                places.append(Place(index, start, start + length, whole))
                position = start + length
                found += len(said) if whole else length
    return places, found


def _find(said: str, text: str, position: int) -> tuple[int, int, bool]:
    """(where, length, whether all of it): all of `said`, or as much as the text begins to hold."""
    for form in (said, *trimmed_forms(said)):
        start = text.find(form, position) if form else -1
        if start >= 0:
            return start, len(form), True
    lead = said.strip()
    start = text.find(lead[:LEAD], position)
    if start < 0:
        start = _cut_off_at_end(lead, text, position)
    if start < 0:
        return 0, 0, False
    return start, _shared_length(lead, text[start : start + len(lead)]), False


def _shared_length(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _cut_off_at_end(lead: str, text: str, position: int) -> int:
    """Where `text` ends with a beginning of `lead` that is shorter than LEAD; -1 when it does not.

    Half a character at the end counts for nothing.
    """
    end = len(text.rstrip("\ufffd"))
    for length in range(min(LEAD, len(lead), end - position), 0, -1):
        if text.startswith(lead[:length], end - length):
            return end - length
    return -1


class SourceIndex:
    """Finds conversations in texts."""

    def __init__(self, conversations: Sequence[Conversation], tokenizer: ChatTokenizer) -> None:
        self._conversations, self._tokenizer = conversations, tokenizer
        self._said = [
            sum(len(text) for message in one.messages for text in spoken(message))
            for one in conversations
        ]
        self._postings = _postings(conversations)
        self._rendered = self._digest_renderings()
        self.used: Counter[int] = Counter()

    def _digest_renderings(self) -> dict[bytes, list[int]]:
        """Digest of a text, as it comes back from its tokens -> conversations, ascending."""
        rendered: dict[bytes, list[int]] = {}
        for first in range(0, len(self._conversations), CHUNK_ROWS):
            numbers = range(first, min(first + CHUNK_ROWS, len(self._conversations)))
            encoded = self._tokenizer.encode([self._render(number) for number in numbers])
            texts = self._tokenizer.decode_batch([one.input_ids.tolist() for one in encoded])
            for number, text in zip(numbers, texts, strict=True):
                if text:
                    rendered.setdefault(_digest(text), []).append(number)
        return rendered

    def _render(self, number: int) -> str:
        """The conversation by the tokenizer's own template; empty when the template refuses it."""
        one = self._conversations[number]
        try:
            return self._tokenizer.render(one.messages, one.tools)
        except TemplateError:
            return ""

    def find(self, text: str, expected: int) -> Match | None:
        """The conversation that `text` holds; `expected` is the next one in order.

        At least half of a conversation must be there, or half of a text that was cut off early.
        """
        if same := self._rendered.get(_digest(text)):
            first = min(same, key=lambda one: (self.used[one], abs(one - expected)))
            places, _ = place_messages(text, self._conversations[first].messages)
            return Match(first, places, self._said[first], self._said[first])
        best: tuple[tuple[int, int, int, int], Match] | None = None
        for candidate in self._candidates(text, expected):
            match = self.match(text, candidate)
            if not match.found or match.found * 2 < min(match.said, len(text)):
                continue
            used, distance = min(self.used[candidate], 1), abs(candidate - expected)
            rank = (match.found, -match.said, -used, -distance)
            if best is None or rank > best[0]:
                best = rank, match
        return best[1] if best else None

    def match(self, text: str, conversation: int) -> Match:
        """What `text` holds of a conversation."""
        places, found = place_messages(text, self._conversations[conversation].messages)
        return Match(conversation, places, found, self._said[conversation])

    def _candidates(self, text: str, expected: int) -> list[int]:
        votes: Counter[int] = Counter()
        for word in set(_WORD.findall(text)):
            postings = self._postings.get(word, [])
            if len(postings) > POSTINGS:
                near = bisect_left(postings, expected)
                postings = postings[max(near - POSTINGS // 2, 0) : near + POSTINGS // 2]
            votes.update(postings)
        ranked = sorted(votes, key=lambda one: (-votes[one], abs(one - expected), one))
        last = min(expected + NEIGHBOURS, len(self._conversations))
        neighbours = range(max(expected - NEIGHBOURS, 0), last)
        return list(dict.fromkeys((*ranked[:CANDIDATES], *neighbours)))

    def is_cut(self, text: str, match: Match) -> bool:
        """Does the text end before the conversation does, so that more was cut off than its stop?

        Told by a message that breaks off at the end, or by the template, if it was the one used.
        """
        if match.is_whole:
            return False
        end = len(text.rstrip("\ufffd"))
        if match.places and not match.places[-1].whole and match.places[-1].end >= end:
            return True
        return bool(self._missing_end(text[:end], match).strip())

    def _missing_end(self, text: str, match: Match) -> str:
        whole = self._render(match.conversation)
        if not whole.startswith(text):
            return ""
        rest = whole[len(text) :]
        for stop in self._tokenizer.stop_tokens:
            rest = rest.replace(stop, "")
        return rest

    def holds_another(self, text: str, match: Match) -> int | None:
        """Another conversation before or behind the one found: the row is packed."""
        header = self._tokenizer.header
        if not match.places or _digest(text) in self._rendered:
            return None
        first, last = match.places[0].start, match.places[-1].end
        for rest in (text[last:], text[:first]):
            if len(rest) <= LEAD or (header and header not in rest):
                continue
            other = self.find(rest, match.conversation + 1)
            if other and other.is_whole and other.found > LEAD:
                return other.conversation
        return None


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _postings(conversations: Sequence[Conversation]) -> dict[str, list[int]]:
    """Rare word -> conversations that it stands for, ascending."""
    occurs: Counter[str] = Counter()
    for conversation in conversations:
        occurs.update({word for words in _words(conversation) for word in words})
    postings: dict[str, list[int]] = {}
    for number, conversation in enumerate(conversations):
        by_message = [words for words in _words(conversation) if words]
        rarest = _rarest({word for words in by_message for word in words}, RARE_WORDS, occurs)
        first = _rarest(by_message[0] if by_message else set(), FIRST_WORDS, occurs)
        for word in dict.fromkeys((*rarest, *first)):
            postings.setdefault(word, []).append(number)
    return postings


def _words(conversation: Conversation) -> Iterator[set[str]]:
    """The words of every message but the system's, which many conversations share."""
    for message in conversation.messages:
        if message["role"] not in ("system", "developer"):
            yield {word for text in spoken(message) for word in _WORD.findall(text)}


def _rarest(words: set[str], wanted: int, occurs: Counter[str]) -> list[str]:
    return sorted(words, key=lambda word: (occurs[word], -len(word), word))[:wanted]


def fill_gaps(matched: Sequence[int | None], conversations: int) -> dict[int, int]:
    """Row -> conversation by order, for rows that match none.

    Between two matched rows, as many unmatched rows as there are unmatched conversations.
    """
    taken = {one for one in matched if one is not None}
    filled: dict[int, int] = {}
    waiting: list[int] = []
    previous = -1
    for row, found in enumerate((*matched, conversations)):
        if found is None:
            waiting.append(row)
            continue
        free = [one for one in range(previous + 1, found) if one not in taken]
        if waiting and len(free) == len(waiting):
            filled.update(zip(waiting, free, strict=True))
        waiting, previous = [], found
    return filled
