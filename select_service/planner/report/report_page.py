"""Page of a report: views as one HTML file below 2 MB."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from select_service.planner.core.tick_input import Role
from select_service.planner.deployment_status import ReplicaChange
from select_service.planner.report.report_views import (
    GROUPS_MAX,
    ChartSeries,
    DeploymentView,
    column_series,
)
from select_service.planner.report.style_sheet import STYLE
from select_service.planner.report.svg_charts import (
    CALENDAR_FROM_S,
    Chart,
    ChartBand,
    ChartLevel,
    ChartLine,
    ChartMark,
    draw_chart,
    format_moment,
    has_values,
)
from select_service.planner.thinned_history import Table, thin_table

PAGE_BEGIN = b'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
"""First bytes of every report."""
DEPLOYMENTS_MAX = 24
"""Maximum deployments with charts; the others are a row of the table and a link."""
_GROUPS_MAX = 2300
"""Maximum groups of ticks over all deployments; each draws two points of a series."""
_CHANGES_MAX = 1200
"""Maximum drawn decisions over all deployments, the newest."""
_ROWS_MAX = 15
"""Maximum decisions of a deployment in the table."""


def render_page(views: Sequence[DeploymentView], title: str = "Planner") -> bytes:
    """Draw the page. Deterministic: equal views give equal bytes."""
    shown = views[:DEPLOYMENTS_MAX]
    # The budget of points is shared, so that the page stays below 2 MB with many deployments.
    groups = min(GROUPS_MAX, _GROUPS_MAX // max(1, len(shown)))
    marks = _CHANGES_MAX // max(1, len(shown))
    body = [
        f"<h1>{escape(title)}</h1>",
        _draw_overview(views),
        *(
            _draw_section(view, at, _deployment_charts(view, groups, marks))
            for at, view in enumerate(shown)
        ),
    ]
    head = (
        f'{PAGE_BEGIN.decode()}content="width=device-width">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body>'
    )
    return (head + "".join(body) + "</body></html>\n").encode()


def _draw_overview(views: Sequence[DeploymentView]) -> str:
    """Return the table of deployments: attainment, cost, reversals."""
    if not views:
        return "<p>No deployment has had a tick yet.</p>"
    header = (
        "<tr><th>deployment<th>TTFT attained<th>ITL attained<th>target"
        "<th>GPU hours<th>least possible<th>ratio<th>reversals<th>decisions<th>ticks</tr>"
    )
    rows = []
    for at, view in enumerate(views):
        place = f"#d{at}" if at < DEPLOYMENTS_MAX else f"?deployment={_quote_name(view.name)}"
        least = view.least_gpu_hours
        cells = (
            f'<a href="{place}">{escape(_shorten_name(view.name))}</a>',
            *(
                _format_percent(view.met.get(slo), view.settings.attainment)
                for slo in ("ttft", "itl")
            ),
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


def _draw_section(view: DeploymentView, at: int, charts: Iterable[Chart]) -> str:
    """Return the section of a deployment."""
    settings = view.settings
    words = f"{settings.mode}, {settings.optimization_target}"
    if settings.advisory:
        words += ", advisory mode: nothing scaled"
    heading = f'<section id="d{at}"><h2>{escape(view.name)} <small>{words}</small></h2>'
    if not len(view.table):
        return f"{heading}<p>No tick yet.</p></section>"
    start_s, end_s = float(view.table[0, 0]), float(view.table[-1, 0])
    heading += f"<p>{_describe_times(start_s, end_s)}</p>"
    figures = [draw_chart(chart, start_s, end_s) for chart in charts]
    tables = (_draw_changes(view), _draw_plugins(view), _draw_reasons(view))
    return f"{heading}{''.join(figures)}{''.join(tables)}</section>"


def _describe_times(start_s: float, end_s: float) -> str:
    """Describe the times of a section."""
    if start_s < CALENDAR_FROM_S:
        return f"Simulated time, {(end_s - start_s) / 3600.0:,.1f} hours."
    first, last = (datetime.fromtimestamp(at_s, UTC) for at_s in (start_s, end_s))
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}, UTC."


def _deployment_charts(view: DeploymentView, groups: int, marks: int) -> Iterable[Chart]:
    """Yield the charts with known values; none before the first tick."""
    table = thin_table(view.table, groups)
    newest = view.changes[-marks:]
    yield from (_replicas_chart(view, table, role, newest) for role in view.roles)
    chosen = (
        _demand_chart(table),
        _latency_chart("Time to first token", "ttft", table, view.settings.ttft_ms),
        _latency_chart("Time between tokens", "itl", table, view.settings.itl_ms),
        _attainment_chart(view, table),
        Chart("GPUs", [ChartLine("occupied", "ready", column_series(table, "gpus"), "area")]),
    )
    yield from (chart for chart in chosen if any(has_values(line.series) for line in chart.lines))


def _replicas_chart(
    view: DeploymentView, table: Table, role: Role, newest: Sequence[ReplicaChange]
) -> Chart:
    """Return the chart of a role's replicas."""
    marks = [
        ChartMark(each.at_s, each.wanted, each.wanted > each.before, _mark_text(each))
        for each in newest
        if each.role is role and each.at_s >= table[0, 0]
    ]
    name = "Replicas" if len(view.roles) == 1 else f"{role.value.capitalize()} replicas"
    serving = column_series(table, f"{role.value}_serving")
    draining = column_series(table, f"{role.value}_draining")
    lines = [
        ChartLine("out", "out", column_series(table, f"{role.value}_occupied"), "area"),
        ChartLine("starting", "starting", column_series(table, f"{role.value}_total"), "area"),
        *(
            [ChartLine("draining", "draining", draining, "area")]
            if bool((draining.values > serving.values).any())
            else []
        ),
        ChartLine("ready", "ready", serving, "area"),
        ChartLine("decided", "decided", column_series(table, f"{role.value}_decided"), "step"),
    ]
    return Chart(name, lines, marks=marks)


def _demand_chart(table: Table) -> Chart:
    """Return the chart of request rates."""
    forecast, demand = column_series(table, "forecast_s"), column_series(table, "demand_s")
    lines = [
        ChartLine("observed", "observed", column_series(table, "requests_s")),
        ChartLine("forecast", "forecast", forecast),
    ]
    bands = [ChartBand("planned for", "planned", forecast, demand)] if has_values(demand) else []
    return Chart("Requests per second", lines, bands)


def _latency_chart(title: str, slo: str, table: Table, target_ms: float) -> Chart:
    """Return the chart of a latency."""
    lines = [
        ChartLine("estimated", "forecast", column_series(table, f"{slo}_estimated_ms")),
        ChartLine("observed", "observed", column_series(table, f"{slo}_observed_ms")),
    ]
    levels = [ChartLevel(f"target {target_ms:g} ms", target_ms)]
    return Chart(f"{title}, ms", [each for each in lines if has_values(each.series)], levels=levels)


def _attainment_chart(view: DeploymentView, table: Table) -> Chart:
    """Return the chart of attainment."""
    lines = [
        ChartLine("TTFT", "observed", column_series(table, "ttft_met")),
        ChartLine("ITL", "forecast", column_series(table, "itl_met")),
    ]
    wanted = view.settings.attainment
    known = [
        line._replace(series=ChartSeries(line.series.times, line.series.values * 100.0))
        for line in lines
        if has_values(line.series)
    ]
    levels = [ChartLevel(f"target {wanted:.1%}", wanted * 100.0)]
    return Chart("Requests that kept the target", known, levels=levels, most=105.0, unit="%")


def _mark_text(change: ReplicaChange) -> str:
    """Return the tooltip of a mark."""
    lines = [
        f"{format_moment(change.at_s)}  {change.role.value}: {change.before} → {change.wanted}"
    ]
    lines += [f"{reason.value}: {reason.sentence}" for reason in change.reasons[:6]]
    if change.applied is not None:
        lines.append(f"platform: {change.applied}")
    return "\n".join(lines)


def _draw_changes(view: DeploymentView) -> str:
    """Return the table of the newest decisions."""
    newest = view.changes[-_ROWS_MAX:]
    if not newest:
        return "<p>No change of replicas.</p>"
    rows = "".join(
        f"<tr><td>{format_moment(each.at_s)}<td>{each.role.value}<td>{each.before} → "
        f"{each.wanted}"
        f"<td>{', '.join(reason.value for reason in each.reasons)}"
        f"<td>{escape(each.decided_by or '–')}<td>{each.applied or '–'}</tr>"
        for each in reversed(newest)
    )
    header = "<tr><th>time<th>role<th>replicas<th>reasons<th>decided by<th>platform</tr>"
    caption = f"The newest {len(newest)} of {len(view.changes)} decisions"
    return f'<h3>{caption}</h3><div class="wide"><table class="text">{header}{rows}</table></div>'


def _draw_plugins(view: DeploymentView) -> str:
    """Return the table of plugins; nothing without plugins."""
    if not view.last_calls:
        return ""
    rows = []
    for name, last in sorted(view.last_calls.items()):
        counts = ", ".join(
            f"{kind.outcome.value} {count:,}"
            for kind, count in sorted(view.plugin_calls.items())
            if kind.plugin == name
        )
        held = ", last answer held" if last.is_held else ""
        rows.append(
            f"<tr><td>{escape(name)}<td>{last.stage.value}<td>{counts}"
            f"<td>{last.outcome.value}{held}<td>{escape(last.text) or '–'}</tr>"
        )
    header = "<tr><th>plugin<th>stage<th>calls<th>last call<th>text</tr>"
    lines = header + "".join(rows)
    return f'<h3>Plugins</h3><div class="wide"><table class="text">{lines}</table></div>'


def _draw_reasons(view: DeploymentView) -> str:
    """Return the table of reasons."""
    ranked = sorted(view.by_reason.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = "".join(
        f"<tr><td><code>{reason.value}</code><td>{count:,}<td>{count / max(1, view.ticks):.1%}"
        f"<td>{escape(reason.sentence)}</tr>"
        for reason, count in ranked
    )
    header = "<tr><th>reason<th>ticks<th>of all<th>meaning</tr>"
    return (
        f"<details><summary>Number of ticks by reason</summary>"
        f'<div class="wide"><table class="text">{header}{rows}</table></div></details>'
    )


def _format_percent(value: float | None, target: float) -> str:
    """Format an attainment."""
    if value is None or not math.isfinite(value):
        return "–"
    css = "good" if value >= target else "bad"
    return f'<span class="{css}">{value:.1%}</span>'


def _shorten_name(name: str) -> str:
    """Shorten a name."""
    return name if len(name) <= 60 else name[:57] + "…"


def _quote_name(name: str) -> str:
    """Escape a name for a URL."""
    return escape("".join(f"%{byte:02X}" for byte in name.encode()))
