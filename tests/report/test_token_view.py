"""Packed conversations hold every token, label, role and finding, and cannot end their script."""

import json

import pytest

from stages.report.token_view import TokenFinding, TokenView, pack, run_lengths, script_json

VIEW = TokenView(
    anchor="row-7",
    source="a.jsonl:3",
    split="train",
    status="kept",
    tokens=["hi", " ", "hi", b"\xf0\x9f", b"\x98\x80", "<end>"],
    ids=[5, 6, 5, 7, 8, 2],
    labels=[-100, -100, 5, 7, 8, -100],
    roles=["user", "header", "content", "content", "content", "stop"],
    findings=[TokenFinding("stop_masked", 5, 1, "tokens '<end>'")],
)


def test_neighbours_that_are_equal_are_counted() -> None:
    assert run_lengths("aabaaa") == [("a", 2), ("b", 1), ("a", 3)]
    assert run_lengths("") == []


def test_a_view_is_packed_token_by_token() -> None:
    assert pack([VIEW]) == {
        "roles": ["user", "header", "content", "stop"],
        "ids": [5, 6, 7, 8, 2],
        "pieces": ["hi", " ", [0xF0, 0x9F], [0x98, 0x80], "<end>"],
        "rows": [
            {
                "anchor": "row-7",
                "source": "a.jsonl:3",
                "split": "train",
                "status": "kept",
                "detail": "",
                "total": 6,
                "tokens": [0, 1, 0, 2, 3, 4],
                "roles": [0, 1, 1, 1, 2, 3, 3, 1],
                "supervised": [2, 3, 1],
                "labels": [],
                "findings": [["stop_masked", 5, 1, "tokens '<end>'"]],
            }
        ],
    }


@pytest.mark.parametrize(
    ("labels", "supervised", "odd"),
    [
        ([-100, -100, -100], [3], []),
        ([5, 6, 7], [0, 3], []),
        ([5, -100, 7], [0, 1, 1, 1], []),
        ([-100, 9, -1], [1, 1, 1], [1, 9, 2, -1]),
    ],
)
def test_labels_are_packed_as_runs_and_exceptions(
    labels: list[int], supervised: list[int], odd: list[int]
) -> None:
    view = TokenView("row-1", "a:1", "train", "kept", list("abc"), [5, 6, 7], labels, ["user"] * 3)
    row = pack([view])["rows"][0]
    assert (row["supervised"], row["labels"]) == (supervised, odd)


def test_tokens_are_shared_between_rows() -> None:
    packed = pack([VIEW, VIEW])
    assert packed["ids"] == [5, 6, 7, 8, 2]
    assert packed["rows"][0]["tokens"] == packed["rows"][1]["tokens"]


def test_the_same_text_under_two_ids_stays_two_tokens() -> None:
    view = TokenView("row-1", "a:1", "train", "kept", ["x", "x"], [1, 2], [-100] * 2, ["user"] * 2)
    packed = pack([view])
    assert (packed["ids"], packed["pieces"]) == ([1, 2], ["x", "x"])


def test_a_row_without_tokens_is_packed() -> None:
    row = pack([TokenView("row-1", "a:1", "train", "dropped: x", [], [], [], [], detail="why")])
    assert row["rows"][0] == {
        **pack([VIEW])["rows"][0],
        "anchor": "row-1",
        "source": "a:1",
        "status": "dropped: x",
        "detail": "why",
        "total": 0,
        "tokens": [],
        "roles": [],
        "supervised": [],
        "findings": [],
    }


@pytest.mark.parametrize(
    "text",
    ["</script><script>alert(1)</script>", "</SCRIPT >", "<!-- <script>", "]]>&amp;\u2028\\u003c"],
)
def test_no_text_ends_the_script_and_all_of_it_comes_back(text: str) -> None:
    written = script_json({"text": text})
    assert "<" not in written
    assert json.loads(written) == {"text": text}


def test_the_json_is_compact() -> None:
    assert script_json({"a": [1, 2], "b": "ü"}) == '{"a":[1,2],"b":"ü"}'
