"""The conversation that a text holds is found, whatever template wrote the text."""

import pytest

from stages.chat.conversation import Conversation, Message
from stages.chat.tokenizer import ChatTokenizer
from stages.foreign.matching import Place, SourceIndex, fill_gaps, place_messages

from ..chat.tokenizers import chat_tokenizer

PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def conversation(*texts: str) -> Conversation:
    roles = ("user", "assistant")
    messages: list[Message] = [
        {"role": roles[turn % 2], "content": text} for turn, text in enumerate(texts)
    ]
    return Conversation("", "", messages)


def in_brackets(one: Conversation, until: int | None = None) -> str:
    """The conversation as another template would write it."""
    said = (f"[{message['role'].upper()}] {message['content']} " for message in one.messages)
    return "".join(said)[:until]


QUESTIONS = [conversation(f"Describe {name}, please.", f"{name} is a planet.") for name in PLANETS]


def found(index: SourceIndex, text: str, expected: int = 0) -> int | None:
    match = index.find(text, expected)
    return None if match is None else match.conversation


def test_every_text_finds_its_conversation_wherever_it_is_expected(
    tokenizer: ChatTokenizer,
) -> None:
    index = SourceIndex(QUESTIONS, tokenizer)
    for number, one in enumerate(QUESTIONS):
        for text in (in_brackets(one), tokenizer.render(one.messages)):
            assert [found(index, text, expected) for expected in (0, 7)] == [number, number]
    assert found(index, "[USER] What is a sonnet? [ASSISTANT] A poem of fourteen lines.") is None


def test_the_longer_of_two_conversations_needs_the_longer_text(tokenizer: ChatTokenizer) -> None:
    short = conversation("Name a planet.", "Mars.")
    long = conversation("Name a planet.", "Mars.", "Another one?", "Venus.")
    for order in ([short, long], [long, short]):
        index = SourceIndex(order, tokenizer)
        assert found(index, in_brackets(short)) == order.index(short)
        assert found(index, in_brackets(long)) == order.index(long)


def test_of_equal_conversations_the_next_unused_is_taken(tokenizer: ChatTokenizer) -> None:
    index = SourceIndex([QUESTIONS[0], QUESTIONS[1], QUESTIONS[0]], tokenizer)
    for text in (in_brackets(QUESTIONS[0]), tokenizer.render(QUESTIONS[0].messages)):
        index.used.clear()
        assert found(index, text) == 0
        index.used[0] += 1
        assert found(index, text, 1) == 2


def test_a_conversation_is_found_among_many_that_share_all_words(
    tokenizer: ChatTokenizer,
) -> None:
    sums = [conversation(f"{a} + {b} =", f"{a + b}") for a in range(20) for b in range(20)]
    index = SourceIndex(sums, tokenizer)
    wanted = range(0, 400, 7)
    expected = 0
    for number in wanted:
        assert found(index, in_brackets(sums[number]), expected) == number
        expected = number + 1


def test_messages_are_placed_in_their_order() -> None:
    one = conversation("yes", "yes yes", "  no\n")
    text = "U yes A yes yes U no E"
    places, characters = place_messages(text, one.messages)
    assert places == [Place(0, 2, 5), Place(1, 8, 15), Place(2, 18, 20)]
    assert characters == 3 + 7 + 5


def test_the_beginning_of_a_message_at_the_end_is_placed() -> None:
    one = conversation("question", "a long answer")
    places, characters = place_messages("question: a lo", one.messages)
    assert places == [Place(0, 0, 8), Place(1, 10, 14, whole=False)]
    assert characters == 8 + 4


@pytest.mark.parametrize(
    ("end", "cut"),
    [(len("[USER] Describe Mars, please. [ASSISTANT] Mars is"), True), (None, False)],
)
def test_a_cut_in_an_answer_is_seen_without_the_template(
    tokenizer: ChatTokenizer, end: int | None, cut: bool
) -> None:
    index = SourceIndex(QUESTIONS, tokenizer)
    text = in_brackets(QUESTIONS[3], end)
    match = index.find(text, 0)
    assert match is not None
    assert (match.conversation, index.is_cut(text, match)) == (3, cut)


def test_a_missing_stop_token_is_no_cut(tokenizer: ChatTokenizer) -> None:
    index = SourceIndex(QUESTIONS, tokenizer)
    text = tokenizer.render(QUESTIONS[3].messages)
    for end, cut in ((len(text) - len("<|im_end|>\n"), False), (text.index("assistant"), True)):
        match = index.match(text[:end], 3)
        assert index.is_cut(text[:end], match) is cut


def test_two_conversations_in_a_text_are_noticed(tokenizer: ChatTokenizer) -> None:
    long = [
        conversation(f"Describe {name} in a sentence, please.", f"{name} is one of the planets.")
        for name in PLANETS
    ]
    index = SourceIndex(long, tokenizer)
    two = tokenizer.render(long[2].messages) + tokenizer.render(long[5].messages)
    match = index.find(two, 2)
    assert match is not None
    assert {match.conversation, index.holds_another(two, match)} == {2, 5}
    alone = tokenizer.render(long[2].messages)
    match = index.find(alone, 2)
    assert match is not None
    assert index.holds_another(alone, match) is None


@pytest.mark.parametrize(
    ("matched", "conversations", "filled"),
    [
        ([0, None, 2], 3, {1: 1}),
        ([0, None, 3], 4, {}),
        ([None, None], 2, {0: 0, 1: 1}),
        ([None, 0], 1, {}),
        ([0, None, 1, None], 3, {3: 2}),
        ([2, None, 0], 3, {}),
    ],
)
def test_gaps_are_filled_where_as_many_are_missing_on_both_sides(
    matched: list[int | None], conversations: int, filled: dict[int, int]
) -> None:
    assert fill_gaps(matched, conversations) == filled


def test_an_empty_source_matches_nothing(tokenizer: ChatTokenizer) -> None:
    assert SourceIndex([], tokenizer).find("anything", 0) is None
