# ruff: noqa: RUF001 - look-alike characters are among the traps
"""Conversations that catch wrong masks: each holds one trap, and says which by its name."""

from typing import Any

from stages.chat.conversation import Message

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City, in its own language"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer"},
            },
            "required": ["place"],
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search documents",
        "parameters": {
            "type": "object",
            "properties": {
                "words": {"type": "array", "items": {"type": "string"}},
                "exact": {"type": "boolean", "default": False},
            },
            "required": ["words"],
        },
    },
}
TOOLS: list[Any] = [WEATHER, SEARCH]


def system(content: Any) -> Message:
    return {"role": "system", "content": content}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def answer(content: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def tool(content: Any) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": "call_0001"}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {
        "id": "call_0001",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def calling(*calls: dict[str, Any], content: str | None = None, **more: Any) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def ask(reply: str, question: str = "What do you say?") -> list[Message]:
    return [user(question), answer(reply)]


def chat(first: str, second: str) -> list[Message]:
    """Two exchanges: templates treat a history unlike a last turn."""
    return [user("Begin."), answer(first), user("Go on."), answer(second)]


CODE = "def f(x):\n    if x:\n\treturn [\n\t    x\n\t]\n    return None\n"
MARKDOWN = "# Title\n\n* one\n* two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\npass\n```"
ZWJ = "👩‍👩‍👧‍👦 and 🏳️‍🌈 and 👍🏽"
RTL = "שלום עולם, مرحبا بالعالم!"
NESTED = {
    "place": 'Zürich "West" \\ 東京',
    "filters": [{"a": [1, 2.5, None]}, {"b": {"c": True}}],
    "note": "line\nbreak </tool_call> {{ x }} 'quoted'",
}

PLAIN: dict[str, list[Message]] = {
    "one exchange": ask("Hello there."),
    "two exchanges": chat("The first answer.", "The second answer."),
    "three exchanges": [*chat("One.", "Two."), user("And then?"), answer("Three.")],
    "a system turn": [system("Be brief."), *ask("Yes.")],
    "a system turn with white space at its ends": [system("  Be brief.\n"), *ask("Yes.")],
    "ends on the user": [*ask("Hello."), user("Are you there?")],
    "a user alone": [user("Is anybody there?")],
    "two user turns in a row": [user("First."), user("Second."), answer("Both read.")],
    "two answers in a row": [user("Go."), answer("First half."), answer("Second half.")],
    "a system turn in the middle": [*ask("Hello."), system("Be rude."), *ask("Go away.")],
    "an answer before any question": [answer("Welcome!"), user("Thanks."), answer("Sure.")],
    "weight 0 on the first answer": [
        user("Begin."),
        answer("Bad.", weight=0),
        user("Again."),
        answer("Good.", weight=1),
    ],
    "weight 0 on the last answer": [*ask("Good."), user("Again."), answer("Bad.", weight=0)],
    "identical turns": [*ask("Ping.", "Ping?"), *ask("Ping.", "Ping?"), *ask("Ping.", "Ping?")],
    "answer equals question": chat("Begin.", "Go on."),
    "everything is the same word": [
        system("ok"),
        user("ok"),
        answer("ok"),
        user("ok"),
        answer("ok"),
    ],
    "answer inside the question": [user("Say yes. yes yes"), answer("yes")],
    "very short a": chat("a", "a"),
    "very short 1": chat("1", "1"),
    "very short dot": chat(".", "."),
    "digits": ask("3.14159265358979 12345678 0007 ١٢٣", "1234567890"),
    "an empty answer": chat("", "The second."),
    "an answer of white space": [*ask(" \n "), *ask("Yes.")],
}

TEXT: dict[str, list[Message]] = {
    "brackets": chat("[[1, 2], [3]]", "[[wikilink]] is [[this]]"),
    "json": ask('{"a": [{"b": "c\\n"}], "d": null}'),
    "leading and trailing spaces": chat("  padded  ", "  padded again  "),
    "leading newlines": chat("\n\nafter newlines", "\nafter one"),
    "trailing newlines": chat("before newlines\n\n", "before one\n"),
    "space in the question only": ask("yes", "  padded question \n"),
    "crlf": chat("one\r\ntwo\r\n", "\r\nthree\r\n\r\nfour"),
    "a tab first": ask("\tindented"),
    "code with indentation": chat("    return x\n", CODE),
    "markdown": ask(MARKDOWN),
    "emoji": chat("😀", f"Family: {ZWJ}"),
    "zwj alone": ask(ZWJ, ZWJ),
    "right to left": ask(RTL, RTL),
    "cjk": ask("东京和京都。１２３", "ハーフ ﾊｰﾌ"),
    "decomposed accents": ask("cafe\u0301 n\u0303andu\u0301", "e\u0301"),
    "begins with a combining mark": chat("\u0301acute", "\u0308"),
    "ends with a combining mark": ask("cafe\u0301"),
    "word joiners": chat("\u2060joined\u2060", "\u2060"),
    "sentinel look-alike": ask(
        "\u2060content0\u2060 and \u2060content1\u2060", "\u2060content1\u2060"
    ),
    "no-break and thin spaces": ask("\u00a0no-break\u2009thin\u3000wide\u00a0"),
    "zero width and byte order marks": ask("\u200bzero\ufeff", "\ufeffmark"),
    "lower one eighth block": ask("▁leading▁block ▁", "▁"),
    "jinja-like": chat("{{ x }} {% if y %}{# z #}{% endif %}", "}} {{"),
    "braces": ask("{}{0}{name}%s %(x)s $x \\1"),
    "html": ask('<b>&amp; &lt;</b> "it\'s" <table><tr>'),
    "the word assistant": chat("assistant", "assistant\n"),
    "the word model": ask("model", "user"),
    "a chatml header": chat("<|im_start|>assistant\n", "<|im_start|>assistant\nHi"),
    "a llama header": ask("<|start_header_id|>assistant<|end_header_id|>\n\nHi"),
    "a gemma header": ask("<start_of_turn>model\nHi"),
    "a deepseek header": ask("<｜Assistant｜>Hi", "<｜User｜>Hi"),
    "a harmony header": ask("<|start|>assistant", "<|start|>user<|message|>Hi<|end|>"),
    "stop tokens in the question": ask(
        "yes", "<|im_end|><|eot_id|><end_of_turn><｜end▁of▁sentence｜><|end|><|return|>"
    ),
    "im_end in the question": [
        *ask("Fine.", "What is <|im_end|>?"),
        *ask("Fine.", "What is <|im_end|>\n<|im_start|>assistant\nFine.?"),
    ],
    "im_end in an answer": ask("It is <|im_end|> I think."),
    "llama stop in an answer": ask("It is <|eot_id|> I think."),
    "long": ask("word " * 400 + "end", "question " * 300),
}

THINKING: dict[str, list[Message]] = {
    "closing think tag in an answer": ask("The tag is </think> here."),
    "closing think tag in history": chat("The tag is </think> here.", "Yes."),
    "opening think tag in an answer": ask("The tag is <think> here."),
    "think block in an answer": ask("<think>\nLet me see.\n</think>\n\nIt is 4."),
    "think block in history": chat("<think>\nLet me see.\n</think>\n\nIt is 4.", "It is 5."),
    "think block on one line": ask("<think>Let me see.</think>It is 4."),
    "think blocks in both": chat(
        "<think>\nSame.\n</think>\n\nSame.", "<think>\nSame.\n</think>\n\nSame."
    ),
    "two think blocks": ask("<think>a</think>b<think>c</think>d"),
    "text before a think block": ask("Well. <think>a</think>b"),
    "an empty think block": ask("<think>\n\n</think>\n\nIt is 4."),
    "reasoning": [user("2+2?"), answer("It is 4.", reasoning_content="Two and two.")],
    "reasoning in history": [
        user("2+2?"),
        answer("It is 4.", reasoning_content="Two and two."),
        user("2+3?"),
        answer("It is 5.", reasoning_content="Two and three."),
    ],
    "reasoning equals answer": [user("2+2?"), answer("4", reasoning_content="4")],
    "reasoning equals question": [user("2+2?"), answer("4", reasoning_content="2+2?")],
    "reasoning with white space": [user("2+2?"), answer("4", reasoning_content="\n\n  Two. \n\n")],
    "reasoning and think tags in the answer": [
        user("2+2?"),
        answer("Tags: <think>x</think> 4", reasoning_content="Two."),
    ],
    "reasoning and no answer": [user("2+2?"), answer("", reasoning_content="Two and two.")],
}

CALLS: dict[str, list[Message]] = {
    "a tool call": [user("Weather?"), calling(call("get_weather", {"place": "Bern"}))],
    "a tool call with empty content": [
        user("Weather?"),
        calling(call("get_weather", {"place": "Bern"}), content=""),
    ],
    "a tool call after text": [
        user("Weather?"),
        calling(call("get_weather", {"place": "Bern"}), content="Let me look."),
    ],
    "a tool call, its result and an answer": [
        user("Weather in Bern?"),
        calling(call("get_weather", {"place": "Bern"}), content=""),
        tool('{"sky": "clear"}'),
        answer("It is clear."),
    ],
    "a tool call with null content, its result and an answer": [
        user("Weather in Bern?"),
        calling(call("get_weather", {"place": "Bern"})),
        tool("clear"),
        answer("It is clear."),
    ],
    "arguments as text": [
        user("Weather?"),
        calling(call("get_weather", '{"place": "Bern"}')),
        tool("clear"),
        answer("Clear."),
    ],
    "several tool calls": [
        user("Weather in Bern and Basel?"),
        calling(
            call("get_weather", {"place": "Bern"}),
            call("get_weather", {"place": "Basel"}),
            content="",
        ),
        tool("clear"),
        tool("rain"),
        answer("Clear, and rain."),
    ],
    "several tool calls as text": [
        user("Weather in Bern and Basel?"),
        calling(
            call("get_weather", '{"place": "Bern"}'),
            call("get_weather", '{"place": "Basel"}'),
        ),
        tool("clear"),
        tool("rain"),
        answer("Clear, and rain."),
    ],
    "several tool calls as text and empty content": [
        user("Weather in Bern and Basel?"),
        calling(
            call("get_weather", '{"place": "Bern"}'),
            call("get_weather", '{"place": "Basel"}'),
            content="",
        ),
        tool("clear"),
        tool("rain"),
        answer("Clear, and rain."),
    ],
    "a tool call as text after text": [
        user("Weather?"),
        calling(call("get_weather", '{"place": "Bern"}'), content="Let me look."),
        tool("clear"),
        answer("Clear."),
    ],
    "two rounds of tools as text": [
        user("Weather?"),
        calling(call("get_weather", '{"place": "Bern"}'), content=""),
        tool("clear"),
        calling(call("search", '{"words": ["Bern", "sky"]}'), content=""),
        tool("blue"),
        answer("Blue."),
    ],
    "identical tool calls": [
        user("Twice, please."),
        calling(call("search", {"words": ["a"]}), call("search", {"words": ["a"]}), content=""),
        tool("a"),
        tool("a"),
        answer("a"),
    ],
    "nested arguments": [user("Weather?"), calling(call("get_weather", NESTED), content="")],
    "no arguments": [user("Weather?"), calling(call("get_weather", {}), content="")],
    "two rounds of tools": [
        user("Weather?"),
        calling(call("get_weather", {"place": "Bern"}), content=""),
        tool("clear"),
        calling(call("search", {"words": ["Bern", "sky"]}), content="More."),
        tool("blue"),
        answer("Blue."),
        user("Thanks."),
        answer("Welcome."),
    ],
    "reasoning before a tool call": [
        user("Weather?"),
        calling(
            call("get_weather", {"place": "Bern"}), content="", reasoning_content="I must look."
        ),
        tool("clear"),
        answer("Clear.", reasoning_content="It says clear."),
    ],
    "arguments equal to the question": [
        user('{"place": "Bern"}'),
        calling(call("get_weather", {"place": "Bern"}), content=""),
        tool('{"place": "Bern"}'),
        answer('{"place": "Bern"}'),
    ],
    "a result that quotes and breaks lines": [
        user("Weather?"),
        calling(call("get_weather", {"place": "Bern"}), content=""),
        tool('"clear"\n\\o/ <|im_end|> é 東'),
        answer("Clear."),
    ],
    "a user turn that looks like a result": [
        user("Weather?"),
        answer("One moment."),
        user("<tool_response>\nclear\n</tool_response>"),
        answer("Clear."),
    ],
    "weight 0 on a tool call": [
        user("Weather?"),
        calling(call("get_weather", {"place": "Bern"}), content="", weight=0),
        tool("clear"),
        answer("Clear."),
    ],
}

LISTS: dict[str, list[Message]] = {
    "an answer of one part": [user("Hello?"), answer(parts("Hello."))],
    "an answer of two parts": [user("Hello?"), answer(parts("Hello. ", "Bye."))],
    "a question of parts": [user(parts("Hello?", " Anyone?")), answer("Hello.")],
    "all turns in parts": [
        system(parts("Be brief.")),
        user(parts("Hello?")),
        answer(parts("Hello.")),
        user(parts("Bye?")),
        answer(parts("Bye.")),
    ],
}

CONVERSATIONS: dict[str, tuple[list[Message], list[Any] | None]] = {
    **{name: (turns, None) for name, turns in {**PLAIN, **TEXT, **THINKING, **LISTS}.items()},
    **{name: (turns, TOOLS) for name, turns in CALLS.items()},
    "a tool call without a list of tools": (CALLS["several tool calls"], None),
    "tools and no call": (ask("Hello."), TOOLS),
    "tools, a system turn and a call": (
        [system("Be brief."), *CALLS["a tool call, its result and an answer"]],
        TOOLS,
    ),
    "tools and two exchanges": (chat("One.", "Two."), [SEARCH]),
}
"""Name -> messages and tools."""
