"""What the page of gate 1 tells beside its checks: where rows went, lengths, findings, policy."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..chat.split import Split
from ..config.schema import Data, Labels
from ..report.page import Bar, Link, Section, Table
from ..report.plots import draw_histogram
from ..report.token_view import TokenView
from .controls import Control
from .findings import Audit, Finding, Kind
from .lengths import cost_of, ladder
from .prepare import Accounting
from .sampling import COLLATED

HISTOGRAM_BINS = 40
EXAMPLES = 8


def rows_section(accounting: Mapping[Split, Accounting], tokens: Mapping[str, int]) -> Section:
    """The funnel from loaded rows to trained tokens.

    tokens: rendered tokens by status of their rows, as `Prepared.status` names them.
    """
    accounts = list(accounting.values())
    dropped = sum((account.dropped for account in accounts), Counter[str]())
    rendered_rows = sum(account.rendered for account in accounts)
    loaded = sum(account.loaded for account in accounts)
    kept = sum(account.kept for account in accounts)
    truncated = sum(account.truncated for account in accounts)
    not_rendered = loaded - rendered_rows
    reasons = {why: n for why, n in sorted(dropped.items()) if why != "template_refuses"}
    rows = [
        Bar("loaded", loaded, "rows"),
        Bar("rendered", rendered_rows, "rows", {"template_refuses": not_rendered}),
        Bar("kept", kept, "rows", reasons),
        Bar("kept whole", kept - truncated, "rows", {"cut to data.max_length": truncated}),
    ]
    rendered = sum(tokens.values())
    lost = {why: tokens.get(f"dropped: {why}", 0) for why in reasons}
    whole = rendered - sum(lost.values())
    tokens_kept = sum(account.tokens_kept for account in accounts)
    supervised = sum(account.tokens_supervised for account in accounts)
    amounts = [
        Bar("rendered", rendered, "tokens"),
        Bar("in kept rows", whole, "tokens", lost),
        Bar("kept", tokens_kept, "tokens", {"cut off by data.max_length": whole - tokens_kept}),
        Bar("trained on", supervised, "tokens", {"masked": tokens_kept - supervised}),
    ]
    return Section(
        "Where every row went",
        "Train and validation together. rows.csv has a line for each row, with its status and its "
        "tokens by role; row 7 of this page is its seventh.",
        bars=[rows, amounts],
        table=_split_table(accounting),
    )


def _split_table(accounting: Mapping[Split, Accounting]) -> Table:
    reasons = sorted({why for account in accounting.values() for why in account.dropped})
    head = ("split", "loaded", "rendered", *reasons)
    columns = (*head, "kept", "of these cut", "tokens", "supervised")
    rows = [
        (
            split,
            account.loaded,
            account.rendered,
            *(account.dropped[reason] for reason in reasons),
            account.kept,
            account.truncated,
            account.tokens_kept,
            account.tokens_supervised,
        )
        for split, account in accounting.items()
    ]
    return Table(columns, rows)


def lengths_section(accounting: Mapping[Split, Accounting], data: Data) -> Section:
    """The distribution of lengths, and what each data.max_length would cost."""
    lengths = Counter[int]()
    for account in accounting.values():
        lengths += account.lengths
    counts, edges = np.histogram(list(lengths), bins=HISTOGRAM_BINS, weights=list(lengths.values()))
    limit, longest = data.max_length, max(lengths, default=0)
    chart = draw_histogram(
        "Length of rendered rows",
        counts.tolist(),
        edges.tolist(),
        "tokens",
        "rows",
        {f"data.max_length = {limit}": limit} if limit <= 2 * longest else None,
        log_y=True,
    )
    rows, tokens = sum(lengths.values()), sum(n * length for length, n in lengths.items())
    costs = [cost_of(rung, lengths) for rung in ladder(lengths, limit)]
    table = Table(
        ("data.max_length", "longer rows", "tokens lost if dropped", "tokens lost if cut"),
        [
            (
                f"{cost.max_length} (now)" if cost.max_length == limit else cost.max_length,
                _share(cost.rows, rows),
                _share(cost.tokens_dropped, tokens),
                _share(cost.tokens_cut, tokens),
            )
            for cost in costs
        ],
    )
    text = (
        f"data.max_length is {limit}, data.truncation is '{data.truncation}'; the longest of "
        f"{rows} rendered rows has {longest} tokens. What each data.max_length would cost:"
    )
    return Section("Lengths", text, charts=[chart], table=table)


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / max(whole, 1):.2%})" if part else "0"


def findings_section(
    rows: Audit, batches: Audit, views: Sequence[TokenView], left_out: int
) -> Section:
    """Findings grouped by kind, with links to the tokens of rows that are on the page."""
    stored = {view.source: view for view in views if view.status != COLLATED}
    collated = {view.source: view for view in views if view.status == COLLATED}
    table = [
        *_grouped(rows, "rows of the token store", stored),
        *_grouped(batches, "collated batches", collated),
    ]
    if not table:
        return Section("Findings", "None: every token has the label that it must have.")
    text = "The first of each kind; a link leads to the token in the viewer below."
    if left_out:
        text += f" {left_out} chosen rows do not fit the page and are not in the viewer."
    return Section(
        "Findings", text, table=Table(("kind", "found in", "count", "rows", "examples"), table)
    )


def _grouped(audit: Audit, where: str, views: Mapping[str, TokenView]) -> list[tuple[Any, ...]]:
    groups: dict[Kind, list[Finding]] = {}
    for finding in audit.findings:
        groups.setdefault(finding.kind, []).append(finding)
    return [
        (
            kind,
            where,
            audit.faults[kind],
            audit.rows_of[kind],
            [_example(finding, views.get(finding.source)) for finding in _examples(found, views)],
        )
        for kind, found in sorted(groups.items())
    ]


def _examples(found: Iterable[Finding], views: Mapping[str, TokenView]) -> list[Finding]:
    """Some findings, those that can be looked at before others."""
    return sorted(found, key=lambda finding: finding.source not in views)[:EXAMPLES]


def _example(finding: Finding, view: TokenView | None) -> Link:
    place = f" token {finding.position}" if finding.position >= 0 else ""
    text = f"{finding.source}{place}: {finding.detail}"
    if view is None:
        return Link(f"{text} (not on this page)")
    shown = next(
        (f for f in view.findings if (f.kind, f.detail) == (finding.kind, finding.detail)), None
    )
    if shown is None or not 0 <= shown.position < len(view.ids):
        return Link(text, f"#{view.anchor}")
    return Link(text, f"#{view.anchor}-token-{shown.position}")


def controls_section(controls: Sequence[Control]) -> Section:
    """Faults that were planted to see whether the audit notices."""
    columns = ("control", "rows", "caught", "the audit named")
    rows = [
        (one.name, one.applied, one.caught, ", ".join(one.kinds) or f"not tried: {one.reason}")
        for one in controls
    ]
    return Section(
        "Controls",
        "Right rows were corrupted in these ways and audited; a row counts as caught when the "
        "audit names it, the corrupted token, and nothing else.",
        table=Table(columns, rows),
    )


def policy_section(labels: Labels, data: Data, *, prints_date: bool) -> Section:
    """By which settings the labels were made; prints_date: the template writes today's date."""
    settings = {f"labels.{name}": value for name, value in asdict(labels).items()}
    settings |= {"data.max_length": data.max_length, "data.truncation": data.truncation}
    rows = [
        (name, ", ".join(value) if isinstance(value, list) else value)
        for name, value in settings.items()
    ]
    text = (
        "The settings by which tokens are supervised. What they do not name is masked, and so is "
        'every message with "weight": 0.'
    )
    if prints_date:
        text += (
            f" The template writes the date: every row says {labels.template_date}, while a model "
            "that is asked later is told the day of the question."
        )
    return Section("Policy", text, table=Table(("setting", "value"), rows))
