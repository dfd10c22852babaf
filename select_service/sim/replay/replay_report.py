"""Figures of runs, shown as Markdown, as an SVG picture, and both as an HTML page."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from select_service.sim.engine.replay_world import RunRecord

WIDTH, LEFT, GAP, ROW, TOP = 900, 150, 24, 26, 48
COLOURS = ("#1565c0", "#c62828", "#2e7d32", "#ef6c00", "#6a1b9a", "#00838f", "#5d4037")


WARM_SHARE = 0.2
"""Share of first requests that are not counted, because caches are cold."""


class RunFigures(NamedTuple):
    """Figures of the counted requests. Times in seconds; hit_rate: share of cached prompt tokens.

    ttft: from the request to the first token;  e2e: to the last token
    """

    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    hit_rate: float
    e2e_mean: float


def compute_figures(record: RunRecord) -> RunFigures:
    # In order of arrival, so the cold start is at the front.
    lives = record.histories[int(WARM_SHARE * len(record.histories)) :]
    ttft = np.array([life.first_s - life.arrived_s for life in lives])
    return RunFigures(
        requests=len(lives),
        ttft_mean=float(ttft.mean()),
        ttft_p50=float(np.quantile(ttft, 0.5)),
        ttft_p99=float(np.quantile(ttft, 0.99)),
        hit_rate=sum(life.cached for life in lives)
        / sum(life.turn.prompt_tokens for life in lives),
        e2e_mean=float(np.mean([life.end_s - life.arrived_s for life in lives])),
    )


class ReportColumn(NamedTuple):
    title: str
    value: Callable[[RunFigures], float]
    shown: str


COLUMNS = (
    ReportColumn("TTFT mean, s", lambda f: f.ttft_mean, "{:.3f}"),
    ReportColumn("TTFT p50, s", lambda f: f.ttft_p50, "{:.3f}"),
    ReportColumn("TTFT p99, s", lambda f: f.ttft_p99, "{:.3f}"),
    ReportColumn("hit rate", lambda f: f.hit_rate, "{:.1%}"),
    ReportColumn("end to end mean, s", lambda f: f.e2e_mean, "{:.2f}"),
)
DRAWN = COLUMNS[:4]

FiguresByPolicy = Mapping[str, RunFigures]
"""Figures by policy; the first policy is the base of the comparison."""


def render_markdown(title: str, notes: Sequence[str], found: FiguresByPolicy) -> str:
    first = next(iter(found))
    head = ["policy", *(column.title for column in COLUMNS), f"TTFT mean to {first}"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *_table_rows(found)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    listed = "\n".join(f"* {note}" for note in notes)
    return f"# {title}\n\n{listed}\n\n{table}\n"


def _table_rows(found: FiguresByPolicy) -> list[list[str]]:
    base = next(iter(found.values())).ttft_mean
    return [
        [
            name,
            *(column.shown.format(column.value(figures)) for column in COLUMNS),
            f"{figures.ttft_mean / base:.2f}",
        ]
        for name, figures in found.items()
    ]


def render_svg(title: str, found: FiguresByPolicy) -> str:
    """Return a bar chart: a row for each policy with times and hit rate."""
    height = TOP + ROW * len(found) + 16
    parts = [_render_text(8, 18, title, weight="bold")]
    parts += [_render_text(8, TOP + ROW * (n + 0.62), name) for n, name in enumerate(found)]
    width = (WIDTH - LEFT - GAP * len(DRAWN)) / len(DRAWN)
    for number, column in enumerate(DRAWN):
        parts += _render_bars(column, found, LEFT + number * (width + GAP), width)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def _render_bars(column: ReportColumn, found: FiguresByPolicy, x: float, width: float) -> list[str]:
    most = max(column.value(figures) for figures in found.values()) or 1.0
    parts = [_render_text(x, TOP - 6, column.title)]
    for number, figures in enumerate(found.values()):
        value, y = column.value(figures), TOP + ROW * number
        length = max(1.0, (width - 48) * value / most)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" '
            f'fill="{colour}"/>'
        )
        parts.append(_render_text(x + length + 4, y + ROW * 0.62, column.shown.format(value)))
    return parts


def render_html(title: str, notes: Sequence[str], found: FiguresByPolicy) -> str:
    """Return the whole report as one file without links to other files."""
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    heads = ["policy", *(column.title for column in COLUMNS), f"TTFT mean to {next(iter(found))}"]
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in _table_rows(found)
    )
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{style}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        f"<ul>{listed}</ul>\n{render_svg(title, found)}\n"
        f"<table><tr>{head}</tr>{rows}</table>\n</body></html>\n"
    )


def _render_text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" fill="#222222">'
        f"{escape(text, quote=False)}</text>"
    )
