"""SVG chart over time, as text: lines, steps, bands, targets and marks.

A chart is `WIDTH` by `HEIGHT` units and is scaled by the page. Colours are classes of its style.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Literal, NamedTuple

import numpy as np

from select_service.planner.report.report_views import ChartSeries

WIDTH, HEIGHT = 960, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 22
GAP_FACTOR = 3.5
"""Multiple of the usual distance from which two known points have a gap between."""
CALENDAR_FROM_S = 1e9
"""Limit between times of a replay, from its start, and times of the calendar."""
_MINUTES = (1, 5, 10, 30, 60, 120, 240, 360, 720, 1440, 2880, 10_080)
_STEPS_S = (1, 5, 10, 30, *(60 * each for each in _MINUTES))
"""Distances of the lines of the grid, seconds."""

LineKind = Literal["line", "step", "area"]


class ChartLine(NamedTuple):
    """Line of a chart. kind: `step` holds a value until the next; `area` is a filled step"""

    label: str
    css: str
    series: ChartSeries
    kind: LineKind = "line"


class ChartBand(NamedTuple):
    """Area between two series with the same times."""

    label: str
    css: str
    low: ChartSeries
    high: ChartSeries


class ChartLevel(NamedTuple):
    """Horizontal line."""

    label: str
    value: float


class ChartMark(NamedTuple):
    """Triangle with a tooltip. up: whether it points up"""

    at_s: float
    value: float
    up: bool
    text: str


class Chart(NamedTuple):
    """Chart over time. most: upper end of the axis, if fixed"""

    title: str
    lines: Sequence[ChartLine]
    bands: Sequence[ChartBand] = ()
    levels: Sequence[ChartLevel] = ()
    marks: Sequence[ChartMark] = ()
    most: float | None = None
    unit: str = ""


class ChartScale(NamedTuple):
    """Conversion of times and values to units of the drawing."""

    start_s: float
    end_s: float
    most: float

    def x_of(self, at_s: float) -> float:
        """Return the horizontal position of a time."""
        return LEFT + (at_s - self.start_s) / (self.end_s - self.start_s) * (WIDTH - LEFT - RIGHT)

    def y_of(self, value: float) -> float:
        """Return the vertical position of a value."""
        height = HEIGHT - TOP - BOTTOM
        return TOP + height * (1.0 - min(max(value / self.most, 0.0), 1.0))


def draw_chart(chart: Chart, start_s: float, end_s: float) -> str:
    """Return the `figure` of a chart over these times."""
    scale = ChartScale(start_s, max(end_s, start_s + 1.0), _axis_end(chart))
    parts = [
        *_draw_grid(scale, chart.unit),
        *(_draw_band(band, scale) for band in chart.bands),
        *(_draw_line(line, scale) for line in chart.lines),
        *(_draw_level(level, scale) for level in chart.levels),
        *(_draw_mark(mark, scale) for mark in chart.marks),
    ]
    title = escape(chart.title)
    return (
        f"<figure><figcaption><b>{title}</b>{''.join(_draw_legend(chart))}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"{''.join(parts)}</svg></figure>"
    )


def has_values(series: ChartSeries) -> bool:
    """Return whether a series has any value."""
    return bool(np.isfinite(series.values).any())


def format_time(at_s: float, span_s: float) -> str:
    """Format a time for an axis."""
    if at_s < CALENDAR_FROM_S:
        minutes, seconds = divmod(round(at_s), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02d}:{seconds:02d}" if span_s < 600 else f"{hours}:{minutes:02d}"
    when = datetime.fromtimestamp(at_s, UTC)
    if span_s < 600:
        return when.strftime("%H:%M:%S")
    return when.strftime("%H:%M" if span_s < 129_600 else "%d %b %H:%M")


def format_moment(at_s: float) -> str:
    """Format the time of a decision, to the second; decisions may be seconds apart."""
    if at_s < CALENDAR_FROM_S:
        return format_time(at_s, 0.0)
    return datetime.fromtimestamp(at_s, UTC).strftime("%d %b %H:%M:%S")


def _axis_end(chart: Chart) -> float:
    """Return the upper end of the axis: slightly above all values."""
    if chart.most is not None:
        return chart.most
    all_series = [line.series for line in chart.lines] + [band.high for band in chart.bands]
    peaks = [float(np.nanmax(each.values)) for each in all_series if has_values(each)]
    peaks += [level.value for level in chart.levels] + [mark.value for mark in chart.marks]
    # The tiny value avoids a division by zero on a chart of zeros.
    return max([*peaks, 1e-9]) * 1.08


def _round_values(most: float) -> list[float]:
    """Return three to six round values up to `most`."""
    raw = most / 4.0
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]


def _draw_grid(scale: ChartScale, unit: str) -> Iterable[str]:
    """Yield the grid with its labels."""
    for value in _round_values(scale.most):
        y = scale.y_of(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        text = _format_number(value) + unit
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    span = scale.end_s - scale.start_s
    step = next((each for each in _STEPS_S if span / each <= 8), _STEPS_S[-1])
    step *= max(1, math.ceil(span / step / 8))
    at_s = math.ceil(scale.start_s / step) * step
    while at_s <= scale.end_s:
        x = scale.x_of(at_s)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        anchor = "end" if x > WIDTH - RIGHT - 24 else "middle"
        text = format_time(at_s, span)
        yield f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{text}</text>'
        at_s += step


def known_runs(series: ChartSeries) -> list[ChartSeries]:
    """Return the known points, split at gaps."""
    known = np.isfinite(series.values)
    times, values = series.times[known], series.values[known]
    if len(times) < 3:
        return [ChartSeries(times, values)] if len(times) else []
    distances = np.diff(times)
    # The median ignores the gaps themselves; equal times occur after thinning.
    usual = float(np.median(distances[distances > 0.0])) if np.any(distances > 0.0) else 1.0
    cuts = np.flatnonzero(distances > GAP_FACTOR * usual) + 1
    pairs = zip(np.split(times, cuts), np.split(values, cuts), strict=True)
    return [ChartSeries(*pair) for pair in pairs]


def _draw_line(line: ChartLine, scale: ChartScale) -> str:
    """Draw a line."""
    known = known_runs(line.series)
    if line.kind == "line":
        path = "".join(_polyline_path(run, scale) for run in known)
    else:
        path = "".join(_step_path(run, scale, filled=line.kind == "area") for run in known)
    return f'<path class="{line.kind} {line.css}" d="{path}"/>'


def _run_points(run: ChartSeries, scale: ChartScale) -> list[str]:
    """Return the positions of a run's points."""
    return [
        f"{scale.x_of(at_s):.1f} {scale.y_of(value):.1f}"
        for at_s, value in zip(run.times.tolist(), run.values.tolist(), strict=True)
    ]


def _polyline_path(run: ChartSeries, scale: ChartScale) -> str:
    """Return the path of a run."""
    points = _run_points(run, scale)
    # A path of one point is invisible, hence the short stroke.
    return f"M{points[0]}h.1" if len(points) == 1 else f"M{'L'.join(points)}"


def _step_path(run: ChartSeries, scale: ChartScale, *, filled: bool) -> str:
    """Return the path of a run, with a step for each change only."""
    changed = np.flatnonzero(np.diff(run.values)) + 1
    first = f"{scale.x_of(run.times[0]):.1f} {scale.y_of(run.values[0]):.1f}"
    steps = "".join(
        f"H{scale.x_of(run.times[at]):.1f}V{scale.y_of(run.values[at]):.1f}"
        for at in changed.tolist()
    )
    path = f"M{first}{steps}H{scale.x_of(run.times[-1]):.1f}"
    if not filled:
        return path
    return f"{path}V{scale.y_of(0.0):.1f}H{scale.x_of(run.times[0]):.1f}Z"


def _draw_band(band: ChartBand, scale: ChartScale) -> str:
    """Draw a band."""
    # A band needs both edges; equal gaps make the runs of both pair up.
    both = np.isfinite(band.low.values) & np.isfinite(band.high.values)
    high = ChartSeries(band.high.times, np.where(both, band.high.values, np.nan))
    low = ChartSeries(band.low.times, np.where(both, band.low.values, np.nan))
    path = "".join(
        f"M{'L'.join(_run_points(above, scale))}L{'L'.join(reversed(_run_points(below, scale)))}Z"
        for above, below in zip(known_runs(high), known_runs(low), strict=True)
    )
    return f'<path class="band {band.css}" d="{path}"/>'


def _draw_level(level: ChartLevel, scale: ChartScale) -> str:
    """Draw a level."""
    y = scale.y_of(level.value)
    return f'<path class="level" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'


def _draw_mark(mark: ChartMark, scale: ChartScale) -> str:
    """Draw a mark."""
    x, y = scale.x_of(mark.at_s), scale.y_of(mark.value)
    tip = -8 if mark.up else 8
    css = "up" if mark.up else "down"
    return (
        f'<path class="mark {css}" d="M{x:.1f} {y:.1f}l-4.5 {-tip}h9z">'
        f"<title>{escape(mark.text)}</title></path>"
    )


def _draw_legend(chart: Chart) -> Iterable[str]:
    """Yield the keys of a chart."""
    keys = [(line.css, line.label) for line in chart.lines]
    keys += [(band.css, band.label) for band in chart.bands]
    keys += [("slo", level.label) for level in chart.levels]
    for css, label in keys:
        yield f'<span class="key"><i class="{css}"></i>{escape(label)}</span>'
    if chart.marks:
        yield '<span class="key">▲▼ decisions (hover for reasons)</span>'


def _format_number(value: float) -> str:
    """Format a value."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
