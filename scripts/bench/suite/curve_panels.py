"""Pictures of a run: growth with prompt, fleet and index."""

from collections.abc import Sequence

from scripts.bench.line_plot import PlotAxis, PlotPanel, Points
from scripts.bench.suite.result_tables import ResultRow, ResultTable


def panels(tables: Sequence[ResultTable], contenders: Sequence[str]) -> list[PlotPanel]:
    """Return a diagram for each group of at least two rows in a table with a curve."""
    made = []
    for table in tables:
        groups: dict[str, list[ResultRow]] = {}
        for row in table.rows.values() if table.curve else ():
            groups.setdefault(row.group, []).append(row)
        for group, rows in groups.items():
            lines = {name: _points(table, rows, name) for name in contenders}
            lines = {name: points for name, points in lines.items() if len(points) > 1}
            if lines:
                title = f"{table.measures[table.judged].name} by {table.curve}, {group}"
                made.append(PlotPanel(title, lines, _axis(rows), is_log=True))
    return made


def _points(table: ResultTable, rows: Sequence[ResultRow], contender: str) -> Points:
    medians = [(row.x, table.median(row.label, contender, table.judged)) for row in rows]
    return sorted((x, median) for x, median in medians if median)


def _axis(rows: Sequence[ResultRow]) -> PlotAxis:
    values = sorted(row.x for row in rows)
    return PlotAxis(values[0], values[-1], values, is_log=True)
