"""SVG of one chart over time: lines, steps, bands, targets and marks, as text.

A chart is `WIDTH` by `HEIGHT` units and is scaled by the page. Colours are classes of its style.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Literal, NamedTuple

import numpy as np

from select_service.planner.report.views import Series

WIDTH, HEIGHT = 960, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 22
GAP = 3.5
"""So many usual distances between two known points are a gap: nothing was known."""
EPOCH_S = 1e9
"""Times beyond are of the calendar, others are counted from the start of a replay."""
_STEPS_S = (
    1,
    5,
    10,
    30,
    60,
    300,
    600,
    1800,
    3600,
    7200,
    14400,
    21600,
    43200,
    86400,
    172800,
    604800,
)

Kind = Literal["line", "step", "area"]


class Line(NamedTuple):
    """kind: `step` holds a value until the next; `area` is a step that is filled"""

    label: str
    css: str
    series: Series
    kind: Kind = "line"


class Band(NamedTuple):
    """Between two series with the same times."""

    label: str
    css: str
    low: Series
    high: Series


class Level(NamedTuple):
    """A horizontal line."""

    label: str
    value: float


class Mark(NamedTuple):
    """A triangle with words when it is pointed at. up: which way it shows"""

    at_s: float
    value: float
    up: bool
    text: str


class Chart(NamedTuple):
    """most: the upper end of the axis, where it is fixed"""

    title: str
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    levels: Sequence[Level] = ()
    marks: Sequence[Mark] = ()
    most: float | None = None
    unit: str = ""


class Scale(NamedTuple):
    """Times and values -> units of the drawing."""

    start_s: float
    end_s: float
    most: float

    def x(self, at_s: float) -> float:
        return LEFT + (at_s - self.start_s) / (self.end_s - self.start_s) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        height = HEIGHT - TOP - BOTTOM
        return TOP + height * (1.0 - min(max(value / self.most, 0.0), 1.0))


def drawn(chart: Chart, start_s: float, end_s: float) -> str:
    """The `figure` of a chart over these times."""
    scale = Scale(start_s, max(end_s, start_s + 1.0), _most(chart))
    parts = [
        *_grid(scale, chart.unit),
        *(_band(band, scale) for band in chart.bands),
        *(_line(line, scale) for line in chart.lines),
        *(_level(level, scale) for level in chart.levels),
        *(_mark(mark, scale) for mark in chart.marks),
    ]
    title = escape(chart.title)
    return (
        f"<figure><figcaption><b>{title}</b>{''.join(_legend(chart))}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"{''.join(parts)}</svg></figure>"
    )


def is_known(series: Series) -> bool:
    """Is there anything to draw?"""
    return bool(np.isfinite(series.values).any())


def clock(at_s: float, span_s: float) -> str:
    """A time as an axis shows it."""
    if at_s < EPOCH_S:
        minutes, seconds = divmod(round(at_s), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02d}:{seconds:02d}" if span_s < 600 else f"{hours}:{minutes:02d}"
    when = datetime.fromtimestamp(at_s, UTC)
    if span_s < 600:
        return when.strftime("%H:%M:%S")
    return when.strftime("%H:%M" if span_s < 129_600 else "%d %b %H:%M")


def _most(chart: Chart) -> float:
    """The upper end: a little above everything that is drawn."""
    if chart.most is not None:
        return chart.most
    all_series = [line.series for line in chart.lines] + [band.high for band in chart.bands]
    peaks = [float(np.nanmax(each.values)) for each in all_series if is_known(each)]
    peaks += [level.value for level in chart.levels] + [mark.value for mark in chart.marks]
    return max([*peaks, 1e-9]) * 1.08


def _nice(most: float) -> list[float]:
    """Three to six round values up to `most`."""
    raw = most / 4.0
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]


def _grid(scale: Scale, unit: str) -> Iterable[str]:
    for value in _nice(scale.most):
        y = scale.y(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        text = _number(value) + unit
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    span = scale.end_s - scale.start_s
    step = next((each for each in _STEPS_S if span / each <= 8), _STEPS_S[-1])
    step *= max(1, math.ceil(span / step / 8))
    at_s = math.ceil(scale.start_s / step) * step
    while at_s <= scale.end_s:
        x = scale.x(at_s)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        anchor = "end" if x > WIDTH - RIGHT - 24 else "middle"
        text = clock(at_s, span)
        yield f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{text}</text>'
        at_s += step


def runs(series: Series) -> list[Series]:
    """Known points, split where nothing was known for long."""
    known = np.isfinite(series.values)
    times, values = series.times[known], series.values[known]
    if len(times) < 3:
        return [Series(times, values)] if len(times) else []
    distances = np.diff(times)
    usual = float(np.median(distances[distances > 0.0])) if np.any(distances > 0.0) else 1.0
    cuts = np.flatnonzero(distances > GAP * usual) + 1
    pairs = zip(np.split(times, cuts), np.split(values, cuts), strict=True)
    return [Series(*pair) for pair in pairs]


def _line(line: Line, scale: Scale) -> str:
    known = runs(line.series)
    if line.kind == "line":
        path = "".join(_polyline(run, scale) for run in known)
    else:
        path = "".join(_stairs(run, scale, filled=line.kind == "area") for run in known)
    return f'<path class="{line.kind} {line.css}" d="{path}"/>'


def _points(run: Series, scale: Scale) -> list[str]:
    return [
        f"{scale.x(at_s):.1f} {scale.y(value):.1f}"
        for at_s, value in zip(run.times.tolist(), run.values.tolist(), strict=True)
    ]


def _polyline(run: Series, scale: Scale) -> str:
    points = _points(run, scale)
    return f"M{points[0]}h.1" if len(points) == 1 else f"M{'L'.join(points)}"


def _stairs(run: Series, scale: Scale, *, filled: bool) -> str:
    """A step for each change only."""
    changed = np.flatnonzero(np.diff(run.values)) + 1
    first = f"{scale.x(run.times[0]):.1f} {scale.y(run.values[0]):.1f}"
    steps = "".join(
        f"H{scale.x(run.times[at]):.1f}V{scale.y(run.values[at]):.1f}" for at in changed.tolist()
    )
    path = f"M{first}{steps}H{scale.x(run.times[-1]):.1f}"
    if not filled:
        return path
    return f"{path}V{scale.y(0.0):.1f}H{scale.x(run.times[0]):.1f}Z"


def _band(band: Band, scale: Scale) -> str:
    both = np.isfinite(band.low.values) & np.isfinite(band.high.values)
    high = Series(band.high.times, np.where(both, band.high.values, np.nan))
    low = Series(band.low.times, np.where(both, band.low.values, np.nan))
    path = "".join(
        f"M{'L'.join(_points(above, scale))}L{'L'.join(reversed(_points(below, scale)))}Z"
        for above, below in zip(runs(high), runs(low), strict=True)
    )
    return f'<path class="band {band.css}" d="{path}"/>'


def _level(level: Level, scale: Scale) -> str:
    y = scale.y(level.value)
    return f'<path class="level" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'


def _mark(mark: Mark, scale: Scale) -> str:
    x, y = scale.x(mark.at_s), scale.y(mark.value)
    tip = -8 if mark.up else 8
    css = "up" if mark.up else "down"
    return (
        f'<path class="mark {css}" d="M{x:.1f} {y:.1f}l-4.5 {-tip}h9z">'
        f"<title>{escape(mark.text)}</title></path>"
    )


def _legend(chart: Chart) -> Iterable[str]:
    keys = [(line.css, line.label) for line in chart.lines]
    keys += [(band.css, band.label) for band in chart.bands]
    keys += [("slo", level.label) for level in chart.levels]
    for css, label in keys:
        yield f'<span class="key"><i class="{css}"></i>{escape(label)}</span>'
    if chart.marks:
        yield '<span class="key">▲▼ decisions: point at one for its reasons</span>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
