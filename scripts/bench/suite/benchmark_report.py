"""Results of a run as Markdown and as a JSON document; no I/O."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from scripts.bench.suite.machine_facts import MachineFacts
from scripts.bench.suite.result_tables import ResultRow, ResultTable

BEFORE = "before"
FLOOR = "floor"
"""Name of the server that only receives and answers (floor_server), in the tables that have it."""


class BenchmarkRun(NamedTuple):
    """A whole run.

    ours: contenders with goals;  base: base of the ratios; None without another service
    cell_s: duration of a load, in seconds
    """

    machine: MachineFacts
    command: str
    begun: str
    wall_s: float
    contenders: Sequence[str]
    ours: Sequence[str]
    base: str | None
    tables: Sequence[ResultTable]
    problems: Sequence[str]
    cell_s: int


def render_markdown(found: BenchmarkRun) -> str:
    """Return tables below headings of the fourth level."""
    parts = [_head(found), _goals(found), *(_table(found, table) for table in found.tables)]
    if found.problems:
        parts.append("#### What went wrong\n\n" + "\n".join(f"* {each}" for each in found.problems))
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(found: BenchmarkRun) -> str:
    machine = found.machine
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    against = f"; ratios are against {found.base}, above 1 = better than it" if found.base else ""
    return "\n".join(
        [
            f"`{found.command}`, {found.begun}, {found.wall_s:.0f} s. Medians{against}.",
            "",
            "| | |",
            "|---|---|",
            f"| machine | {machine.cpu}, {machine.cpus} CPUs, {machine.memory_gb} GB,"
            f" Linux {machine.kernel} |",
            f"| its pace | {machine.python_loop_ms} ms for a million turns of a Python loop,"
            f" {machine.message_us} us for a byte through a socket |",
            f"| ours | {machine.commit}, Python {machine.python}, {libraries} |",
            f"| services | {', '.join(found.contenders)} |",
        ]
    )


def _goals(found: BenchmarkRun) -> str:
    """Return the ratios of all rows with a goal, by contender: to the reference and to earlier
    commits.
    """
    heads = ["what", "to", *(f"{name}, ratio" for name in found.ours), "goal"]
    lines = [
        line
        for table in found.tables
        for row in table.rows.values()
        for line in _goals_of(found, table, row)
    ]
    if not lines:
        return ""
    return "\n".join(["#### Goals", "", _line(heads), "|---" * len(heads) + "|", *lines])


def _goals_of(found: BenchmarkRun, table: ResultTable, row: ResultRow) -> Iterator[str]:
    """Yield a line for each service to which the row has a goal."""
    measure = table.measures[table.judged].name
    goals = {name: row.goal_before for name in found.ours if is_before(name)}
    goals[FLOOR] = row.goal_floor
    if found.base is not None and found.base not in found.ours:
        goals[found.base] = row.goal
    for base, goal in goals.items():
        if goal is not None:
            ratios = [table.ratio(row.label, name, base, table.judged) for name in found.ours]
            cells = [
                "" if name == base else _judged_cell(ratio, goal)
                for name, ratio in zip(found.ours, ratios, strict=True)
            ]
            yield _line([f"{row.label}: {measure}", base, *cells, f"{goal:g}"])


def is_before(name: str) -> bool:
    """Return whether a service is an earlier commit of this service."""
    return name.startswith(BEFORE)


def _table(found: BenchmarkRun, table: ResultTable) -> str:
    lines = [f"#### {table.title}", ""]
    lines += [table.note, ""] if table.note else []
    heads = [table.row_name, "service", *(measure.name for measure in table.measures)]
    heads += ["load", "steal, %", "others, %"]
    lines += [_line(heads), "|---" * len(heads) + "|"]
    for label in table.rows:
        for name in (*found.contenders, FLOOR):
            if table.samples(label, name):
                lines.append(_line([label, name, *_cells(found, table, label, name)]))
    return "\n".join(lines)


def _cells(found: BenchmarkRun, table: ResultTable, label: str, name: str) -> list[str]:
    """Return a value of each measure with its ratio in brackets, then the disturbance."""
    cells = []
    for number in range(len(table.measures)):
        value = table.median(label, name, number)
        cell = "void" if value is None else format_number(value)
        if found.base not in (None, name):
            ratio = table.ratio(label, name, str(found.base), number)
            cell += "" if ratio is None else f" ({ratio:.2f})"
        cells.append(cell)
    noise = table.noise(label, name)
    assert noise is not None
    others = "" if noise.others_percent is None else f"{noise.others_percent:.0f}"
    return [*cells, f"{noise.load:.1f}", f"{noise.steal_percent:.0f}", others]


def _judged_cell(ratio: float | None, goal: float) -> str:
    if ratio is None:
        return "not measured"
    return f"**{ratio:.2f}**" if ratio >= goal else f"{ratio:.2f}, missed"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def format_number(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def render_document(found: BenchmarkRun) -> dict[str, Any]:
    """Return all values of all samples, medians and ratios, for programs."""
    return {
        "machine": found.machine._asdict(),
        "command": found.command,
        "begun": found.begun,
        "wall_s": round(found.wall_s, 1),
        "contenders": list(found.contenders),
        "base": found.base,
        "cell_s": found.cell_s,
        "tables": [_table_document(found, table) for table in found.tables],
        "problems": list(found.problems),
    }


def _table_document(found: BenchmarkRun, table: ResultTable) -> dict[str, Any]:
    return {
        "title": table.title,
        "row_name": table.row_name,
        "note": table.note,
        "curve": table.curve,
        "measures": [measure._asdict() for measure in table.measures],
        "judged": table.measures[table.judged].name,
        "rows": [
            {**row._asdict(), "services": _services(found, table, row.label)}
            for row in table.rows.values()
        ],
    }


def _services(found: BenchmarkRun, table: ResultTable, label: str) -> dict[str, Any]:
    services = {}
    for name in (*found.contenders, FLOOR):
        samples = table.samples(label, name)
        if samples:
            services[name] = {
                "measures": {
                    measure.name: {
                        "median": table.median(label, name, number),
                        "values": table.values(label, name, number),
                        "ratio": table.ratio(label, name, found.base, number)
                        if found.base
                        else None,
                    }
                    for number, measure in enumerate(table.measures)
                },
                "void": sum(sample.values is None for sample in samples),
                "noise": [sample.noise._asdict() for sample in samples],
            }
    return services
