"""Results as Markdown, JSON and a picture."""

import json
from collections.abc import Sequence
from html import escape
from itertools import product
from math import isnan, log, nan
from pathlib import Path

from scripts.bench.quality.quality_figures import (
    Metric,
    RatioEstimate,
    Results,
    RunKey,
    RunOutcome,
    cells_of,
    compute_ratio,
    routers_of,
)


def MEAN(found: RunOutcome) -> float:  # noqa: N802
    return found.ttft_mean


def P99(found: RunOutcome) -> float:  # noqa: N802
    return found.ttft_p99


METRICS: dict[str, Metric] = {
    "TTFT mean": MEAN,
    "TTFT p99": P99,
    "end to end": lambda found: found.e2e_mean,
    "TPOT": lambda found: found.tpot_mean,
}
SHARES = {
    "hit rate": "hit_rate",
    "objective met": "objective_share",
    "over-claimed": "over_claimed",
    "under-claimed": "under_claimed",
}
"""Fields of an outcome by the name of their column."""
Cell = tuple[str, float]

# JSON


def to_json(results: Results) -> str:
    """Return one object per run."""
    rows = [key._asdict() | found._asdict() for key, found in results.items()]
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def from_json(path: Path) -> Results:
    """Return the runs of a file of `to_json`; empty without a file."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())
    return {
        RunKey(**{name: row[name] for name in RunKey._fields}): RunOutcome(
            **{name: row[name] for name in RunOutcome._fields if name in row}
        )
        for row in rows
    }


# Markdown


def render_markdown(results: Results, base: str) -> str:
    """Return the best other chooser of each cell, ratios to `base` over all cells, then per
    cell, then the seconds of `base`.
    """
    cells, choosers = cells_of(results), routers_of(results)
    others = [chooser for chooser in choosers if chooser != base]
    parts = [_summary(results, cells, others, base), _by_cell(results, cells, others, base)]
    if others:
        parts.insert(0, _best_others(results, cells, others, base))
    return "\n\n".join([*parts, _absolute(results, cells, base)]) + "\n"


def _summary(results: Results, cells: Sequence[Cell], others: Sequence[str], base: str) -> str:
    head = [f"ratio to {base}", *METRICS, "worst p99 of a cell", *SHARES]
    rows = [[base, *["1"] * len(METRICS), "1", *_shares(results, base)]]
    for chooser in others:
        ratios = [
            _format_value(compute_ratio(results, cells, chooser, base, m)) for m in METRICS.values()
        ]
        p99s = [compute_ratio(results, [cell], chooser, base, P99).mean for cell in cells]
        worst = max((p99 for p99 in p99s if not isnan(p99)), default=nan)
        rows.append([chooser, *ratios, f"{worst:.2f}", *_shares(results, chooser)])
    return _table(head, rows)


def _best_others(results: Results, cells: Sequence[Cell], others: Sequence[str], base: str) -> str:
    """Return the best other chooser of each cell and metric, lowest ratios first.

    The best chooser of one metric need not be that of another.
    """
    found = []
    for cell in cells:
        best = []
        for metric in METRICS.values():
            ratios = [
                (compute_ratio(results, [cell], each, base, metric).mean, each) for each in others
            ]
            best.append(min((x for x in ratios if not isnan(x[0])), default=(nan, "-")))
        shares = [(_mean_share(results, cell, each), each) for each in others]
        share, chooser = max((x for x in shares if not isnan(x[0])), default=(nan, "-"))
        row = [f"{cell[0]}, {cell[1]:g}", *(f"{ratio:.2f} {each}" for ratio, each in best)]
        row.append(f"{share:.3f} {chooser}, {base} {_mean_share(results, cell, base):.3f}")
        found.append((min(ratio for ratio, _ in best), row))
    found.sort(key=lambda each: each[0])
    head = [f"best other / {base}", *METRICS, "objective met"]
    return _table(head, [row for _, row in found])


def _mean_share(results: Results, cell: Cell, chooser: str) -> float:
    """Return the share of requests that keep their goal; NaN without a run."""
    found = [
        each.objective_share
        for key, each in results.items()
        if (key.cell, key.chooser) == (cell, chooser)
    ]
    return sum(found) / len(found) if found else nan


def _by_cell(results: Results, cells: Sequence[Cell], others: Sequence[str], base: str) -> str:
    rows = []
    for cell in cells:
        row = [f"{cell[0]}, {cell[1]:g}"]
        for chooser in others:
            mean = compute_ratio(results, [cell], chooser, base, MEAN).mean
            p99 = compute_ratio(results, [cell], chooser, base, P99).mean
            row.append("-" if isnan(mean) else f"{mean:.2f} / {p99:.2f}")
        rows.append(row)
    return _table(["TTFT mean / p99", *others], rows)


def _absolute(results: Results, cells: Sequence[Cell], base: str) -> str:
    head = [base, "TTFT mean, s", "p99, s", "end to end, s", "TPOT, ms", "hit rate", "preemptions"]
    rows = []
    for cell in cells:
        found = [o for key, o in results.items() if key.cell == cell and key.chooser == base]
        if not found:
            continue
        ttft, p99, e2e, tpot, hit, preempted = (
            sum(values) / len(found) for values in zip(*(each[:6] for each in found), strict=True)
        )
        numbers = [f"{ttft:.3f}", f"{p99:.2f}", f"{e2e:.2f}", f"{1000 * tpot:.0f}", f"{hit:.2f}"]
        rows.append([f"{cell[0]}, {cell[1]:g}", *numbers, f"{preempted:.0f}"])
    return _table(head, rows)


def _shares(results: Results, chooser: str) -> list[str]:
    rows = [found for key, found in results.items() if key.chooser == chooser]
    columns = [
        [getattr(found, field) for found in rows if getattr(found, field) is not None]
        for field in SHARES.values()
    ]
    return [f"{sum(each) / len(each):.3f}" if each else "-" for each in columns]


def _format_value(found: RatioEstimate) -> str:
    if found.low == found.high:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f}-{found.high:.2f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# CSV


def render_csv(results: Results) -> str:
    """Return one line per cell and chooser, with the means over the seeds."""
    fields = RunOutcome._fields[: RunOutcome._fields.index("objective_share") + 1]
    lines = [",".join(["workload", "load", "chooser", "seeds", *fields])]
    for (name, load), chooser in product(cells_of(results), routers_of(results)):
        found = [
            each[: len(fields)]
            for key, each in results.items()
            if (key.cell, key.chooser) == ((name, load), chooser)
        ]
        if found:
            means = [sum(values) / len(found) for values in zip(*found, strict=True)]
            numbers = (f"{mean:.4g}" for mean in means)
            lines.append(",".join([name, f"{load:g}", chooser, str(len(found)), *numbers]))
    return "\n".join(lines) + "\n"


# Picture

WIDTH, LEFT, ROW, TOP, BOTTOM = 860, 220, 22, 46, 30
COLOURS = ("#1565c0", "#c62828", "#2e7d32", "#ef6c00", "#6a1b9a", "#00838f", "#5d4037")
TICKS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


def render_svg(results: Results, base: str) -> str:
    """Return the TTFT of every cell next to `base`, logarithmic: mean full, p99 hollow."""
    cells, choosers = cells_of(results), routers_of(results)
    others = [chooser for chooser in choosers if chooser != base][: len(COLOURS)]
    height = TOP + ROW * len(cells) + BOTTOM
    parts = [_legend(others), *_grid(height, base)]
    for number, cell in enumerate(cells):
        y = TOP + ROW * (number + 0.5)
        parts.append(_text(LEFT - 8, y + 4, f"{cell[0]}, {cell[1]:g}", "end"))
        for colour, chooser in zip(COLOURS, others, strict=False):
            for metric, fill in ((MEAN, colour), (P99, "white")):
                quotient = compute_ratio(results, [cell], chooser, base, metric).mean
                if isnan(quotient):
                    continue
                x = _x(quotient)
                parts.append(
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}" '
                    'stroke-width="1.5"/>'
                )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def _x(quotient: float) -> float:
    """Return the place of a value; values beyond the axis are drawn at its end."""
    bounded = min(max(quotient, TICKS[0]), TICKS[-1])
    return LEFT + (WIDTH - LEFT - 20) * log(bounded / TICKS[0]) / log(TICKS[-1] / TICKS[0])


def _legend(others: Sequence[str]) -> str:
    parts = [_text(8, 18, "TTFT, mean (full) and p99 (hollow)")]
    x = float(LEFT)
    for colour, chooser in zip(COLOURS, others, strict=False):
        parts.append(_text(x, 18, chooser, colour=colour))
        x += 7.0 * len(chooser) + 18
    return "\n".join(parts)


def _grid(height: int, base: str) -> list[str]:
    parts = []
    for tick in TICKS:
        x, colour = _x(tick), "#555555" if tick == 1.0 else "#dddddd"
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - BOTTOM}" '
            f'stroke="{colour}"/>'
        )
        label = f"{base} = 1" if tick == 1.0 else f"{tick:g}"
        parts.append(_text(x, height - BOTTOM + 16, label, "middle"))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#222222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text, quote=False)}</text>"
    )
