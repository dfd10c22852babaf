"""The pictures of a run: what grows with the prompt, the fleet and the index."""

from collections.abc import Sequence

from scripts.bench.line_plot import Axis, Panel, Points
from scripts.bench.suite.samples import Row, Table


def panels(tables: Sequence[Table], contenders: Sequence[str]) -> list[Panel]:
    """One diagram for each group of at least two rows in a table that is to be drawn."""
    made = []
    for table in tables:
        groups: dict[str, list[Row]] = {}
        for row in table.rows.values() if table.curve else ():
            groups.setdefault(row.group, []).append(row)
        for group, rows in groups.items():
            lines = {name: _points(table, rows, name) for name in contenders}
            lines = {name: points for name, points in lines.items() if len(points) > 1}
            if lines:
                title = f"{table.measures[table.judged].name} by {table.curve}, {group}"
                made.append(Panel(title, lines, _axis(rows), is_log=True))
    return made


def _points(table: Table, rows: Sequence[Row], contender: str) -> Points:
    medians = [(row.x, table.median(row.label, contender, table.judged)) for row in rows]
    return sorted((x, median) for x, median in medians if median)


def _axis(rows: Sequence[Row]) -> Axis:
    values = sorted(row.x for row in rows)
    return Axis(values[0], values[-1], values, is_log=True)
