"""Placeholders, broken-off answers, damage and odd scripts are seen, healthy texts pass."""

from pathlib import Path

import pytest

from stages.data_audit import text_audit
from stages.data_audit.endings import breaks_off
from stages.data_audit.placeholders import unfilled_placeholder
from stages.data_audit.text_checks import damage, dominant_script, script_of

from .texts import asked, audit, conversation, words


@pytest.mark.parametrize(
    ("question", "answer", "mark"),
    [
        ("Hi {{ first_name }}, how are you?", "Fine.", "{{ first_name }} in the user turn"),
        ("Translate {text} to French.", "Oui.", "{text} in the user turn"),
        ("Hi.", "Hello <name>, welcome.", "<name> in the assistant turn"),
        ("Hi.", "Hello <insert city here>!", "<insert city here> in the assistant turn"),
        ("Hi, I'm [User's Name].", "Hello!", "[User's Name] in the user turn"),
        ("Who are you?", "I am [NAME].", "[NAME] in the assistant turn"),
        ("Hello %s, what is new?", "Nothing.", "%s in the user turn"),
        ("Hi.", "Good morning, ${customer}!", "${customer} in the assistant turn"),
        ("Why?", "TODO", "TODO in the assistant turn"),
        ("Why?", "Lorem ipsum dolor sit amet.", "Lorem ipsum in the assistant turn"),
        ("Why?", "Ask YOUR_COMPANY.", "YOUR_COMPANY in the assistant turn"),
        ("Why?", '{"answer": "{{answer}}"}', "{{answer}} in the assistant turn"),
    ],
)
def test_a_placeholder_is_named_with_its_turn(question: str, answer: str, mark: str) -> None:
    assert unfilled_placeholder(conversation(*asked(question, answer))) == mark


def test_a_placeholder_in_a_system_turn_is_found() -> None:
    row = conversation(("system", "You are {assistant_name}."), *asked("Hi.", "Hello."))
    assert unfilled_placeholder(row) == "{assistant_name} in the system turn"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Write an e-mail template.", "Dear [Name], hello."),
        ("Write a letter to my landlord.", "Dear [Landlord's Name], hello."),
        ("How do I use %s in printf?", "%s stands for a string."),
        ("How do I print it?", "Like this:\n```py\nprint(f'{name}')\n```"),
        ("How do I print it?", "Write `{name}` there."),
        ("Half of x?", r"\frac{half}{two} and x^{abc} and a_{max}"),
        ("Where?", "See [Name](https://example.org) and [name][1]."),
        ("Mark it up.", "<name>Bob</name> and <title>Hello</title>"),
        ("Which tags?", "<div> <p> <br> <think> <tool_call>"),
        ("Which call?", "GET /users/{user_id}/posts"),
        ("Which pod?", "Run kubectl get pod ${POD}."),
        ("What?", '{"name": "bob", "set": ["a"]}'),
        ("11:37 [ERROR] node37", "[WARN] is less than [ERROR]."),
        ("[INST] hello [/INST]", "100% sure, 50%so"),
        ("What is on my todo list?", "Nothing."),
        ("Name fruit.", "{apple, pear}"),
        ("What does if (a) {return} do?", "It returns: {return}."),
        ("A list of what?", "List<String>"),
    ],
)
def test_the_marks_of_code_markup_and_templates_are_healthy(question: str, answer: str) -> None:
    assert unfilled_placeholder(conversation(*asked(question, answer))) is None


@pytest.mark.parametrize(
    "text",
    [
        "The cat sat on the mat. Then it went out to see whether",
        "First, take the eggs, the flour and,",
        "It was good. It was bad. While Bitcoin",
        "It is kept in the shed, next to the",
        "Das ist gut. Und dann (",
        "He said: “",
        "[The curtain rises.] He looks at the skull. He speaks to it and then",
        "- Do this with a lot of care.\n- Do that with a lot of care.\n- Do it again and keep on",
        "1. Mix the flour and the eggs well.\n2. Add the milk and stir it until",
        "我喜欢猫。它们很可爱，而且",  # noqa: RUF001
        "Это первое предложение. Это второе, и оно ещё не",
    ],
)
def test_an_answer_that_ends_in_mid_sentence_breaks_off(text: str) -> None:
    reason = breaks_off(text)
    assert reason is not None
    assert reason.startswith("ends in mid-sentence: ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Like this:\n```py\nx = 1", "a code fence is not closed"),
        ('{"a": [1, 2', 'JSON is not closed: {"a": [1, 2'),
        ('{"a": "b', 'JSON is not closed: {"a": "b'),
        ('{"a": {"b": 1}', 'JSON is not closed: {"a": {"b": 1}'),
    ],
)
def test_what_is_left_open_is_named(text: str, reason: str) -> None:
    assert breaks_off(text) == reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Paris",
        "Answer: B",
        "The capital of France is Paris",
        "You asked for the capital. The answer is Paris",
        "Sure! Here is the translation: Je suis étudiant",
        "The answer is 42",
        "It costs 5 €",
        "Water boils at 100 °C",
        "See https://example.org/a",
        "x = a + b",
        "Great 😀",
        "I am sad :(",
        "**Title**",
        'He said "no."',
        "Er sagte „nein“",
        '{"a": 1}',
        "[1, 2]",
        '{"open": "{[("}',
        "[The curtain rises.] Hamlet",
        "```py\nx = 1\n```",
        "Use this:\n\n    x = call(the",
        "- milk\n- eggs\n- bread",
        "Three tips:\n1. Eat well\n2. Sleep enough\n3. Exercise daily",
        "Dear Sir,\nI write to you about the thing that you sent.\n\nBest regards,\nJohn Smith",
        "Roses are red\nViolets are blue\nSugar is sweet\nAnd so are you",
        "“Be yourself, as all others are taken.” - Oscar Wilde",
        "I love my dog. He is great. #PuppyLove",
        "Name,Age\nBob,3\nAnn,x",
        "我喜欢猫。",
        "你喜欢猫吗？",  # noqa: RUF001
        "हाँ, यह सही है।",
        "نعم، هذا صحيح؟",
        "สวัสดีครับ ผมชอบแมว",
        "Ask Mr. Brown or Dr. Smith",
    ],
)
def test_a_complete_answer_does_not_break_off(text: str) -> None:
    assert breaks_off(text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cafÃ© au lait", "holds 'Ã© a' (decoded from another encoding)"),
        ("itâ€™s", "holds 'â€™s' (decoded from another encoding)"),
        ("a\ufffdb", "holds U+FFFD (a character that could not be decoded)"),
        ("a\x00b", "holds U+0000 (control character)"),
        ("a\x9db", "holds U+009D (control character)"),
        ("a\ud800b", "holds U+D800 (half of a surrogate pair)"),
    ],
)
def test_damage_is_named(text: str, found: str) -> None:
    assert damage(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "plain\ttext\r\nin two lines",
        "naïve café, L’été à São Paulo",  # noqa: RUF001
        "Ångström ÆØÅ, Türkçe ığüşöç, tiếng Việt được",
        "“Hi”—she said… • 5 ± ½ €",
        "Привет, мир! Ёжик",
        "Ελληνικά, עברית, العربية",
        "日本語です。 한국어",
        "😀👍🏽 ┌──┐│x│",
    ],
)
def test_text_in_any_language_is_not_damaged(text: str) -> None:
    assert damage(text) is None


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Hello", "Latin"),
        ("42 + 1 = 43!", None),
        ("Привет, Bob", "Cyrillic"),
        ("日本語です", "Han and kana"),
        ("Ｈｅｌｌｏ", "Latin"),  # noqa: RUF001
        ("한국어", "Hangul"),
        ("", None),
    ],
)
def test_the_script_of_most_letters_counts(text: str, script: str | None) -> None:
    assert dominant_script(text) == script


def test_a_digit_has_no_script() -> None:
    assert script_of("5") is None


def test_an_answer_in_a_script_of_under_a_hundredth_of_rows_is_an_outlier(tmp_path: Path) -> None:
    latin = [asked(f"question {number}", f"answer {number}") for number in range(100)]
    found = audit(tmp_path, [*latin, asked("question", "ответ")])
    assert found.findings["script_outlier"] == [("t:101", "answers in Cyrillic letters")]


def test_two_scripts_that_are_both_common_are_healthy(tmp_path: Path) -> None:
    latin = [asked(f"question {number}", f"answer {number}") for number in range(20)]
    found = audit(tmp_path, [*latin, asked("question", "ответ"), asked("sum", "42")])
    assert found.counts["script_outlier"] == 0


def test_the_shape_of_conversations_is_measured(tmp_path: Path) -> None:
    rows = [
        [("system", "sssss"), *asked("ab", "cdef")],
        [*asked("a", "b"), *asked("c", "d")],
        asked("abcde", "fghijklmno"),
    ]
    shape = audit(tmp_path, rows).shape
    assert dict(shape.turns) == {3: 1, 4: 1, 2: 1}
    assert dict(shape.characters) == {"user": 9, "assistant": 16}
    assert (shape.median_characters, shape.longest_characters, shape.longest) == (6, 15, "t:3")


def test_findings_beyond_a_limit_are_counted_but_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_audit, "FINDINGS_KEPT", 2)
    rows = [asked(words(10 * row, 10 * row + 5), "TODO") for row in range(5)]
    found = audit(tmp_path, rows)
    assert found.counts["placeholder"] == 5
    assert [source for source, _ in found.findings["placeholder"]] == ["t:1", "t:2"]


def test_damage_is_found_in_stored_rows(tmp_path: Path) -> None:
    rows = [
        asked("a", "plain"),
        asked("b", "nul \x00"),
        asked("c", "cafÃ© au"),
        asked("d\x7f", "e"),
    ]
    found = audit(tmp_path, rows).findings["damaged_text"]
    assert [source for source, _ in found] == ["t:2", "t:3", "t:4"]
    assert found[0][1] == "the assistant turn holds U+0000 (control character)"
