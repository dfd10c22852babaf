"""Results of an earlier run: its JSON document as tables."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.bench.suite.machine_facts import Disturbance
from scripts.bench.suite.result_tables import ResultColumn, ResultRow, ResultSample, ResultTable


class Earlier(NamedTuple):
    """A run of the same services that may be continued."""

    begun: str
    wall_s: float
    commit: str
    contenders: Sequence[str]
    cell_s: int
    tables: Sequence[ResultTable]
    problems: Sequence[str]


class OtherRunError(Exception):
    """The existing run was measured in another way."""


def earlier_in(folder: Path, commit: str, contenders: Sequence[str], cell_s: int) -> Earlier | None:
    """Return the run in the folder; None if there is none.  Raises OtherRunError."""
    file = folder / "result.json"
    if not file.exists():
        return None
    found = earlier_of(json.loads(file.read_text()))
    for what, there, here in (
        ("commit", found.commit, commit),
        ("services", list(found.contenders), list(contenders)),
        ("seconds of a load", found.cell_s, cell_s),
    ):
        if there != here:
            raise OtherRunError(f"{file.name} there is of another run: {what} {there}, not {here}")
    return found


def earlier_of(document: Mapping[str, Any]) -> Earlier:
    """Return a run.  document: result of the report"""
    return Earlier(
        begun=document["begun"],
        wall_s=document["wall_s"],
        commit=document["machine"]["commit"],
        contenders=document["contenders"],
        cell_s=document.get("cell_s", 0),
        tables=[_table(table) for table in document["tables"] if "row_name" in table],
        problems=document["problems"],
    )


def _table(document: Mapping[str, Any]) -> ResultTable:
    measures = [ResultColumn(**measure) for measure in document["measures"]]
    judged = [measure.name for measure in measures].index(document["judged"])
    table = ResultTable(
        document["title"],
        document["row_name"],
        measures,
        note=document["note"],
        judged=judged,
        curve=document["curve"],
    )
    for entry in document["rows"]:
        row = ResultRow(**{name: entry[name] for name in ResultRow._fields if name in entry})
        for contender, service in entry["services"].items():
            for sample in _samples(service, measures):
                table.add(row, contender, sample)
    return table


def _samples(service: Mapping[str, Any], measures: Sequence[ResultColumn]) -> list[ResultSample]:
    """Return the samples; those without right answers are placed last."""
    columns = [service["measures"][measure.name]["values"] for measure in measures]
    values: list[tuple[float, ...] | None] = list(zip(*columns, strict=True))
    values += [None] * service["void"]
    noise = [Disturbance(**each) for each in service["noise"]]
    return [ResultSample(value, each) for value, each in zip(values, noise, strict=True)]
