"""Order of measurements: cells in turns, with disturbances; parts with the same fleet together."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from scripts.bench import conversation_data
from scripts.bench.http_load import LoadResult
from scripts.bench.services_under_test import ServiceUnderTest
from scripts.bench.suite.filled_services import FilledService, PartServices, filled_services
from scripts.bench.suite.machine_facts import DisturbanceWatch
from scripts.bench.suite.result_tables import ResultColumn, ResultRow, ResultSample, ResultTable


class WrongAnswersError(Exception):
    """A service refused a request or closed a connection, which voids the measurement."""


def check_answers(result: LoadResult) -> LoadResult:
    """Return the result of a load.  Raises WrongAnswersError."""
    if result.errors or not result.requests:
        raise WrongAnswersError(f"{result.errors} errors, {result.requests} answers")
    return result


class RowDepth(IntEnum):
    """Extent of rows. SLOW includes rows of several minutes."""

    QUICK = 0
    FULL = 1
    SLOW = 2


class MeasurementExtent(NamedTuple):
    """Amount of measurement."""

    repeats: int
    cell_s: int
    depth: RowDepth

    def of(self, quick: Sequence[Any], more: Sequence[Any], slow: Sequence[Any] = ()) -> list[Any]:
        """Return values for rows in order, including those of lesser depths."""
        return sorted(
            {value for values in (quick, more, slow)[: self.depth + 1] for value in values}
        )


class SuiteRun:
    """Input and results of every part."""

    def __init__(
        self,
        contenders: Sequence[ServiceUnderTest],
        extent: MeasurementExtent,
        only: Sequence[str] = (),
    ) -> None:
        """only: texts to find in the labels of measured rows; empty means all rows"""
        self.contenders, self.extent, self._only = contenders, extent, only
        self.known = conversation_data.make_conversations()
        self.tables: dict[str, ResultTable] = {}
        self.problems: list[str] = []

    def go_on(self, tables: Sequence[ResultTable], problems: Sequence[str]) -> None:
        """Continue with the results of an earlier run, without measuring complete rows again."""
        self.tables = {table.title: table for table in tables}
        self.problems = list(problems)

    def wants(
        self,
        table: ResultTable,
        row: ResultRow,
        contenders: Sequence[ServiceUnderTest] | None = None,
        repeats: int | None = None,
    ) -> bool:
        """Return whether the row is to be measured; if so, drop its samples.

        contenders, repeats: services and number of samples; None means the defaults
        """
        if self._only and not any(text in row.label for text in self._only):
            return False
        names = [each.name for each in (self.contenders if contenders is None else contenders)]
        if table.is_complete(row.label, names, repeats or self.extent.repeats):
            return False
        table.forget(row.label)
        return True

    def bodies(self, n_blocks: int) -> list[bytes]:
        """Return prompts as hashes."""
        return conversation_data.select_bodies(self.known, n_blocks)

    def token_bodies(self, n_tokens: int, bytes_max: int) -> list[bytes]:
        """Return prompts as tokens, fewer of long prompts."""
        (first,) = conversation_data.token_bodies(self.known, n_tokens, 1)
        n_bodies = min(conversation_data.BODIES, max(1, bytes_max // len(first)))
        return conversation_data.token_bodies(self.known, n_tokens, n_bodies)

    def table(
        self,
        title: str,
        row_name: str,
        measures: Sequence[ResultColumn],
        *,
        note: str = "",
        judged: int = 0,
        curve: str = "",
    ) -> ResultTable:
        """Return the table with this title, made at first use."""
        if title not in self.tables:
            self.tables[title] = ResultTable(
                title, row_name, measures, note=note, judged=judged, curve=curve
            )
        return self.tables[title]

    def turns(
        self,
        table: ResultTable,
        row: ResultRow,
        sites: Sequence[FilledService],
        measure: Callable[[FilledService], Any],
    ) -> None:
        """Measure a row, all sites in turn.  measure: site -> a value per measure"""
        if not self.wants(table, row):
            return
        _say(f"{table.title}: {row.label}")
        for _ in range(self.extent.repeats):
            for place in sites:
                self.turn(table, row, place, measure)

    def sample(
        self,
        table: ResultTable,
        row: ResultRow,
        name: str,
        measure: Callable[[], tuple[tuple[float, ...], float | None]],
    ) -> None:
        """Take a sample.

        measure: () -> (a value per measure, CPU seconds of a service with its own CPU)
        """
        watch = DisturbanceWatch()
        try:
            values, cpu_s = measure()
        except WrongAnswersError as error:
            self.problems.append(f"{table.title}, {row.label}, {name}: {error}")
            table.add(row, name, ResultSample(None, watch.noise(None)))
        else:
            table.add(row, name, ResultSample(values, watch.noise(cpu_s)))

    def turn(
        self,
        table: ResultTable,
        row: ResultRow,
        place: FilledService,
        measure: Callable[[FilledService], Any],
    ) -> None:
        """Take a sample of a site."""

        def measured() -> tuple[tuple[float, ...], float | None]:
            cpu = place.running.cpu_s()
            values = measure(place)
            # On shared CPUs the share of others cannot be computed.
            return tuple(values), place.running.cpu_s() - cpu if place.is_pinned else None

        self.sample(table, row, place.name, measured)

    def compare_answers(
        self, row: ResultRow, places: PartServices, bodies: Sequence[bytes]
    ) -> None:
        """Check that all services give equal answers to the first prompts.

        Ties may go to different workers, so the comparison uses the tokens left to prefill.
        """
        for body in bodies[:4]:
            prompt = json.loads(body)
            told = {
                place.name: place.running.call_json("POST", "/select", prompt)[
                    "effective_prefill_tokens"
                ]
                for place in places.sites
            }
            if len(set(told.values())) > 1:
                self.problems.append(f"{row.label}: effective_prefill_tokens differ: {told}")


class SuitePart(NamedTuple):
    """Part of the suite.

    workers: sizes of the shared fleets with filled services; empty if the part starts services
    """

    name: str
    what: str
    workers: tuple[int, ...]
    measure: Callable[[SuiteRun, PartServices], None]
    depth: RowDepth = RowDepth.QUICK


def execute_parts(
    run: SuiteRun, parts: Sequence[SuitePart], keep: Callable[[], None] = lambda: None
) -> None:
    """Execute the parts in table order, grouped by fleet; a failed part does not stop the run.

    keep: called after each part, so that a crash loses no results
    """
    for workers in sorted({size for part in parts for size in part.workers}):
        with _reporting(run, f"a fleet of {workers}"), _fleet(run, workers) as places:
            for part in parts:
                if workers in part.workers:
                    _do(run, part, places)
                    keep()
    for part in parts:
        if not part.workers:
            _do(run, part, PartServices(0, ()))
            keep()


def _fleet(run: SuiteRun, workers: int) -> contextlib.AbstractContextManager[PartServices]:
    _say(f"starting and filling fleets of {workers}")
    return filled_services(run.contenders, run.known, workers)


def _do(run: SuiteRun, part: SuitePart, places: PartServices) -> None:
    begun = time.monotonic()
    with _reporting(run, part.name):
        part.measure(run, places)
    _say(f"{part.name}: {time.monotonic() - begun:.0f} s")


@contextlib.contextmanager
def _reporting(run: SuiteRun, name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # A failed part must not lose the results of hours.
        run.problems.append(f"{name}: {type(error).__name__}: {error}"[:2000])
        _say(run.problems[-1])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
