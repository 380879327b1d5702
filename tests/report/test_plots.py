"""Charts are the same bytes for the same numbers, and show every number they are given."""

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from stages.report.plots import Chart, draw, draw_histogram, draw_png

from ..settings import run_python

CHART = Chart(
    "Loss & <more>",
    [0, 1, 2, 3],
    {"as it is": [3.0, 1.0, 0.3, 0.1], "blanked": [3.0, 2.9, 2.8, 2.7]},
    y_label="nats per token",
    log_y=True,
    limits={"limit": 0.05},
)
DRAW = """
import sys
from stages.report.plots import Chart, draw
sys.stdout.write(draw(Chart("T", [0, 1], {"a": [1.0, 2.0], "b": [2.0, 1.0]}, limits={"l": 1.5})))
"""


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.text]


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert draw(CHART) == draw(CHART)
    assert draw_histogram("H", [1, 2], [0, 1, 2], "x", "y") == draw_histogram(
        "H", [1, 2], [0, 1, 2], "x", "y"
    )


def test_what_was_drawn_before_does_not_show() -> None:
    alone = draw(CHART)
    draw_histogram("H", [1, 2, 3], [0, 1, 2, 3], "x", "y")
    draw(Chart("Other", [0, 1], {"a": [1.0, 2.0]}))
    assert draw(CHART) == alone


def test_another_process_gives_the_same_bytes(tmp_path: Path) -> None:
    one, other = (run_python(DRAW, cwd=tmp_path, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout
    here = draw(Chart("T", [0, 1], {"a": [1.0, 2.0], "b": [2.0, 1.0]}, limits={"l": 1.5}))
    assert one.stdout == here


def test_other_numbers_give_other_bytes() -> None:
    other = Chart(CHART.title, CHART.x, {**CHART.lines, "blanked": [3.0, 2.9, 2.8, 2.6]})
    assert draw(CHART) != draw(other)


def test_a_chart_is_one_svg_element_with_its_words() -> None:
    svg = draw(CHART)
    assert svg.startswith("<svg ")
    assert svg.endswith("</svg>")
    words = texts(svg)
    for word in ("Loss & <more>", "step", "nats per token", "as it is", "blanked", "limit"):
        assert word in words


def test_a_chart_names_no_date_and_no_program() -> None:
    svg = draw(CHART)
    assert "dc:date" not in svg
    assert "Matplotlib v" not in svg


def test_a_chart_of_one_line_needs_no_legend() -> None:
    assert "a line" not in texts(draw(Chart("T", [0, 1], {"a line": [1.0, 2.0]})))


def test_every_line_is_drawn() -> None:
    lines = {f"line {number}": [float(number), 1.0] for number in range(8)}
    words = texts(draw(Chart("T", [0, 1], lines)))
    assert [name for name in lines if name not in words] == []


@pytest.mark.parametrize(
    "values",
    [[math.nan] * 3, [math.inf, 1.0, 2.0], [0.0, 0.0, 0.0], [1.0, math.nan, 0.5], [-1.0, 0, 1.0]],
    ids=str,
)
@pytest.mark.parametrize("log_y", [True, False])
def test_numbers_that_cannot_be_drawn_do_not_stop_a_report(
    values: list[float], log_y: bool
) -> None:
    svg = draw(Chart("T", [0, 1, 2], {"a": values}, log_y=log_y, limits={"limit": 1.0}))
    assert "limit" in texts(svg)


def test_points_faint_lines_and_marks_are_drawn() -> None:
    chart = Chart(
        "T",
        [1, 10, 100],
        {"logged": [3.0, 2.0, 1.0], "average": [3.0, 2.5, 2.0]},
        log_x=True,
        faint=("logged",),
        points={"validation": ([10, 100], [2.2, 1.5])},
        marks={10.0: "spike"},
    )
    words = texts(draw(chart))
    for word in ("logged", "average", "validation", "spike "):
        assert word in words


@pytest.mark.parametrize(("log_x", "log_y"), [(True, False), (False, True)])
def test_ticks_of_logarithmic_axes_are_plain_numbers(log_x: bool, log_y: bool) -> None:
    numbers = [1e-7, 1e-3, 10.0]
    words = texts(draw(Chart("T", numbers, {"a": numbers}, log_x=log_x, log_y=log_y)))
    assert "0.001" in [word.strip() for word in words]
    assert not any("$" in word for word in words)


def test_a_png_is_the_same_bytes_for_the_same_numbers() -> None:
    png = draw_png(CHART)
    assert png == draw_png(CHART)
    assert png.startswith(b"\x89PNG")
    assert b"Software" not in png


def test_a_histogram_has_its_words() -> None:
    words = texts(draw_histogram("Lengths", [3, 0, 1], [0, 10, 20, 30], "tokens", "rows"))
    for word in ("Lengths", "tokens", "rows", "10"):
        assert word in words
