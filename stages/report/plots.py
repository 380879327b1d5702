"""Charts as SVG text: the same bytes for the same numbers, readable in light and dark pages."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("svg")
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "holdshort",
        "svg.fonttype": "none",
        "font.size": 9,
        "text.parse_math": False,  # names of others may hold a $
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)

from matplotlib import pyplot, ticker  # noqa: E402  (the backend is chosen first)
from matplotlib.axis import Axis  # noqa: E402

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette, told apart without colour vision."""
INK = "#777777"
FARTHEST = 1e150
"""Beyond it, matplotlib's own arithmetic overflows."""


@dataclass(frozen=True)
class Chart:
    """Lines over a common x.

    faint: names of lines that stand behind the others; points: name -> x and y of their own, drawn
    with a marker each; limits: horizontal lines with their labels; marks: x -> label of vertical
    ones.
    """

    title: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    x_label: str = "step"
    y_label: str = ""
    log_y: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)
    log_x: bool = False
    faint: Sequence[str] = ()
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    marks: Mapping[float, str] = field(default_factory=dict)


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element."""
    figure = _figure(chart)
    _recolour(figure)
    return _svg(figure)


def draw_png(chart: Chart) -> bytes:
    """The chart as a PNG of 960 x 420 on white."""
    figure, buffer = _figure(chart), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    pyplot.close(figure)
    return buffer.getvalue()


def _figure(chart: Chart) -> pyplot.Figure:
    figure, axes = pyplot.subplots(figsize=(6.4, 2.8), layout="constrained")
    colours = cycle(COLOURS)
    xs = drawable(chart.x)
    for name, values in chart.lines.items():
        if name in chart.faint:
            axes.plot(xs, drawable(values), color=INK, alpha=0.5, label=name, linewidth=0.7)
        else:
            axes.plot(xs, drawable(values), color=next(colours), label=name, linewidth=1.4)
    for name, (x, y) in chart.points.items():
        place = drawable(x), drawable(y)
        axes.plot(*place, color=next(colours), label=name, linewidth=1.0, marker="o", markersize=3)
    for x_marked, name in chart.marks.items():
        axes.axvline(x_marked, color=COLOURS[1], linestyle=":", linewidth=1.0)
        axes.annotate(
            f"{name} ",
            (x_marked, 0.98),
            xycoords=("data", "axes fraction"),
            ha="right",
            va="top",
            rotation=90,
            fontsize=7,
        )
    for name, value in chart.limits.items():
        axes.axhline(value, color=INK, linestyle="--", linewidth=0.9)
        axes.annotate(
            name, (0.995, value), xycoords=("axes fraction", "data"), ha="right", va="bottom"
        )
    if chart.log_y and any_positive(*chart.lines.values(), *(y for _, y in chart.points.values())):
        axes.set_yscale("log")
        _label_powers(axes.yaxis)
    axes.set_title(chart.title, loc="left")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.log_x and any_positive(chart.x, *(x for x, _ in chart.points.values())):
        axes.set_xscale("log")
        _label_powers(axes.xaxis)
    if len(chart.lines) + len(chart.points) > 1:
        axes.legend(frameon=False, loc="best")
    return figure


def _label_powers(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers; matplotlib's own are formulas."""
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(2, 0.5)))


def drawable(values: Sequence[float]) -> NDArray[np.float64]:
    """The values as float64 [N]; NaN, which is a gap, for those that no axis can reach."""
    array = np.asarray(values, np.float64)
    return np.where(np.abs(array) <= FARTHEST, array, np.nan)


def any_positive(*lines: Sequence[float]) -> bool:
    """Whether a logarithmic axis has anything to show."""
    return any((drawable(values) > 0).any() for values in lines)


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
        axes.tick_params(which="both", colors=INK)
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
