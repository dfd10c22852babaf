"""Polylines as SVG, without a plotting library."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 860, 250
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 30, 34
COLOURS = ("#c62828", "#1565c0", "#2e7d32", "#ef6c00", "#6a1b9a")

Points = Sequence[tuple[float, float]]


class PlotAxis(NamedTuple):
    """Horizontal axis from `begin` to `end`."""

    begin: float
    end: float
    ticks: Sequence[float]
    unit: str = ""
    is_log: bool = False


class PlotPanel(NamedTuple):
    """A diagram.  lines: name -> points (x, y);  level: a dashed line and its name"""

    title: str
    lines: Mapping[str, Points]
    x: PlotAxis
    is_log: bool = False
    level: tuple[str, float] | None = None


def render_svg(panels: Sequence[PlotPanel]) -> str:
    """Return the panels below each other."""
    body = "".join(_panel(panel, number * HEIGHT) for number, panel in enumerate(panels))
    total = HEIGHT * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" '
        f'width="{WIDTH}" height="{total}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{total}" fill="white"/>\n{body}</svg>\n'
    )


def log_ticks(values: Iterable[float], base: float = 10.0) -> list[float]:
    """Return the powers of `base` that enclose all values."""
    logarithms = [log10(value) / log10(base) for value in values if value > 0.0]
    first = floor(min(logarithms) + 1e-9)
    last = max(ceil(max(logarithms) - 1e-9), first + 1)
    return [base**power for power in range(first, last + 1)]


def _panel(panel: PlotPanel, top: int) -> str:
    values = [y for points in panel.lines.values() for _, y in points]
    ticks = log_ticks(values) if panel.is_log else _ticks(max(values))
    low, high = top + HEIGHT - BOTTOM, top + TOP
    y_of = _scale((ticks[0], ticks[-1]), panel.is_log, (low, high))
    x_of = _scale((panel.x.begin, panel.x.end), panel.x.is_log, (LEFT, WIDTH - RIGHT))
    parts = [_text(LEFT, top + 14, panel.title, weight="bold")]
    for tick in ticks:
        parts.append(_line([(LEFT, y_of(tick)), (WIDTH - RIGHT, y_of(tick))], "#dddddd"))
        parts.append(_text(LEFT - 6, y_of(tick) + 4, f"{tick:g}", anchor="end"))
    for tick in panel.x.ticks:
        text = f"{tick:g} {panel.x.unit}".rstrip()
        parts.append(_text(x_of(tick), low + 16, text, anchor="middle"))
    if panel.level is not None:
        name, y = panel.level[0], y_of(panel.level[1])
        parts.append(_line([(LEFT, y), (WIDTH - RIGHT, y)], "#555555", dash="5 4"))
        parts.append(_text(WIDTH - RIGHT, y - 4, name, anchor="end"))
    x_name = LEFT + 8.0 * len(panel.title)
    for colour, (name, points) in zip(COLOURS, panel.lines.items(), strict=False):
        parts.append(_line([(x_of(x), y_of(y)) for x, y in points], colour, width=2))
        parts.append(_text(x_name, top + 14, name, colour=colour))
        x_name += 7.0 * len(name) + 16
    return "".join(parts)


def _scale(
    values: tuple[float, float], is_log: bool, places: tuple[float, float]
) -> Callable[[float], float]:
    """Return a function from values to places; values below the range map to its first place."""
    (low, high), (begin, end) = values, places

    def share(value: float) -> float:
        if is_log:
            return log10(max(value, low) / low) / log10(high / low)
        return (value - low) / (high - low)

    return lambda value: begin + (end - begin) * share(value)


def _ticks(most: float) -> list[float]:
    """Return 0 and about four round numbers, the last above all values."""
    size = 10.0 ** int(log10(max(most, 1.0)))
    step = next(s for s in (size / 5, size / 2, size, 2 * size, 5 * size) if 5 * s >= most)
    ticks = [0.0]
    while ticks[-1] < most:
        ticks.append(ticks[-1] + step)
    return ticks


def _line(points: Points, colour: str, width: int = 1, dash: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{style}/>\n'
    )


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    weight: str = "normal",
    colour: str = "#222222",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{colour}">{escape(text, quote=False)}</text>\n'
    )
