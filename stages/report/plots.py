"""Charts as SVG text: the same bytes for the same numbers, readable in light and dark pages."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "holdshort",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)

from matplotlib import pyplot, ticker  # noqa: E402  (the backend is chosen first)

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette, told apart without colour vision."""
INK = "#777777"


@dataclass(frozen=True)
class Chart:
    """Lines over a common x. limits: horizontal lines with their labels."""

    title: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    x_label: str = "step"
    y_label: str = ""
    log_y: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element."""
    figure, axes = pyplot.subplots(figsize=(6.4, 2.8), layout="constrained")
    for colour, (name, values) in zip(cycle(COLOURS), chart.lines.items(), strict=False):
        axes.plot(chart.x, values, color=colour, label=name, linewidth=1.4)
    for name, value in chart.limits.items():
        axes.axhline(value, color=INK, linestyle="--", linewidth=0.9)
        axes.annotate(
            name, (0.995, value), xycoords=("axes fraction", "data"), ha="right", va="bottom"
        )
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(2, 0.5)))
    axes.set_title(chart.title, loc="left")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if len(chart.lines) > 1:
        axes.legend(frameon=False, loc="best")
    _recolour(figure)
    return _svg(figure)


def draw_histogram(
    title: str,
    counts: Sequence[int],
    edges: Sequence[float],
    x_label: str,
    y_label: str,
    limits: Mapping[str, float] | None = None,
    log_y: bool = False,
) -> str:
    """Counts between neighbouring edges as an `<svg>` element; len(edges) == len(counts) + 1.

    limits: vertical lines with their labels; log_y: so that a single row is seen beside thousands.
    """
    figure, axes = pyplot.subplots(figsize=(6.4, 2.4), layout="constrained")
    axes.stairs(counts, edges, fill=True, color=COLOURS[0])
    if log_y:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=0.5)
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    for name, value in (limits or {}).items():
        axes.axvline(value, color=COLOURS[1], linestyle="--", linewidth=1.2)
        axes.annotate(
            f"{name} ", (value, 0.98), xycoords=("data", "axes fraction"), ha="right", va="top"
        )
    axes.set_title(title, loc="left")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    _recolour(figure)
    return _svg(figure)


def _recolour(figure: pyplot.Figure) -> None:
    for axes in figure.axes:
        axes.tick_params(colors=INK)
        for text in (axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts):
            text.set_color(INK)
        for spine in axes.spines.values():
            spine.set_color(INK)
        if legend := axes.get_legend():
            for text in legend.get_texts():
                text.set_color(INK)


def _svg(figure: pyplot.Figure) -> str:
    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :].strip()
