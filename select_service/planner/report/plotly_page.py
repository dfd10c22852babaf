"""The charts of a report in plotly, to zoom and to hide lines: extra `report`, 5 MB a page.

The library is imported by the first chart.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from select_service.planner.history import Table
from select_service.planner.report.charts import EPOCH_S, Band, Chart, Line, runs
from select_service.planner.report.views import Series

HEIGHT = 260
_COLOURS = {
    "observed": "#3f78c3",
    "ready": "#3f78c3",
    "starting": "#e8a33d",
    "decided": "#808a96",
    "forecast": "#8a4fbe",
    "planned": "rgba(138,79,190,0.2)",
    "slo": "#cf3a3a",
    "up": "#1d8348",
    "down": "#cf3a3a",
}
"""By the classes of the style sheet; readable on light and on dark paper."""
_GROUNDS = {"ready": "#b4cdea", "starting": "#e8a33d"}
_CONFIG = {"displaylogo": False, "responsive": True}


def plotly_head() -> str:
    """What the page needs once: the whole library, so that it opens without network."""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def plotly_drawn(chart: Chart, start_s: float, end_s: float, place: str) -> str:
    """The `figure` of a chart over these times. place: an id, unique in the page"""
    from plotly import graph_objects, io

    figure = graph_objects.Figure(layout=_layout(chart, start_s, end_s))
    figure.add_traces([_band(band) for band in chart.bands])
    figure.add_traces([_line(line) for line in chart.lines])
    for level in chart.levels:
        figure.add_hline(level.value, line_color=_COLOURS["slo"], line_dash="dash", line_width=1)
    figure.add_traces(_marks(chart))
    html = io.to_html(figure, config=_CONFIG, include_plotlyjs=False, full_html=False, div_id=place)
    levels = "".join(f' <span class="key">{escape(level.label)}</span>' for level in chart.levels)
    return f"<figure><figcaption><b>{escape(chart.title)}</b>{levels}</figcaption>{html}</figure>"


def _layout(chart: Chart, start_s: float, end_s: float) -> dict[str, Any]:
    grid = {"gridcolor": "rgba(128,138,150,0.25)", "zeroline": False}
    times = {**grid, "range": _times(np.array([start_s, end_s])).tolist()}
    times |= {"type": "date"} if start_s >= EPOCH_S else {"title": {"text": "hours"}}
    values: dict[str, Any] = {**grid, "rangemode": "tozero", "ticksuffix": chart.unit}
    if chart.most is not None:
        values["range"] = [0.0, chart.most]
    return {
        "template": "none",
        "height": HEIGHT,
        "margin": {"l": 52, "r": 10, "t": 10, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "#808a96", "size": 11},
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        "hovermode": "x unified",
        "xaxis": times,
        "yaxis": values,
    }


def _line(line: Line) -> dict[str, Any]:
    trace = _trace(line.label, *_joined(runs(line.series)))
    trace["line"] = {"color": _COLOURS[line.css], "width": 1.6}
    if line.kind != "line":
        trace["line"]["shape"] = "hv"
    if line.kind == "area":
        trace |= {"fill": "tozeroy", "fillcolor": _GROUNDS[line.css]}
    return trace


def _band(band: Band) -> dict[str, Any]:
    """One outline for each run in which both edges are known."""
    both = np.isfinite(band.low.values) & np.isfinite(band.high.values)
    low, high = (
        runs(Series(edge.times, np.where(both, edge.values, np.nan)))
        for edge in (band.low, band.high)
    )
    outlines = [
        Series(*(np.concatenate((up, down[::-1])) for up, down in zip(above, below, strict=True)))
        for below, above in zip(low, high, strict=True)
    ]
    trace = _trace(band.label, *_joined(outlines))
    trace["line"] = {"width": 0, "color": _COLOURS[band.css]}
    return trace | {"fill": "toself", "fillcolor": _COLOURS[band.css], "hoverinfo": "skip"}


def _marks(chart: Chart) -> list[dict[str, Any]]:
    """Decisions, with their reasons when they are pointed at."""
    found = []
    for css in ("up", "down"):
        marks = [mark for mark in chart.marks if mark.up is (css == "up")]
        if not marks:
            continue
        times = _times(np.array([mark.at_s for mark in marks]))
        trace = _trace(f"decided {css}", times, np.array([mark.value for mark in marks]))
        trace |= {
            "mode": "markers",
            "marker": {"color": _COLOURS[css], "symbol": f"triangle-{css}", "size": 9},
            "text": [escape(mark.text).replace("\n", "<br>") for mark in marks],
            "hovertemplate": "%{text}<extra></extra>",
        }
        found.append(trace)
    return found


def _trace(label: str, times: Table, values: Table) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": label, "x": times, "y": values}


def _joined(parts: Sequence[Series]) -> tuple[Table, Table]:
    """One after the other, with a point that is none after each."""
    times, values = [np.empty(0)], [np.empty(0)]
    for part in parts:
        times += [part.times, part.times[-1:]]
        values += [part.values, np.array([np.nan])]
    return _times(np.concatenate(times)), np.concatenate(values)


def _times(at_s: Table) -> Table:
    """As the axis counts: milliseconds since 1970, or hours of a replay."""
    return at_s * 1000.0 if len(at_s) and at_s[0] >= EPOCH_S else at_s / 3600.0
