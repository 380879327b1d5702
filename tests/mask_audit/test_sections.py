"""The sections of gate 1's page add up: every row and token is somewhere."""

import itertools
from collections import Counter
from dataclasses import fields, replace

import numpy as np

from stages.chat.split import Split
from stages.config.schema import Data, Labels
from stages.mask_audit.findings import Audit, Finding
from stages.mask_audit.prepare import Accounting
from stages.mask_audit.sampling import COLLATED
from stages.mask_audit.sections import (
    findings_section,
    lengths_section,
    policy_section,
    rows_section,
)
from stages.report.page import Bar, Link
from stages.report.token_view import TokenFinding, TokenView

from ..settings import make_params


def accounting() -> dict[Split, Accounting]:
    """Ten rows: one refused, two too long, seven kept, of which one was cut from 90 to 60."""
    train = Accounting(
        np.zeros(4, np.int64),
        loaded=8,
        rendered=7,
        kept=5,
        truncated=1,
        dropped=Counter({"template_refuses": 1, "too_long": 2}),
        tokens_kept=4 * 50 + 60,
        tokens_supervised=100,
        lengths=Counter({50: 4, 90: 1, 200: 2}),
    )
    validation = Accounting(
        np.zeros(4, np.int64),
        loaded=2,
        rendered=2,
        kept=2,
        tokens_kept=100,
        tokens_supervised=40,
        lengths=Counter({50: 2}),
    )
    return {"train": train, "validation": validation}


TOKENS = {"kept": 6 * 50, "cut": 90, "dropped: too_long": 400, "dropped: template_refuses": 0}


def make_data(max_length: int = 60) -> Data:
    return replace(make_params().data, max_length=max_length, truncation="keep_start")


def test_the_funnel_names_every_loss_in_rows_and_in_tokens() -> None:
    rows, tokens = rows_section(accounting(), TOKENS).bars
    assert rows == [
        Bar("loaded", 10, "rows"),
        Bar("rendered", 9, "rows", {"template_refuses": 1}),
        Bar("kept", 7, "rows", {"too_long": 2}),
        Bar("kept whole", 6, "rows", {"cut to data.max_length": 1}),
    ]
    assert tokens == [
        Bar("rendered", 790, "tokens"),
        Bar("in kept rows", 390, "tokens", {"too_long": 400}),
        Bar("kept", 360, "tokens", {"cut off by data.max_length": 30}),
        Bar("trained on", 140, "tokens", {"masked": 220}),
    ]


def test_every_bar_is_the_one_before_less_what_was_lost() -> None:
    for funnel in rows_section(accounting(), TOKENS).bars:
        for before, bar in itertools.pairwise(funnel):
            assert bar.value == before.value - sum(bar.lost.values())


def test_the_splits_are_told_apart_in_the_table() -> None:
    table = rows_section(accounting(), TOKENS).table
    assert table is not None
    assert table.columns == (
        *("split", "loaded", "rendered", "template_refuses", "too_long"),
        *("kept", "of these cut", "tokens", "supervised"),
    )
    assert table.rows == [
        ("train", 8, 7, 1, 2, 5, 1, 260, 100),
        ("validation", 2, 2, 0, 0, 2, 0, 100, 40),
    ]


def test_the_cost_of_each_max_length_stands_in_a_table() -> None:
    section = lengths_section(accounting(), make_data())
    assert section.table is not None
    assert section.table.rows == [
        ("60 (now)", "3 (33.33%)", "490 (62.03%)", "310 (39.24%)"),
        (64, "3 (33.33%)", "490 (62.03%)", "298 (37.72%)"),
        (96, "2 (22.22%)", "400 (50.63%)", "208 (26.33%)"),
        (128, "2 (22.22%)", "400 (50.63%)", "144 (18.23%)"),
        (192, "2 (22.22%)", "400 (50.63%)", "16 (2.03%)"),
        (256, "0", "0", "0"),
    ]
    assert "data.max_length = 60" in section.charts[0]
    assert "200 tokens" in section.text


def test_a_limit_far_beyond_the_longest_row_does_not_flatten_the_chart() -> None:
    section = lengths_section(accounting(), make_data(max_length=4096))
    assert "data.max_length = " not in section.charts[0]
    assert "data.max_length is 4096" in section.text


def make_view(source: str, anchor: str, status: str, *findings: TokenFinding) -> TokenView:
    return TokenView(anchor, source, "train", status, ["a"] * 9, [1] * 9, [1] * 9, ["user"] * 9,
                     list(findings))  # fmt: skip


def test_findings_are_grouped_and_lead_to_their_tokens() -> None:
    rows, batches = Audit(), Audit()
    rows.add(Finding("stop_masked", "a:1", 5, 1, "tokens 'x'"))
    rows.add(Finding("stop_masked", "a:2", 6, 3, "tokens 'y'"))
    rows.add(Finding("no_supervised_token", "a:3", -1, 1, "the row trains nothing"))
    batches.add(Finding("stop_masked", "a:2", 4, 1, "tokens 'z'"))
    views = [
        make_view("a:2", "row-2", "kept", TokenFinding("stop_masked", 6, 3, "tokens 'y'")),
        make_view("a:3", "row-3", "kept", TokenFinding("no_supervised_token", -1, 1, "the row")),
        make_view("a:2", "collated-1", COLLATED, TokenFinding("stop_masked", 7, 1, "tokens 'z'")),
    ]
    table = findings_section(rows, batches, views, 0).table
    assert table is not None
    store, batch = "rows of the token store", "collated batches"
    nothing = Link("a:3: the row trains nothing", "#row-3")
    assert table.rows == [
        ("no_supervised_token", store, 1, 1, [nothing]),
        (
            *("stop_masked", store, 4, 2),
            [
                Link("a:2 token 6: tokens 'y'", "#row-2-token-6"),
                Link("a:1 token 5: tokens 'x' (not on this page)"),
            ],
        ),
        ("stop_masked", batch, 1, 1, [Link("a:2 token 4: tokens 'z'", "#collated-1-token-7")]),
    ]


def test_healthy_rows_have_no_findings() -> None:
    section = findings_section(Audit(), Audit(), [], 0)
    assert (section.table, section.text) == (
        None,
        "None: every token has the label that it must have.",
    )


def test_rows_that_do_not_fit_the_page_are_told() -> None:
    rows = Audit()
    rows.add(Finding("stop_masked", "a:1", 5, 1, "tokens 'x'"))
    assert "3 chosen rows do not fit" in findings_section(rows, Audit(), [], 3).text


def test_the_policy_lists_every_setting_of_the_labels() -> None:
    params = make_params(labels__turns="last", data__max_length=60, data__truncation="drop")
    table = policy_section(params.labels, params.data, prints_date=False).table
    assert table is not None
    settings = {str(row[0]): row[1] for row in table.rows}
    assert {f"labels.{field.name}" for field in fields(Labels)} < settings.keys()
    assert settings["labels.turns"] == "last"
    assert settings["data.max_length"] == 60
    assert settings["data.truncation"] == "drop"
