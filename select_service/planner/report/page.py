"""Views -> the bytes of one HTML file, below 2 MB whatever there is to show."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from select_service.planner.core.inputs import Role
from select_service.planner.core.reasons import SENTENCES
from select_service.planner.history import Table, thinned
from select_service.planner.report.charts import (
    EPOCH_S,
    Band,
    Chart,
    Level,
    Line,
    Mark,
    clock,
    is_known,
)
from select_service.planner.report.drawing import SVG, Drawing
from select_service.planner.report.style import STYLE
from select_service.planner.report.views import GROUPS_MAX, Series, View, series_of
from select_service.planner.status import Change

BEGIN = b'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
"""Of every file of ours."""
DEPLOYMENTS_MAX = 24
"""Drawn; the others are a row of the table and a link."""
_GROUPS_MAX = 2400
"""Of all deployments together; each draws two points of a series."""
_CHANGES_MAX = 1200
"""Decisions of all deployments together that are drawn, the newest."""
_ROWS_MAX = 15
"""Decisions of a deployment that are told in words."""


def page_of(views: Sequence[View], title: str = "Planner", drawing: Drawing = SVG) -> bytes:
    """Deterministic: equal views, equal bytes."""
    shown = views[:DEPLOYMENTS_MAX]
    groups = min(GROUPS_MAX, _GROUPS_MAX // max(1, len(shown)))
    marks = _CHANGES_MAX // max(1, len(shown))
    body = [
        f"<h1>{escape(title)}</h1>",
        _overview(views),
        *(
            _section(view, at, _charts(view, groups, marks), drawing)
            for at, view in enumerate(shown)
        ),
    ]
    head = (
        f'{BEGIN.decode()}content="width=device-width">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style>{drawing.head}</head><body>'
    )
    return (head + "".join(body) + "</body></html>\n").encode()


def _overview(views: Sequence[View]) -> str:
    """One row each: how well, at what cost, how steadily."""
    if not views:
        return "<p>No deployment has ticked yet.</p>"
    header = (
        "<tr><th>deployment<th>TTFT kept<th>ITL kept<th>target"
        "<th>GPU hours<th>least possible<th>ratio<th>reversals<th>decisions<th>ticks</tr>"
    )
    rows = []
    for at, view in enumerate(views):
        place = f"#d{at}" if at < DEPLOYMENTS_MAX else f"?deployment={_quoted(view.name)}"
        least = view.least_gpu_hours
        cells = (
            f'<a href="{place}">{escape(_short(view.name))}</a>',
            *(_percent(view.met.get(slo), view.settings.attainment) for slo in ("ttft", "itl")),
            f"{view.settings.attainment:.1%}",
            f"{view.gpu_hours:,.2f}",
            "–" if least is None else f"{least:,.2f}",
            "–" if not least else f"{view.gpu_hours / least:.2f}",
            str(view.reversals),
            str(len(view.changes)),
            f"{view.ticks:,}",
        )
        rows.append(f"<tr><td>{'<td>'.join(cells)}</tr>")
    return f'<div class="wide"><table>{header}{"".join(rows)}</table></div>'


def _section(view: View, at: int, charts: Iterable[Chart], drawing: Drawing) -> str:
    settings = view.settings
    words = f"{settings.mode}, {settings.optimization_target}"
    if settings.advisory:
        words += ", advisory: nothing was scaled"
    heading = f'<section id="d{at}"><h2>{escape(view.name)} <small>{words}</small></h2>'
    if not len(view.table):
        return f"{heading}<p>It has not ticked yet.</p></section>"
    start_s, end_s = float(view.table[0, 0]), float(view.table[-1, 0])
    heading += f"<p>{_from_to(start_s, end_s)}</p>"
    figures = [drawing.draw(chart, start_s, end_s) for chart in charts]
    return f"{heading}{''.join(figures)}{_changes(view, end_s - start_s)}{_reasons(view)}</section>"


def _from_to(start_s: float, end_s: float) -> str:
    if start_s < EPOCH_S:
        return f"Simulated time, {(end_s - start_s) / 3600.0:,.1f} hours."
    first, last = (datetime.fromtimestamp(at_s, UTC) for at_s in (start_s, end_s))
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}, UTC."


def _charts(view: View, groups: int, marks: int) -> Iterable[Chart]:
    """Those of which something is known; none before the first tick."""
    table = thinned(view.table, groups)
    newest = view.changes[-marks:]
    yield from (_replicas(view, table, role, newest) for role in view.roles)
    chosen = (
        _demand(table),
        _latency("Time to first token", "ttft", table, view.settings.ttft_ms),
        _latency("Time between tokens", "itl", table, view.settings.itl_ms),
        _kept(view, table),
        Chart("GPUs", [Line("ready and starting", "ready", series_of(table, "gpus"), "area")]),
    )
    yield from (chart for chart in chosen if any(is_known(line.series) for line in chart.lines))


def _replicas(view: View, table: Table, role: Role, newest: Sequence[Change]) -> Chart:
    ready = series_of(table, f"{role.value}_ready")
    span_s = float(table[-1, 0] - table[0, 0])
    marks = [
        Mark(each.at_s, each.wanted, each.wanted > each.before, _told(each, span_s))
        for each in newest
        if each.role is role and each.at_s >= table[0, 0]
    ]
    name = "Replicas" if len(view.roles) == 1 else f"{role.value.capitalize()} replicas"
    lines = [
        Line("starting", "starting", series_of(table, f"{role.value}_total"), "area"),
        Line("ready", "ready", ready, "area"),
        Line("decided", "decided", series_of(table, f"{role.value}_decided"), "step"),
    ]
    return Chart(name, lines, marks=marks)


def _demand(table: Table) -> Chart:
    forecast, demand = series_of(table, "forecast_s"), series_of(table, "demand_s")
    lines = [
        Line("observed", "observed", series_of(table, "requests_s")),
        Line("forecast", "forecast", forecast),
    ]
    bands = [Band("planned for", "planned", forecast, demand)] if is_known(demand) else []
    return Chart("Requests per second", lines, bands)


def _latency(title: str, slo: str, table: Table, target_ms: float) -> Chart:
    lines = [
        Line("estimated", "forecast", series_of(table, f"{slo}_estimated_ms")),
        Line("observed", "observed", series_of(table, f"{slo}_observed_ms")),
    ]
    levels = [Level(f"target {target_ms:g} ms", target_ms)]
    return Chart(f"{title}, ms", [each for each in lines if is_known(each.series)], levels=levels)


def _kept(view: View, table: Table) -> Chart:
    lines = [
        Line("TTFT", "observed", series_of(table, "ttft_met")),
        Line("ITL", "forecast", series_of(table, "itl_met")),
    ]
    wanted = view.settings.attainment
    known = [
        line._replace(series=Series(line.series.times, line.series.values * 100.0))
        for line in lines
        if is_known(line.series)
    ]
    levels = [Level(f"target {wanted:.1%}", wanted * 100.0)]
    return Chart("Requests that kept the target", known, levels=levels, most=105.0, unit="%")


def _told(change: Change, span_s: float) -> str:
    """What a mark says."""
    lines = [
        f"{clock(change.at_s, span_s)}  {change.role.value}: {change.before} → {change.wanted}"
    ]
    lines += [f"{reason.value}: {SENTENCES[reason]}" for reason in change.reasons[:6]]
    if change.applied is not None:
        lines.append(f"platform: {change.applied}")
    return "\n".join(lines)


def _changes(view: View, span_s: float) -> str:
    """The newest decisions in words."""
    newest = view.changes[-_ROWS_MAX:]
    if not newest:
        return "<p>No number was changed.</p>"
    rows = "".join(
        f"<tr><td>{clock(each.at_s, span_s)}<td>{each.role.value}<td>{each.before} → {each.wanted}"
        f"<td>{', '.join(reason.value for reason in each.reasons)}<td>{each.applied or '–'}</tr>"
        for each in reversed(newest)
    )
    header = "<tr><th>time<th>role<th>replicas<th>reasons<th>platform</tr>"
    caption = f"The newest {len(newest)} of {len(view.changes)} decisions"
    return f'<h3>{caption}</h3><div class="wide"><table class="text">{header}{rows}</table></div>'


def _reasons(view: View) -> str:
    ranked = sorted(view.by_reason.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = "".join(
        f"<tr><td><code>{reason.value}</code><td>{count:,}<td>{count / max(1, view.ticks):.1%}"
        f"<td>{escape(SENTENCES[reason])}</tr>"
        for reason, count in ranked
    )
    header = "<tr><th>reason<th>ticks<th>of all<th>it means</tr>"
    return (
        f"<details><summary>Reasons by ticks</summary>"
        f'<div class="wide"><table class="text">{header}{rows}</table></div></details>'
    )


def _percent(value: float | None, target: float) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    css = "good" if value >= target else "bad"
    return f'<span class="{css}">{value:.1%}</span>'


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:57] + "…"


def _quoted(name: str) -> str:
    return escape("".join(f"%{byte:02X}" for byte in name.encode()))
