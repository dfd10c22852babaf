"""The plot of scripts/bench/overload.py: a few polylines as SVG, without a plotting library."""

from collections.abc import Callable, Mapping, Sequence
from math import log10
from typing import NamedTuple

WIDTH, HEIGHT = 860, 250
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 30, 34
COLOURS = ("#c62828", "#1565c0", "#2e7d32", "#ef6c00", "#6a1b9a")


class Panel(NamedTuple):
    """One diagram.  lines: name -> one value per minute;  level: a dashed line and its name."""

    title: str
    lines: Mapping[str, Sequence[float]]
    is_log: bool = False
    level: tuple[str, float] | None = None


def svg(panels: Sequence[Panel]) -> str:
    """The panels below each other."""
    body = "".join(_panel(panel, number * HEIGHT) for number, panel in enumerate(panels))
    total = HEIGHT * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" '
        f'width="{WIDTH}" height="{total}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{total}" fill="white"/>\n{body}</svg>\n'
    )


def _panel(panel: Panel, top: int) -> str:
    values = [value for line in panel.lines.values() for value in line]
    minutes = max(len(line) for line in panel.lines.values())
    ticks = _log_ticks(values) if panel.is_log else _ticks(max(values))
    y_of = _scale(ticks, panel.is_log, top)
    parts = [_text(LEFT, top + 14, panel.title, weight="bold")]
    for tick in ticks:
        y = y_of(tick)
        parts.append(_line([(LEFT, y), (WIDTH - RIGHT, y)], "#dddddd"))
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", anchor="end"))
    parts += [
        _text(_x(minute, minutes), top + HEIGHT - BOTTOM + 16, f"{minute} min", anchor="middle")
        for minute in range(0, minutes + 1, 10)
    ]
    if panel.level is not None:
        name, value = panel.level
        y = y_of(value)
        parts.append(_line([(LEFT, y), (WIDTH - RIGHT, y)], "#555555", dash="5 4"))
        parts.append(_text(WIDTH - RIGHT, y - 4, name, anchor="end"))
    x_name = LEFT + 8.0 * len(panel.title)
    for colour, (name, line) in zip(COLOURS, panel.lines.items(), strict=False):
        points = [(_x(minute + 0.5, minutes), y_of(value)) for minute, value in enumerate(line)]
        parts.append(_line(points, colour, width=2))
        parts.append(_text(x_name, top + 14, name, colour=colour))
        x_name += 7.0 * len(name) + 16
    return "".join(parts)


def _x(minute: float, minutes: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * minute / minutes


def _scale(ticks: Sequence[float], is_log: bool, top: int) -> Callable[[float], float]:
    """Value -> y, the lowest tick at the bottom; smaller values stay there."""
    low, high = ticks[0], ticks[-1]

    def share(value: float) -> float:
        if is_log:
            return log10(max(value, low) / low) / log10(high / low)
        return (value - low) / (high - low)

    inner = HEIGHT - TOP - BOTTOM
    return lambda value: top + TOP + inner * (1.0 - share(value))


def _ticks(most: float) -> list[float]:
    """0 and about four round numbers, the last above all values."""
    size = 10.0 ** int(log10(max(most, 1.0)))
    step = next(s for s in (size / 5, size / 2, size, 2 * size, 5 * size) if 5 * s >= most)
    ticks = [0.0]
    while ticks[-1] < most:
        ticks.append(ticks[-1] + step)
    return ticks


def _log_ticks(values: Sequence[float]) -> list[float]:
    ticks = [10.0 ** int(log10(min(value for value in values if value > 0.0)) - 1)]
    while ticks[-1] < max(values):
        ticks.append(ticks[-1] * 10.0)
    return ticks


def _line(
    points: Sequence[tuple[float, float]], colour: str, width: int = 1, dash: str = ""
) -> str:
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
        f'fill="{colour}">{text}</text>\n'
    )
