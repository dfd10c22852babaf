"""How the charts of a page are drawn: `svg`, or `plotly` with the extra `report`."""

from collections.abc import Callable
from importlib.util import find_spec
from itertools import count
from typing import Final, NamedTuple

from select_service.planner.report.charts import Chart, drawn
from select_service.planner.report.plotly_page import plotly_drawn, plotly_head

FORMATS: Final = ("svg", "plotly")


class FormatError(Exception):
    """One line that says why a report cannot be drawn so."""


class Drawing(NamedTuple):
    """Of one page. head: what its charts need, once;  draw: a chart from and until a second"""

    head: str
    draw: Callable[[Chart, float, float], str]


SVG: Final = Drawing("", drawn)


def check_format(name: str) -> None:
    """Raises FormatError for one that is not known, or not installed."""
    if name not in FORMATS:
        raise FormatError(f"format: expected {' or '.join(FORMATS)}")
    if name == "plotly" and find_spec("plotly") is None:
        raise FormatError("format plotly needs: pip install 'select-service[report]'")


def drawing_of(name: str) -> Drawing:
    """Raises FormatError. Imports plotly where that is asked for: half a second."""
    check_format(name)
    if name == "svg":
        return SVG
    places = count()
    return Drawing(
        plotly_head(),
        lambda chart, start_s, end_s: plotly_drawn(chart, start_s, end_s, f"chart{next(places)}"),
    )
